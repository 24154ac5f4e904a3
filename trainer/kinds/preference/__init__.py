"""Preference tuning: pairs of answers and a causal language model to one that gives the better ones."""
