"""Evaluate models on held-out data: measurements and their reuse, metrics, lm-eval tasks, and samples.

`metrics.py` and `builtin_metrics.py` hold the metrics of labelled data; each kind of job measures its models in its own
folder.
"""
