"""Ways to damage one file of a store, each decided by chance: bytes, JSON values, records sealed again, whole files."""

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainer.manifest import MANIFEST, digest_file, seal
from trainer.seals import seal_line

HUGE = (10**30, -(10**30), 1e308, 2**63, 2**64)
FREE = {"loss", "prose", "lines"}
"""Keys of maps from figures and corpora: of those, any may be missing from a record."""
NAN, INFINITY = float("nan"), float("inf")
WRONG: tuple[Any, ...] = (None, True, "x", "", [], {}, 0, -1, 1.5, [None], {"x": 1}, "../../etc/passwd", NAN, INFINITY)

Damage = Callable[[Path, str, random.Random], bool]
"""Damages the file under a key of the store at a path; returns whether there was anything to damage."""


def flip(store: Path, key: str, draw: random.Random) -> bool:
    data = bytearray((store / key).read_bytes())
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bool(data) and replace(store / key, bytes(data))


def truncate(store: Path, key: str, draw: random.Random) -> bool:
    data = (store / key).read_bytes()
    return bool(data) and replace(store / key, data[: draw.randrange(len(data))])


def empty(store: Path, key: str, draw: random.Random) -> bool:
    return (store / key).stat().st_size > 0 and replace(store / key, b"")


def garble(store: Path, key: str, draw: random.Random) -> bool:
    return replace(store / key, draw.randbytes(draw.choice((1, 7, 100, 5000))))


def append(store: Path, key: str, draw: random.Random) -> bool:
    return replace(store / key, (store / key).read_bytes() + draw.choice((b"\0", b"{}", b"\n\n", b"garbage", b"\xff\xfe")))


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
    outside = store.with_name(f"{store.name}-outside")
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


def change(store: Path, key: str, draw: random.Random) -> bool:
    """One value of a JSON file changed, its checksums left as they are."""
    values = _read(store / key)
    return values is not None and replace(store / key, _mutated(values, draw))


def repeat(store: Path, key: str, draw: random.Random) -> bool:
    """A key that stands twice in a JSON object, with another value."""
    values = _read(store / key)
    if not isinstance(values, dict) or not values:
        return False
    name = draw.choice(sorted(values))
    text = json.dumps(values)
    return replace(store / key, f"{text[:-1]}, {json.dumps(name)}: {json.dumps(draw.choice(WRONG))}}}".encode())


def reseal(store: Path, key: str, draw: random.Random) -> bool:
    """One value made impossible, and every checksum made right again, as a bug or whoever can write there would."""
    path = store / key
    if re.search(r"/(config|generation_config|tokenizer\w*)\.json$", key) and path.with_name(MANIFEST).is_file():
        return False  # what libraries write: every value of theirs can be
    if key.endswith(".jsonl") and "predictions" not in key:
        return _reseal_line(path, key, draw)
    values = _read(path)
    if values is None:
        return False
    own = isinstance(values, dict) and "checksum" in values
    if own:
        del values["checksum"]
    changed = _impossible(values, draw)
    if changed is None:
        return False
    if own:
        changed = seal(changed) if path.name == MANIFEST or "shards/" in key else seal(changed, key)
    replace(path, json.dumps(changed).encode())
    _list_again(path)
    return True


BYTES: dict[str, Damage] = {
    "flip": flip, "truncate": truncate, "empty": empty, "garble": garble, "append": append, "overwrite": overwrite,
    "delete": delete, "folder": folder, "link": link, "other": other,
}  # fmt: skip
VALUES: dict[str, Damage] = {"change": change, "repeat": repeat, "reseal": reseal}
DAMAGES = {**BYTES, **VALUES}


def replace(path: Path, data: bytes) -> bool:
    """Put a new file in the place of one that shares its bytes with the undamaged store."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(data)
    os.replace(fresh, path)
    return True


def _read(path: Path) -> Any:
    try:
        values = json.loads(path.read_bytes())
    except ValueError:
        return None
    return values if isinstance(values, dict | list) else None


def _places(values: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with a key or number in it, the outermost first."""
    for key in list(values) if isinstance(values, dict) else range(len(values)):
        yield values, key
        if isinstance(values[key], dict | list):
            yield from _places(values[key])


def _mutated(values: Any, draw: random.Random) -> bytes:
    container, key = draw.choice(list(_places(values)) or [([0], 0)])
    way = draw.choice(("wrong", "huge", "delete", "extra"))
    if way == "delete":
        del container[key]
    elif way == "extra" and isinstance(container, dict):
        container[f"{key} "] = draw.choice(WRONG)
    else:
        before = container[key]
        container[key] = draw.choice([each for each in (*WRONG, *HUGE) if each != before])
    return json.dumps(values).encode()


def _impossible(values: Any, draw: random.Random) -> Any:
    """A record with one value of another type, without a key, or with a number that counts something made negative."""
    places = list(_places(values))
    if not places:
        return None
    container, key = draw.choice(places)
    before, way = container[key], draw.choice(("type", "type", "delete", "number"))
    if way == "delete" and isinstance(container, dict) and not FREE.intersection(container):
        del container[key]
    elif way == "number" and type(before) in (int, float):
        container[key] = draw.choice((-abs(before) - 1, float("nan"), float("-inf"), str(before)))
    else:
        container[key] = draw.choice([each for each in WRONG if type(each) is not type(before)])
    return values


def _reseal_line(path: Path, key: str, draw: random.Random) -> bool:
    lines = path.read_bytes().split(b"\n")[:-1]
    number = draw.randrange(len(lines))
    record = json.loads(lines[number])
    record.pop("checksum", None)
    changed = _impossible(record, draw)
    lines[number] = seal_line(key, changed).rstrip(b"\n")
    return replace(path, b"".join(line + b"\n" for line in lines))


def _list_again(path: Path) -> None:
    """Let the manifest beside a file list it as it is now."""
    beside = path.with_name(MANIFEST)
    if path.name == MANIFEST or not beside.is_file():
        return
    manifest = json.loads(beside.read_bytes())
    manifest.pop("checksum")
    for record in manifest["files"]:
        if record["name"] == path.name:
            record.update(digest_file(path).model_dump())
    replace(beside, json.dumps(seal(manifest)).encode())
