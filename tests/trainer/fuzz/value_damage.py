"""Ways to damage what a file of a store says: JSON values, records sealed again, lines of records."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.trainer.fuzz.byte_damage import replace
from trainer.records.sealed import seal_line, unseal_line
from trainer.store.manifest import MANIFEST, digest_file, seal

HUGE = (10**30, -(10**30), 1e308, 2**63, 2**64)
FREE = {"loss", "prose", "lines"}
"""Keys of maps from figures and corpora: of those, any may be missing from a record."""
NAN, INFINITY = float("nan"), float("inf")
WRONG: tuple[Any, ...] = (None, True, "x", "", [], {}, 0, -1, 1.5, [None], {"x": 1}, "../../etc/passwd", NAN, INFINITY)


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
    if key.endswith(".jsonl"):
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


def usurp(store: Path, key: str, draw: random.Random) -> bool:
    """Another run in a champion's history, with its own model's fingerprint or that of the run whose place it takes."""
    values = _read(store / key)
    if not isinstance(values, dict) or "moves" not in values:
        return False
    del values["checksum"]
    move = draw.choice(values["moves"])
    others = [
        path for path in sorted(store.glob(f"runs/*/final/{MANIFEST}")) if path.parts[-3] != move["run"].split("/")[1]
    ]
    other = draw.choice(others)
    move["run"] = f"runs/{other.parts[-3]}"
    if draw.random() < 0.5:
        move["fingerprint"] = json.loads(other.read_bytes())["fingerprint"]
    return replace(store / key, json.dumps(seal(values, key)).encode())


def lose(store: Path, key: str, draw: random.Random) -> bool:
    """Whole lines, one after another, anywhere."""
    lines = _lines(store / key)
    start = draw.randrange(len(lines))
    del lines[start : start + draw.choice((1, 1, 3, 10))]
    return replace(store / key, b"".join(lines))


def swap(store: Path, key: str, draw: random.Random) -> bool:
    """A line in another's place, and that in its."""
    lines = _lines(store / key)
    one, other = draw.sample(range(len(lines)), 2)
    lines[one], lines[other] = lines[other], lines[one]
    return replace(store / key, b"".join(lines))


def double(store: Path, key: str, draw: random.Random) -> bool:
    """A line that stands there once more, anywhere."""
    lines = _lines(store / key)
    lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))
    return replace(store / key, b"".join(lines))


def _read(path: Path) -> Any:
    try:
        values = json.loads(path.read_bytes())
    except ValueError:
        return None
    return values if isinstance(values, dict | list) else None


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


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
    changed = _impossible(unseal_line(lines[number]), draw)
    lines[number] = seal_line(key, number + 1, changed).rstrip(b"\n")
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


VALUES = {"change": change, "repeat": repeat, "reseal": reseal}
LINES = {"lose": lose, "swap": swap, "double": double}
CHAMPIONS = {"usurp": usurp}
