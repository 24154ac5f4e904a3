"""Pretraining: a causal or masked language model learns from corpora."""
