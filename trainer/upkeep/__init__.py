"""Champions, pins, and what nothing in a store reaches any more."""
