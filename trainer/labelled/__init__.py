"""Labelled data to encoded sets."""
