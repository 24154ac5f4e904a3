"""The raw files behind an artifact, as it names them: of shards by their pieces, of a labelled set by its splits."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

Pieces = list[tuple[int, int, str]]
"""A file's pieces in order: each its begin, its end and its digest."""

SEVERAL = "dataset_dict.json"
"""What `save_to_disk` writes beside the folders of several splits."""


def by_file(pieces: Iterable[Mapping[str, Any]], name: str = "key") -> dict[str, Pieces]:
    """The pieces of a set's sources.json of each file, by its key or its `path`."""
    files: dict[str, Pieces] = {}
    for piece in sorted(pieces, key=lambda each: (each[name], each["index"])):
        files.setdefault(piece[name], []).append((piece["start"], piece["end"], piece["sha256"]))
    return files


def labelled_digests(identity: Any, paths: Mapping[str, list[str]]) -> dict[str, str]:
    """The digests that make up a labelled set's identity: of files by path, or by split and number if that is not known.

    Of a folder that `save_to_disk` wrote, by the way from there; of a data set of the hub, of its splits.
    """
    if isinstance(identity, dict):
        found: dict[str, str] = {}
        for split, files in identity.items():
            names = paths.get(split) or [f"{split} {number}" for number in range(len(files))]
            found.update({name: file[0] for name, file in zip(names, files, strict=True)})
        return found
    if len(identity) == 2:
        return {key: sha256 for key, sha256 in identity[0]}
    path, subset, prints = identity
    return {f"{path}{f'/{subset}' if subset else ''}: {split}": "/".join(found) for split, found in prints.items()}


def without_test(identity: Any) -> Any:
    """A labelled set's identity as far as its training and validation splits are read.

    Of a folder that `save_to_disk` wrote with several splits, each lies in a folder of its name.
    """
    if isinstance(identity, dict):
        return _but_test(identity)
    if len(identity) == 2:
        files, splits = identity[0], _but_test(identity[1])
        if SEVERAL in (key for key, _ in files):
            read = {name for names in splits.values() for name in names}
            files = [[key, sha256] for key, sha256 in files if key.split("/")[0] in read]
        return [files, splits]
    path, subset, prints = identity
    return [path, subset, _but_test(prints)]


def _but_test(splits: Mapping[str, Any]) -> dict[str, Any]:
    return {split: value for split, value in splits.items() if split != "test"}


def describe_file(path: str, pieces: Pieces, file_bytes: int | None) -> dict[str, Any]:
    """A raw file with its size as it lies there, and its digest, or its pieces' if it was cut: then the whole has none.

    Sets of shards say `file_bytes` unless they were made before that was noted; then Parquet's size is not known.
    """
    whole = re.fullmatch(r"([0-9a-f]{64}):\d+-\d+", pieces[0][2])
    if whole:  # Parquet, cut between row groups
        return {"path": path, **({} if file_bytes is None else {"bytes": file_bytes}), "sha256": whole[1]}
    # Of a CSV file's later pieces the digest of the first line comes first.
    cut = [{"start": start, "end": end, "sha256": digest.rpartition(":")[2]} for start, end, digest in pieces]
    rest = {"sha256": cut[0]["sha256"]} if len(cut) == 1 else {"pieces": cut}
    return {"path": path, "bytes": pieces[-1][1], **rest}
