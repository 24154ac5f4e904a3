"""Prefect tasks: each runs one stage of the trainer and shows how it goes."""

OWN_SERVER = "HEADRACE_OWN_SERVER"
"""Set in the environment of a command that has started a Prefect server for itself, which shows no pages."""
