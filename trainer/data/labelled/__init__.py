"""Labelled data to encoded sets: parsing rows and labels, and tokenizing."""
