"""Files compared with their digests; what was compared on this machine and has not changed since is not read again.

    HEADRACE_CACHE/verified/     one small file for each path: a digest of all that was known of it when it was compared

A file counts as unchanged as long as its size, inode and times are the same. A memory that is damaged, lost or cannot be
written costs another look, and nothing else.
"""

import fcntl
import hashlib
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import fsspec

from trainer.common.errors import WrongContent
from trainer.store.digests import digest_stream

FOLDER = "HEADRACE_CACHE"

RACY_SECONDS = 2.0
"""A file changed this recently could change again within its clock's tick, so what was seen of it is not remembered."""

UNUSED_SECONDS = 90 * 24 * 60 * 60


def machine_cache() -> Path:
    """The folder for what this machine keeps of its own: as the environment says, else in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(os.environ.get(FOLDER) or Path(home, "headrace")).expanduser()
    except RuntimeError:  # a user of a container who has no home
        return Path(tempfile.gettempdir(), f"headrace-{os.getuid()}")


def require_content(path: str | Path, sha256: str, anew: bool = False, linked: bool = False) -> None:
    """Compare a file's bytes with their digest, unless that was done and the file has not changed since; `anew`: even then.

    A URL is remembered if its file system gives entity tags. Of a file that is `linked`, which gets and loses second names,
    the time of the last change of its names and rights does not count. Raises `WrongContent`, and `OSError` if the file
    cannot be read.
    """
    record = machine_cache() / "verified" / _digest(str(path))
    if not anew and _remembers(record, path, sha256, linked):
        return
    with _alone(record):  # of several processes that begin at once, one reads the file
        if not anew and _remembers(record, path, sha256, linked):
            return
        begun, before = time.time(), _state(path, linked)
        found = digest_bytes(path)
        if found != sha256:
            _forget(record)
            raise WrongContent(f"does not match its checksum (sha256 {found[:12]}…, its manifest says {sha256[:12]}…)")
        if before is not None and before == _state(path, linked) and begun - _changed(path, linked) > RACY_SECONDS:
            _remember(record, _seen(path, sha256, before))


def digest_bytes(path: str | Path) -> str:
    """The SHA-256 of a file, or of what a URL names."""
    with fsspec.open(path, "rb").open() if _is_remote(path) else open(path, "rb") as file:
        return digest_stream(file)


def forget_unused() -> None:
    """Remove what was remembered of files that nobody has used for a long time."""
    with suppress(OSError):
        for entry in os.scandir(machine_cache() / "verified"):
            with suppress(FileNotFoundError):
                if time.time() - entry.stat().st_mtime > UNUSED_SECONDS:
                    os.unlink(entry.path)


def _remembers(record: Path, path: str | Path, sha256: str, linked: bool) -> bool:
    state = _state(path, linked)
    if state is None:
        return False
    with suppress(OSError):
        if record.read_bytes() == _seen(path, sha256, state):
            os.utime(record)
            return True
    return False


def _remember(record: Path, seen: bytes) -> None:
    with suppress(OSError):
        fresh = record.with_name(f"{record.name}.{uuid.uuid4().hex[:12]}")
        fresh.write_bytes(seen)
        os.replace(fresh, record)


def _forget(record: Path) -> None:
    with suppress(OSError):
        record.unlink()


def _seen(path: str | Path, sha256: str, state: str) -> bytes:
    """What a record holds: it is right for this path, digest and state alone, so it needs no checksum of its own."""
    return _digest(f"{path}\n{sha256}\n{state}").encode()


def _state(path: str | Path, linked: bool) -> str | None:
    """What changes with a file; None if that cannot be told. Raises `FileNotFoundError`."""
    if _is_remote(path):
        fs, full = fsspec.url_to_fs(path)
        info = fs.info(full)
        tag = info.get("ETag") or info.get("etag")
        return f"{info['size']} {tag}" if tag else None
    state = os.stat(path)
    return f"{state.st_size} {state.st_dev} {state.st_ino} {state.st_mtime_ns} {'' if linked else state.st_ctime_ns}"


def _changed(path: str | Path, linked: bool) -> float:
    """When a local file last changed, in seconds."""
    if _is_remote(path):
        return 0.0
    state = os.stat(path)
    return state.st_mtime if linked else max(state.st_mtime, state.st_ctime)


def _is_remote(path: str | Path) -> bool:
    return isinstance(path, str) and "://" in path


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def _alone(record: Path) -> Iterator[None]:
    """Keep other processes and threads out of the same block, where that can be; one that dies lets go."""
    with ExitStack() as held:
        with suppress(OSError):
            record.parent.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context(open(record.with_name(f"{record.name[:2]}.lock"), "a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
