"""What a listing of a store says of its files."""

from datetime import datetime
from typing import NamedTuple


class Stored(NamedTuple):
    """A file, or an upload that was never completed, which has an id."""

    key: str
    size: int
    modified: datetime
    upload: str = ""
