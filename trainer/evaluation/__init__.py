"""Figures of models on data that they were not trained on, and samples: what was measured already, metrics, lm-eval's
tasks.

Metrics of labelled data are in `metrics.py` and `own_metrics.py`; how a kind of job measures its models is in that
kind's folder.
"""
