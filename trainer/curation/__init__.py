"""Which documents of the raw text stay: decided once, for each piece, with the reason."""
