"""The pictures that the pages show, taken in a real browser."""

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "images"
"""Where they lie."""
