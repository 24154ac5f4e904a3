"""Conversations to encoded sets, as a chat template writes them."""
