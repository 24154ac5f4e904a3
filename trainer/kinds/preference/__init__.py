"""Preference tuning: pairs of a better and a worse answer train a causal language model to prefer the better."""
