"""Ways to damage a file of a store whatever it holds: its bytes, or the file as a whole."""

import hashlib
import os
import random
import shutil
import time
from pathlib import Path

from trainer.store.checked_files import require_content

TICK_SECONDS = 0.02
"""Longer than file systems take to give a later time to a file that is written to."""


def flip(store: Path, key: str, draw: random.Random) -> bool:
    data = bytearray((store / key).read_bytes())
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bool(data) and replace(store / key, bytes(data))


def rot(store: Path, key: str, draw: random.Random) -> bool:
    """The same in place: the file keeps its inode and size, after it was found intact and remembered so; its time
    changes.
    """
    path = store / key
    data = path.read_bytes()
    if not data:
        return False
    replace(path, data)
    require_content(path, hashlib.sha256(data).hexdigest())
    time.sleep(TICK_SECONDS)
    place = draw.randrange(len(data))
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(bytes([data[place] ^ 1 << draw.randrange(8)]))
    return True


def truncate(store: Path, key: str, draw: random.Random) -> bool:
    data = (store / key).read_bytes()
    return bool(data) and replace(store / key, data[: draw.randrange(len(data))])


def empty(store: Path, key: str, draw: random.Random) -> bool:
    return (store / key).stat().st_size > 0 and replace(store / key, b"")


def garble(store: Path, key: str, draw: random.Random) -> bool:
    return replace(store / key, draw.randbytes(draw.choice((1, 7, 100, 5000))))


def append(store: Path, key: str, draw: random.Random) -> bool:
    breaks = b"\n\n" if key.endswith(".jsonl") else b"\n\n\0"  # alone they are no damage to JSON
    return replace(
        store / key, (store / key).read_bytes() + draw.choice((b"\0", b"{}", breaks, b"garbage", b"\xff\xfe"))
    )


def overwrite(store: Path, key: str, draw: random.Random) -> bool:
    """A stretch of zeros, as a disk gives back."""
    data = (store / key).read_bytes()
    start = draw.randrange(max(1, len(data)))
    end = start + draw.choice((4, 64, 4096))
    changed = data[:start] + b"\0" * len(data[start:end]) + data[end:]
    return changed != data and replace(store / key, changed)


def delete(store: Path, key: str, draw: random.Random) -> bool:
    (store / key).unlink()
    return True


def folder(store: Path, key: str, draw: random.Random) -> bool:
    """A folder in the file's place, empty or not."""
    (store / key).unlink()
    (store / key).mkdir()
    if draw.random() < 0.5:
        (store / key / "file").write_bytes(b"x")
    return True


def link(store: Path, key: str, draw: random.Random) -> bool:
    """A link to the same bytes outside of the store."""
    outside = store.with_name(f"{store.name}-outside-{key.replace('/', '-')}")
    shutil.move(store / key, outside)
    (store / key).symlink_to(outside)
    return True


def other(store: Path, key: str, draw: random.Random) -> bool:
    """The file of the same name, or ending, of another folder."""
    here = store / key
    found = [
        path
        for path in sorted(store.glob(f"{key.split('/')[0]}/**/*{here.suffix or here.name}"))
        if path.is_file() and path != here and path.read_bytes() != here.read_bytes() and _alike(path.name, here.name)
    ]
    return bool(found) and replace(here, draw.choice(found).read_bytes())


def _alike(name: str, other: str) -> bool:
    return name == other or (name.split("-")[0] == other.split("-")[0] and Path(name).suffix == Path(other).suffix)


def replace(path: Path, data: bytes) -> bool:
    """Put a new file in the place of one that shares its bytes with the undamaged store."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(data)
    os.replace(fresh, path)
    return True


BYTES = {
    "flip": flip, "rot": rot, "truncate": truncate, "empty": empty, "garble": garble, "append": append,
    "overwrite": overwrite,
    "delete": delete, "folder": folder, "link": link, "other": other,
}  # fmt: skip
