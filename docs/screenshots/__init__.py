"""The screenshots in the pages, taken in a real browser."""

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "images"
"""The folder of the screenshots."""
