"""Benchmarks: each figure is a ratio against a peer, measured in one run on the same machine, as medians of pairs."""
