"""Checks before long work starts: whether a job's requirements are met, and what would be reused or built, and why."""
