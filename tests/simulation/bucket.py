"""A bucket in memory with s3fs's interface: each request is a step, and some requests fail.

A refused request is retried several times, as by botocore. A request may be late: it arrives even if its sender has
died, and arrives twice if it was sent again. An answer may be lost after the operation. Listings come in pages, between
which other processes run. A bit of a stored object may flip.
"""

import errno
import hashlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

from botocore.exceptions import ClientError

from tests.simulation.world import Awaited, Thread, World

URL = "s3://bucket/store"
T = TypeVar("T")
PAGE = 5
"""Names per page of a listing, and keys per deletion: few, so that other processes run in between."""
TRIES, PAUSE = 5, 0.2
"""How often a request is sent, and the seconds before the second time; doubled each time."""
LATE = 1.0, 45.0
PATIENCE = 20.0
"""Range of a late request's seconds, and the seconds after which it is sent again."""


class Object(NamedTuple):
    """The `written` bytes and the present `data`, in which a bit may have flipped without a change of the tag."""

    data: bytes
    modified: float
    written: bytes

    @property
    def etag(self) -> str:
        return _tag(self.written)


class Listed(NamedTuple):
    """A key in a listing, with its object, or with a folder's first object."""

    key: str
    object: Object


@dataclass
class Faults:
    """The shares of refused, unanswered and late requests, and the time until which all are refused."""

    refused: float = 0.0
    unanswered: float = 0.0
    late: float = 0.0
    away_until: float = 0.0


