"""Figures of models on data that they were not trained on, samples, and predictions.

A new figure of language models, beside their loss, perplexity and bits a byte, goes into `held_out_loss.py`; what it needs
elsewhere, docs/how-to/metrics.md lists. Metrics of classification and regression have a room of their own, `trainer/metrics`.
"""
