"""Pretraining: corpora to a causal or masked language model."""
