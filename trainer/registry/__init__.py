"""Runs that are there: their pages, runs side by side, lineage, champions and gates, pins, and garbage."""
