"""Labelled data to encoded sets: what a row is, what its labels are, and its tokens."""
