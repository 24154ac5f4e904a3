"""From files to what a model reads: readers, tokens in shards, labelled examples, conversations, their order and
packing.
"""
