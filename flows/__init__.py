"""Prefect flows: whole jobs, composed of tasks."""