@dataclass
class Bucket:
    """Objects, their sorted keys, the keys in which a bit has ever flipped, and callbacks for writes, removals, and
    reads of what is not there.
    """

    world: World
    faults: Faults
    objects: dict[str, Object] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    flipped: set[str] = field(default_factory=set)
    written: Callable[[str], None] = lambda key: None
    removed: Callable[[str], None] = lambda key: None
    missed: Callable[[str], None] = lambda key: None

    def _ask(self, deed: Callable[[], T]) -> T:
        """One request."""
        world, faults = self.world, self.faults
        if world.running is None:  # a check from outside the simulation
            return deed()
        world.request()
        for tries in range(TRIES):
            if world.now >= faults.away_until and world.draw.random() >= faults.refused:
                break
            world.sleep(PAUSE * 2**tries)
        else:
            raise _busy()
        answer = self._late(deed) if world.draw.random() < faults.late else deed()
        if world.draw.random() < faults.unanswered:
            world.request()
            if world.draw.random() < 0.5:
                raise _busy()
            answer = deed()  # sent again by the library
        world.request()
        return answer

    def _late(self, deed: Callable[[], T]) -> T:
        """A late request: wait for it, and send it again if that takes too long."""
        world, arrived = self.world, Awaited(self.world)
        seconds = world.draw.uniform(*LATE)

        def travel() -> None:
            world.sleep(seconds)
            arrived.do(deed)

        Thread(world.process, travel, world, sent=True)
        if seconds > PATIENCE:
            world.sleep(PATIENCE)
            return deed()
        answer: T = arrived.result()
        return answer

    def flip(self, key: str) -> None:
        """Flip a bit of a stored object."""
        before, draw = self.objects[key], self.world.draw
        data = bytearray(before.data)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        self.objects[key] = before._replace(data=bytes(data))
        self.flipped.add(key)

    def _require_room(self) -> None:
        """Raise if the writing machine's disk, which stores sent and fetched files, is full."""
        if self.world.running and self.world.now < self.world.process.machine.full_until:
            raise OSError(errno.ENOSPC, "No space left on device")

    def _put(self, key: str, data: bytes, written: bytes | None = None) -> None:
        if key not in self.objects:
            insort(self.keys, key)
        self.objects[key] = Object(data, self.world.now, data if written is None else written)
        self.written(key)

    def _delete(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]
            self.removed(key)

    def _delete_all(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._delete(key)

    def _get(self, key: str) -> Object:
        try:
            return self.objects[key]
        except KeyError:
            self.missed(key)
            raise FileNotFoundError(key) from None

    def _list(self, prefix: str, folded: bool = False) -> list[Listed]:
        """List keys with a prefix; with `folded`, only up to the next slash.

        The list is read in pages. Objects that are written or removed meanwhile may or may not be in it.
        """
        found: list[Listed] = []
        while added := self._ask(partial(self._page, prefix, found[-1].key if found else "", folded)):
            found += added
            if len(added) < PAGE:
                break
        return found

    def _page(self, prefix: str, after: str, folded: bool) -> list[Listed]:
        """The page after a key; after a folded key, the page after all keys that begin with it."""
        page: list[Listed] = []
        at = bisect_left(self.keys, _behind(after) if after else prefix)
        while at < len(self.keys) and len(page) < PAGE and (key := self.keys[at]).startswith(prefix):
            slash = key.find("/", len(prefix)) if folded else -1
            page.append(Listed(key if slash < 0 else key[: slash + 1], self.objects[key]))
            at = bisect_left(self.keys, _behind(page[-1].key), at)
        return page

    # The interface of s3fs.

    def invalidate_cache(self) -> None:
        """Do nothing: there is no cache."""

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def call_s3(self, method: str, **given: Any) -> Any:
        if method == "list_multipart_uploads":
            return {"IsTruncated": False}
        if method == "delete_objects":
            keys = [f"{given['Bucket']}/{each['Key']}" for each in given["Delete"]["Objects"]]
            for first in range(0, len(keys), PAGE):
                self._ask(partial(self._delete_all, keys[first : first + PAGE]))
            return {}
        key = f"{given['Bucket']}/{given['Key']}"
        if method == "head_object":
            found = self._ask(lambda: self._get(key))
            modified = datetime.fromtimestamp(found.modified, UTC)
            return {"ContentLength": len(found.data), "ETag": found.etag, "LastModified": modified}
        assert method == "put_object"

        def swap() -> None:
            if self._get(key).etag != given["IfMatch"]:
                raise OSError("At least one of the pre-conditions you specified did not hold")
            self._put(key, given["Body"])

        self._ask(swap)
        return {"ETag": _tag(given["Body"])}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return self._ask(lambda: self._get(path)).data[start:end]

    def get_file(self, path: str, local: str) -> None:
        self._require_room()
        data = self.cat_file(path)
        with open(local, "wb") as file:
            file.write(data)

    def put_file(self, local: str, path: str) -> None:
        self._require_room()
        with open(local, "rb") as file:
            data = file.read()
        self._ask(lambda: self._put(path, data))

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite", **_: Any) -> None:
        def write() -> None:
            if mode == "create" and path in self.objects:
                raise FileExistsError(path)
            self._put(path, data)

        self._ask(write)

    def cp_file(self, source: str, path: str) -> None:
        def copy() -> None:
            each = self._get(source)
            self._put(path, each.data, each.written)

        self._ask(copy)

    def rm_file(self, path: str) -> None:
        self._ask(lambda: self._delete(path))

    def ls(self, path: str, detail: bool, **_: Any) -> list[Any]:
        found = self._list(f"{path.rstrip('/')}/", folded=True)
        return [{"name": key, "size": len(each.data)} if detail else key for key, each in found]

    def find(self, path: str, **_: Any) -> dict[str, dict[str, Any]]:
        return {
            key: {
                "name": key,
                "type": "file",
                "size": len(each.data),
                "LastModified": datetime.fromtimestamp(each.modified, UTC),
            }
            for key, each in self._list(path)
            if key == path or key.startswith(f"{path}/")
        }


@lru_cache(maxsize=1024)
def _tag(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def _behind(key: str) -> str:
    """The smallest key after a key; if that ends with a slash, after all keys that begin with it."""
    return f"{key[:-1]}{chr(ord('/') + 1)}" if key.endswith("/") else f"{key}\0"


def _busy() -> ClientError:
    answer = {"ResponseMetadata": {"HTTPStatusCode": 503}, "Error": {"Code": "SlowDown", "Message": "Slow Down"}}
    return ClientError(answer, "any")
