"""Records read back from a store: sealed and validated files, leases, and finding or building artifacts (steps.py)."""
