"""Detection and retry of transient errors, such as an unreachable store or a full disk.

    HEADRACE_PATIENCE   seconds to retry, from the first failure; by default six hours

A wrong address looks like an unreachable server, unless no name server knows the host. So at the start of a job errors
are retried for a shorter time: `AT_THE_START`.
"""

import errno
import logging
import os
import re
import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

from trainer.common.display import duration
from trainer.common.errors import EXIT_BAD_INPUT, EXIT_CRASHED, EXIT_PREEMPTED, ConfigError, PipelineError, RankLost
from trainer.common.stopping import stop_requested, wait

log = logging.getLogger(__name__)


T = TypeVar("T")

PATIENCE = "HEADRACE_PATIENCE"
DEFAULT_SECONDS = 6 * 3600.0
AT_THE_START = 60.0

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between two attempts; doubled after each attempt."""

ANOTHER = 900.0
"""Seconds after which a failing attempt counts as a new outage: longer than a client's own retries take."""

LONG_ATTEMPTS = 3
"""Number of such long attempts in a row after which to give up."""

FULL = (errno.ENOSPC, errno.EDQUOT)
AWAY = (
    errno.EBUSY, errno.EREMOTEIO,  # raised by s3fs for a server that is too busy or broken
    errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.ENOTCONN, errno.ESTALE,
)  # fmt: skip
TRANSPORT = {
    ("botocore.exceptions", "ConnectionError"), ("botocore.exceptions", "HTTPClientError"),
    ("botocore.exceptions", "IncompleteReadError"), ("botocore.exceptions", "CredentialRetrievalError"),
    ("aiohttp.client_exceptions", "ClientError"),
    ("httpx", "RemoteProtocolError"), ("httpx2", "RemoteProtocolError"),  # which one depends on the hub's library
}  # fmt: skip
"""Connection errors of libraries that may not be loaded, so by name."""
LASTING = {
    ("botocore.exceptions", "SSLError"), ("aiohttp.client_exceptions", "ClientSSLError"),
    ("aiohttp.client_exceptions", "InvalidURL"),
}  # fmt: skip
"""Subclasses of these errors that are permanent: invalid certificates and addresses."""
UNRESOLVED = {("aiohttp.client_exceptions", "ClientConnectorDNSError")}
"""Name resolution failed: the host is misspelt, or the name server is unreachable."""
BROKEN_OFF = ("BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch")
"""S3 error codes for a request body that arrived damaged or incomplete."""


def is_transient(error: BaseException) -> bool:
    """Whether an error is transient: by its `transient` for a `PipelineError`, else by its type and its causes."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, PipelineError):
            return seen.transient
        if number_of(seen) in (*FULL, *AWAY) or _is_away(seen):
            return True
        seen = seen.__cause__
    return False


def exit_status(error: Exception) -> int:
    """The exit status after an error: 75 if transient, 2 if the user must correct something, 1 for a crash."""
    if isinstance(error, RankLost):
        return error.status
    if is_transient(error):
        return EXIT_PREEMPTED
    return EXIT_BAD_INPUT if isinstance(error, PipelineError) else EXIT_CRASHED


def waited_for(error: BaseException) -> bool:
    """Whether an error has been retried until the time limit."""
    return bool(getattr(error, "waited_for", False))


def number_of(error: BaseException) -> int | None:
    """An error's errno; safetensors raises its own error type, with the number only in the message."""
    spelt = re.search(r"\(os error (\d+)\)", str(error))
    return getattr(error, "errno", None) or (int(spelt[1]) if spelt else None)


def _is_away(error: BaseException) -> bool:
    kinds = {(kind.__module__, kind.__name__) for kind in type(error).__mro__}
    answer: Any = getattr(error, "response", None)
    if isinstance(answer, dict):  # botocore's
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return is_busy(status) or answer.get("Error", {}).get("Code") in BROKEN_OFF
    if ("aiohttp.client_exceptions", "ClientResponseError") in kinds:
        return is_busy(getattr(error, "status", 0))
    if kinds & LASTING or isinstance(_within(error), ValueError | FileNotFoundError):
        return False  # such as a header that ends in a line break, or a missing file of certificates
    if isinstance(error, socket.gaierror) or kinds & UNRESOLVED:
        return number_of(error) in (socket.EAI_AGAIN, None)  # aiodns, if installed, sets no number
    refused = isinstance(error, ConnectionError | TimeoutError) and not isinstance(error, BrokenPipeError)
    return refused or bool(kinds & TRANSPORT)


def _within(error: BaseException) -> object:
    """The error that botocore's `HTTPClientError` reports."""
    fields = getattr(error, "kwargs", None)
    return fields.get("error") if isinstance(fields, dict) else None


def is_busy(status: int) -> bool:
    """Whether a request with this HTTP status may succeed later."""
    return status == 429 or (status >= 500 and status not in (501, 505))


def patience() -> float:
    """Seconds to retry, from the environment; raises `ConfigError` if the value is invalid."""
    value = os.environ.get(PATIENCE) or str(DEFAULT_SECONDS)
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise ConfigError(f"{PATIENCE} is {value!r}, expected a number of seconds, at least 0")
    return seconds


def retry_transient(work: Callable[[], T], warn: Callable[[str], object] = log.warning, most: float | None = None) -> T:
    """Call `work` until it succeeds, retrying transient errors after growing pauses; other errors are raised.

    Gives up, raising the last error, after `patience()` seconds, or `most` if that is less; if the error is already
    marked `waited_for`; and after one more attempt when this process is asked to stop.
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
            warn(f"{error} (retrying in {duration(pause)}, for at most {duration(left)})")
            wait(pause)
            if stop_requested():
                return work()  # the condition may have passed by now
            pause = min(2 * pause, LONGEST_PAUSE)
