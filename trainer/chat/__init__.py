"""Conversations to encoded sets: which tokens are the assistant's, and windows that hold several conversations."""
