"""The reference pages that are generated from the code."""
