"""Conversations to encoded sets, rendered by a chat template."""
