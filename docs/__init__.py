"""The documentation, and in docs/making what makes pages of it from the code."""
