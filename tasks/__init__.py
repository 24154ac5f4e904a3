"""Prefect tasks: each runs one stage of the trainer and shows how it goes."""
