"""Log records of a process, without those of libraries that log every connection."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer.common.display import escaped
from trainer.common.errors import StorageError
from trainer.common.progress import emit
from trainer.store.names import LOGS
from trainer.store.storage import Store

log = logging.getLogger(__name__)


LINES, SECONDS = 200, 60.0
"""At most this many lines per this many seconds go to the caller of a stage; warnings always do."""

TALKATIVE = ("aiobotocore", "botocore", "httpx", "httpx2")


def start_logging(level: int, handler: logging.Handler) -> None:
    """Send this process's records of at least a level to a handler."""
    handler.setLevel(level)
    logging.basicConfig(level=logging.INFO, handlers=[handler])  # `kept_log` needs INFO, whatever this handler's level
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


def for_terminals() -> logging.Handler:
    """A handler that writes lines with the time to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Escaped("%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"))
    return handler


class _Escaped(logging.Formatter):
    """Lines for standard error."""

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record), sys.stderr)


class AsEvents(logging.Handler):
    """Sends records as events to standard output, as many as a server can show; with the rank if there are several."""

    def __init__(self, rank: int | None = None) -> None:
        super().__init__()
        self._whose = {} if rank is None else {"rank": rank}
        self._since, self._passed, self._left_out = time.monotonic(), 0, 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING or self._may_pass():
            self._send(record.levelname, record.name, record.getMessage())

    def close(self) -> None:
        self.log_left_out()
        super().close()

    def _may_pass(self) -> bool:
        now = time.monotonic()
        if now - self._since >= SECONDS:
            self.log_left_out()
            self._since, self._passed = now, 0
        may = self._passed < LINES
        self._passed += may
        self._left_out += not may
        return may

    def log_left_out(self) -> None:
        """Log how many lines were left out, if any."""
        if self._left_out:
            self._send(
                "INFO", __name__, f"{self._left_out} lines are left out here; {LOGS} in the run's folder has them"
            )
        self._left_out = 0

    def _send(self, level: str, logger: str, message: str) -> None:
        emit(sys.stdout, "log", level=level, logger=logger, message=message, **self._whose)


@contextmanager
def kept_log(store: Store, run: str, rank: int) -> Iterator[None]:
    """Also append every record of a rank to a log in the run's folder, which earlier starts may have begun.

    A remote store receives the log when the block ends; the first rank's log also whenever the run's other records are
    uploaded (metrics_writer.py).
    """
    key = f"{run}/{LOGS}/rank-{rank}.log"
    path = store.fetch(key) if store.local else store.begin(key, store.find_bytes(key) or b"")
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = _Kept(path)
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
        with suppress(OSError):  # `handleError` has already logged it
            handler.close()
        if store.local is None:
            try:
                store.put(Path(handler.baseFilename), key)
            except StorageError as error:
                log.warning("the run's log could not be uploaded: %s", error)


class _Kept(logging.FileHandler):
    """Appends records to a file until a write fails; such a failure does not end training."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def handleError(self, record: logging.LogRecord) -> None:
        logging.root.removeHandler(self)
        log.warning("%s can no longer be written: %s", self.baseFilename, sys.exc_info()[1])
