"""Causal language models, classifiers, and their losses."""
