"""What a command prints."""

import os
import sys


def show(text: str) -> None:
    """Print a text, also to a reader that stops early, such as `head`."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
