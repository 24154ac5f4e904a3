"""What a listing of a store says of its files."""

from datetime import datetime
from typing import NamedTuple


class Stored(NamedTuple):
    """A file, or an upload that was never completed, which has an id.

    Of the local files that share their bytes with others: the number of those bytes, and how many names they have.
    """

    key: str
    size: int
    modified: datetime
    upload: str = ""
    inode: int = 0
    links: int = 1
