"""The library: everything from raw text to an evaluated model that works without an orchestrator."""

__version__ = "0.1.0"
