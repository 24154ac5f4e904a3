"""What differs between an artifact that would be made and the most similar one that there is."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from trainer.common.errors import ArtifactError
from trainer.common.formats import count
from trainer.records.fields import names_in, tell_changes
from trainer.records.origins import Pieces
from trainer.store.manifest import Manifest, find_damage, read_manifest
from trainer.store.storage import Store

NONE_YET = "there is none yet"
UNRECORDED = "made with other options, which it does not record"
NAMED = 3
"""Files that are named of those that differ."""

CONSIDERED = 3
"""Artifacts of equally different options whose files are compared."""


class Likeness(NamedTuple):
    """An artifact, its manifest, and the options that differ from those that are wanted."""

    key: str
    manifest: Manifest
    options: list[str]


def look(store: Store, key: str, kind: str, content: bool = True) -> tuple[Manifest | None, list[str]]:
    """The manifest of an artifact that is there and intact; else None and what is wrong, or nothing if it is not there."""
    try:
        manifest = read_manifest(store, key, kind)
    except ArtifactError as error:
        return None, [str(error)]
    damage = find_damage(store, key, manifest, content=content) if manifest else {}
    if damage:
        return None, [f"{file} {problem}" for file, problem in damage.items()]
    return manifest, []


def find_similar(store: Store, key: str, kind: str, compare: Callable[[Manifest], list[str]]) -> list[Likeness]:
    """The artifacts of the same name, those with the fewest options that differ first, and of these the newest."""
    folder, _, name = key.rpartition("/")
    pattern = re.compile(re.escape(name[:-16]) + r"[0-9a-f]{16}")
    found = []
    for other in (f"{folder}/{each}" for each in store.names(folder) if pattern.fullmatch(each)):
        try:
            manifest = read_manifest(store, other, kind)
        except ArtifactError:
            continue
        if manifest is not None and other != key:
            found.append(Likeness(other, manifest, compare(manifest)))
    newest_first = sorted(found, key=lambda each: each.manifest.created, reverse=True)
    return sorted(newest_first, key=lambda each: len(each.options))


def explain_likeness(similar: Sequence[Likeness], compare_files: Callable[[Likeness], list[str]]) -> list[str]:
    """What differs from the most similar artifact, options and files."""
    closest = [each for each in similar if len(each.options) == len(similar[0].options)][:CONSIDERED]
    files = [compare_files(each) for each in closest]
    if not closest:
        return [NONE_YET]
    best = min(range(len(closest)), key=lambda place: len(files[place]))
    told = [*closest[best].options, *describe_files(files[best])]
    return told or [f"{closest[best].key} was {UNRECORDED}"]


def compare_options(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The options that differ, as `data.shards.num_shards: 2 -> 3`; of the old ones, what is not known is left out."""
    return tell_changes({key: _by_name(value) for key, value in old.items()}, {key: _by_name(new.get(key)) for key in old})


def compare_files(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Names of files that differ, each after what became of it; `old` and `new` are digests by name."""
    changed = [f"changed {name}" for name in new if name in old and old[name] != new[name]]
    return (
        changed + [f"added {name}" for name in new if name not in old] + [f"removed {name}" for name in old if name not in new]
    )


def compare_pieces(old: Mapping[str, Pieces], new: Mapping[str, Pieces], recut: bool) -> list[str]:
    """The same of raw files by their pieces. With `recut` they were cut by another rule, which alone changes no file."""
    return compare_files({name: _despite_cuts(each, new.get(name)) for name, each in old.items()} if recut else old, new)


def _despite_cuts(old: Pieces, new: Pieces | None) -> Pieces:
    """A file's pieces as they are now if all that is known to differ is where it is cut."""
    recut = new is not None and [each[:2] for each in old] != [each[:2] for each in new] and old[-1][1] == new[-1][1]
    return new if recut and new is not None else old


def describe_files(differing: Sequence[str]) -> list[str]:
    """Files that differ in one line, counted, the first few named; none if there are none."""
    parts = []
    for word in ("changed", "added", "removed"):
        names = [each.removeprefix(f"{word} ") for each in differing if each.startswith(f"{word} ")]
        more = f" and {count(len(names) - NAMED)} more" if len(names) > NAMED else ""
        if names:
            parts.append(f"{count(len(names))} {word} ({', '.join(names[:NAMED])}{more})")
    return [f"files: {', '.join(parts)}"] if parts else []


def _by_name(value: Any) -> Any:
    """Lists of what has names as mappings, so that what differs can be told by its path."""
    if names := names_in(value):
        parts = ({key: part for key, part in each.items() if key != "name"} for each in value)
        return dict(zip(names, parts, strict=True))
    return {key: _by_name(part) for key, part in value.items()} if isinstance(value, dict) else value
