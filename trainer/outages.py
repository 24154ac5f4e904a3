"""What passes by itself, and waiting for it: a store that cannot be reached, a disk that is full.

    HEADRACE_PATIENCE   seconds to go on trying, from the first failure; by default six hours

A wrong address looks like a server that is away. So what a job begins with is not waited for as long: `AT_THE_START`.
"""

import errno
import logging
import os
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from trainer.errors import ConfigError
from trainer.formats import duration
from trainer.stopping import stop_requested, wait

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE = "HEADRACE_PATIENCE"
DEFAULT_SECONDS = 6 * 3600.0
AT_THE_START = 60.0

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between two attempts: doubled each time."""

ANOTHER = 900.0
"""An attempt that went on for so many seconds before it failed has met another outage than the one before it: longer than a
client's own attempts take."""

FULL = (errno.ENOSPC, errno.EDQUOT)
AWAY = (
    errno.EBUSY, errno.EREMOTEIO,  # as s3fs says of a server that is too busy, or broken
    errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.ENOTCONN, errno.ESTALE,
)  # fmt: skip
TRANSPORT = {
    "botocore.exceptions": ("ConnectionError", "HTTPClientError", "IncompleteReadError"),
    "aiohttp.client_exceptions": ("ClientError",),
}
"""How libraries that local stores do not load say that a connection failed."""


def passes(error: BaseException) -> bool:
    """Whether an error, or what it was raised from, is of what ends by itself."""
    seen: BaseException | None = error
    while seen is not None:
        if getattr(seen, "passes", False) or number_of(seen) in (*FULL, *AWAY) or _is_away(seen):
            return True
        seen = seen.__cause__
    return False


def waited_for(error: BaseException) -> bool:
    """Whether an error was met again and again for as long as patience lasts."""
    return bool(getattr(error, "waited_for", False))


def number_of(error: BaseException) -> int | None:
    """An error's number; safetensors has an error of its own, which only spells it out."""
    spelt = re.search(r"\(os error (\d+)\)", str(error))
    return getattr(error, "errno", None) or (int(spelt[1]) if spelt else None)


def _is_away(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    kinds = [(kind.__module__, kind.__name__) for kind in type(error).__mro__]
    if ("botocore.exceptions", "SSLError") in kinds:  # a certificate that is wrong stays so
        return False
    answer: Any = getattr(error, "response", None)
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) if isinstance(answer, dict) else 0
    return status >= 500 or status == 429 or any(name in TRANSPORT.get(module, ()) for module, name in kinds)


def patience() -> float:
    """Seconds that are waited, as the environment says. Raises `ConfigError` if that is no number."""
    said = os.environ.get(PATIENCE) or str(DEFAULT_SECONDS)
    try:
        seconds = float(said)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise ConfigError(f"{PATIENCE} is {said!r}; it must be a number of seconds, at least 0")
    return seconds


def patiently(work: Callable[[], T], tell: Callable[[str], object] = log.warning, most: float | None = None) -> T:
    """Do something again as long as it ends by what passes, after growing pauses; raises what it raises otherwise.

    It is given up after `patience()` seconds, or `most` if that is less, and when this process is asked to stop: then raises
    the last error. So it is where the work itself, or another process that did it, has waited as long.
    """
    limit = patience() if most is None else min(patience(), most)
    pause, since = FIRST_PAUSE, None
    while True:
        begun = time.monotonic()
        try:
            return work()
        except Exception as error:
            now = time.monotonic()
            if since is None or now - begun > ANOTHER:
                pause, since = FIRST_PAUSE, now
            left = since + limit - now
            if left <= 0:
                error.waited_for = True  # type: ignore[attr-defined]
            if waited_for(error) or stop_requested() or not passes(error):
                raise
            pause = min(pause, left)
            tell(f"{error} (tried again in {duration(pause)}, for {duration(left)} at most)")
            wait(pause)
            if stop_requested():
                raise
            pause = min(2 * pause, LONGEST_PAUSE)
