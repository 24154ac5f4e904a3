"""Runs side by side, and the list of a store's runs: what `headrace compare` and `headrace list` print."""
