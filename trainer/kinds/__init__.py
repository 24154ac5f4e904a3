"""What differs between kinds of job: one file a kind, and the one table of them."""
