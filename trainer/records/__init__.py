"""What is read back of a store, sealed and of a known shape; leases; and how artifacts are found or made (steps.py)."""
