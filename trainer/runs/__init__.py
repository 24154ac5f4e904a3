"""A run's folder: its identity, its records, its logs, and how far it has come."""
