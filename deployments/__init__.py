"""Prefect servers, workers and containers that run the flows; `local.py` is `headrace up`."""
