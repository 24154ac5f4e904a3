"""What is read back of a store: sealed, of a known shape, and held by one process at a time."""
