"""Loading libraries without the garbage collector, which would walk what they make again and again: a quarter of the time."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """For the length of a block that loads libraries. What they made stays, and is left out of all later collections."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
