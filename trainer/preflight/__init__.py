"""The look before long work starts: what a job needs and whether it is there, and what would be reused or made, and
why.
"""
