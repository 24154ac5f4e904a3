"""Existing runs: reports, comparison, lineage, champions and gates, pins, and garbage collection."""
