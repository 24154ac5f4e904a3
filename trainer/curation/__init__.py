"""Curation: decides once for each document of the raw text whether it is kept, and records the reason."""
