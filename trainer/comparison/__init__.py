"""Runs side by side, and the list of a store's runs: what `python -m trainer.compare` prints."""
