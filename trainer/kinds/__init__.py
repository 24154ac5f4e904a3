"""What differs between kinds of job: one file a kind, and `table.py`, the one table of them.

Rooms below are handed a `Kind`, or a part of it, and do not know which one it is.
"""
