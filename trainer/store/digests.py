"""Digests of what is read, however much: between two blocks a stop is heeded."""

import hashlib
import sys
from typing import IO

from trainer.common.stopping import check_stop

BLOCK = 2**20


def digest_stream(file: IO[bytes], size: int = sys.maxsize) -> str:
    """The SHA-256 of so many bytes of an open file, from where it stands, or of as many as there are."""
    digest = hashlib.sha256()
    while block := file.read(min(BLOCK, size)):
        check_stop()
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()
