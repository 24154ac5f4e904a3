"""Loops over characters and words, compiled to machine code when first called, and kept on disk for later processes."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function as machine code, which other threads run beside.

    What was compiled is kept as long as the function's own file is unchanged: so it may call and name only what stands there.
    """
    return cast(Function, numba.njit(cache=True, nogil=True)(function))
