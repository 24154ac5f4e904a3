"""Metrics of classification and regression: `measures.py` finds and computes them, those that come along have a folder each."""
