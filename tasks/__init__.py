"""Prefect tasks: each runs one stage of the trainer and shows its progress."""

OWN_SERVER = "HEADRACE_OWN_SERVER"
"""Set in the environment of a command that has started its own Prefect server, which has no pages."""
