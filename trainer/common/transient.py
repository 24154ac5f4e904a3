"""Transient errors, and trying again: a store that cannot be reached, a disk that is full.

    HEADRACE_PATIENCE   seconds to go on trying, from the first failure; by default six hours

A wrong address looks like a server that is away, unless no name server knows the host. So what a job begins with is not
waited for as long: `AT_THE_START`.
"""

import errno
import logging
import os
import re
import socket
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from trainer.common.errors import EXIT_BAD_INPUT, EXIT_CRASHED, EXIT_PREEMPTED, ConfigError, PipelineError, RankLost
from trainer.common.formats import duration
from trainer.common.stopping import stop_requested, wait

log = logging.getLogger(__name__)


T = TypeVar("T")
P = ParamSpec("P")

PATIENCE = "HEADRACE_PATIENCE"
DEFAULT_SECONDS = 6 * 3600.0
AT_THE_START = 60.0

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between two attempts: doubled each time."""

ANOTHER = 900.0
"""An attempt that went on for so many seconds before it failed has met another outage than the one before it: longer
than a client's own attempts take."""

LONG_ATTEMPTS = 3
"""So many of them in a row, each of which failed in the end, are enough."""

FULL = (errno.ENOSPC, errno.EDQUOT)
AWAY = (
    errno.EBUSY, errno.EREMOTEIO,  # as s3fs says of a server that is too busy, or broken
    errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.ENOTCONN, errno.ESTALE,
)  # fmt: skip
TRANSPORT = {
    ("botocore.exceptions", "ConnectionError"), ("botocore.exceptions", "HTTPClientError"),
    ("botocore.exceptions", "IncompleteReadError"), ("botocore.exceptions", "CredentialRetrievalError"),
    ("aiohttp.client_exceptions", "ClientError"),
}  # fmt: skip
"""How libraries that local stores do not load say that a connection failed."""
LASTING = {
    ("botocore.exceptions", "SSLError"), ("aiohttp.client_exceptions", "ClientSSLError"),
    ("aiohttp.client_exceptions", "InvalidURL"),
}  # fmt: skip
"""What they count among those, and what stays as it is: a certificate, an address."""
UNRESOLVED = {("aiohttp.client_exceptions", "ClientConnectorDNSError")}
"""A host without an address: it is misspelt, or it is the name server that is away."""
BROKEN_OFF = ("BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch")
"""Codes of S3 for a body that did not arrive as it was sent."""


def is_transient(error: BaseException) -> bool:
    """Whether an error is of what ends by itself: as it says if it is one of ours, else by what it was raised from."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, PipelineError):
            return seen.transient
        if number_of(seen) in (*FULL, *AWAY) or _is_away(seen):
            return True
        seen = seen.__cause__
    return False


def exit_status(error: Exception) -> int:
    """The exit status of a process that an error ended: 75 for what passes, 2 for what a person must change, 1 for a
    crash.
    """
    if isinstance(error, RankLost):
        return error.status
    if is_transient(error):
        return EXIT_PREEMPTED
    return EXIT_BAD_INPUT if isinstance(error, PipelineError) else EXIT_CRASHED


def waited_for(error: BaseException) -> bool:
    """Whether an error was met again and again for as long as patience lasts."""
    return bool(getattr(error, "waited_for", False))


def number_of(error: BaseException) -> int | None:
    """An error's number; safetensors has an error of its own, which only spells it out."""
    spelt = re.search(r"\(os error (\d+)\)", str(error))
    return getattr(error, "errno", None) or (int(spelt[1]) if spelt else None)


def _is_away(error: BaseException) -> bool:
    kinds = {(kind.__module__, kind.__name__) for kind in type(error).__mro__}
    answer: Any = getattr(error, "response", None)
    if isinstance(answer, dict):  # botocore's
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return _is_busy(status) or answer.get("Error", {}).get("Code") in BROKEN_OFF
    if ("aiohttp.client_exceptions", "ClientResponseError") in kinds:
        return _is_busy(getattr(error, "status", 0))
    if kinds & LASTING:
        return False
    if isinstance(error, socket.gaierror) or kinds & UNRESOLVED:
        return number_of(error) in (socket.EAI_AGAIN, None)  # aiodns, where it is installed, gives no number
    refused = isinstance(error, ConnectionError | TimeoutError) and not isinstance(error, BrokenPipeError)
    return refused or bool(kinds & TRANSPORT)


def _is_busy(status: int) -> bool:
    """Whether an HTTP status is of a server that may answer otherwise later."""
    return status == 429 or (status >= 500 and status not in (501, 505))


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


def retry_transient(work: Callable[[], T], tell: Callable[[str], object] = log.warning, most: float | None = None) -> T:
    """Do something again as long as it ends by what passes, after growing pauses; raises what it raises otherwise.

    It is given up after `patience()` seconds, or `most` if that is less, and after one more attempt when this process
    is asked to stop: then raises the last error. So it is where the work itself, or another process that did it, has
    waited as long.
    """
    limit = patience() if most is None else min(patience(), most)
    pause, since, long = FIRST_PAUSE, None, 0
    while True:
        begun = time.monotonic()
        try:
            return work()
        except Exception as error:
            now = time.monotonic()
            long = long + 1 if now - begun > ANOTHER else 0
            if since is None or long:
                pause, since = FIRST_PAUSE, now
            left = since + limit - now
            if left <= 0 or long >= LONG_ATTEMPTS:
                error.waited_for = True  # type: ignore[attr-defined]
            if waited_for(error) or stop_requested() or not is_transient(error):
                raise
            pause = min(pause, left)
            tell(f"{error} (tried again in {duration(pause)}, for {duration(left)} at most)")
            wait(pause)
            if stop_requested():
                return work()  # what it waits for may be there by now
            pause = min(2 * pause, LONGEST_PAUSE)
