"""Sealed files: files of a store that no manifest lists and that carry their own checksum; and pointers.

    a JSON object       has it under the key `checksum`
    metrics.jsonl       has one at the end of each line, after the line's number, so that lost lines are detected
    .npz of curation    have it as their zip file's comment (curation/units.py)

The checksum covers the content and the file's key in the store, so that a copy from another run is detected. A file
without a checksum counts as damaged, because the checksum itself may be what was lost.
"""

import hashlib
import json
import logging
import re
from typing import Any

from trainer.common.errors import ArtifactError, StorageError
from trainer.records.shapes import Pointer, folder_name, remedy_of, require_shape
from trainer.store.manifest import seal, unseal
from trainer.store.storage import Store, json_bytes

log = logging.getLogger(__name__)


NUMBER = b', "record": '
LINE_END = re.compile(NUMBER + rb'([1-9][0-9]{0,11}), "checksum": "([0-9a-f]{16})"\}')


def read_sealed(store: Store, key: str) -> dict[str, Any] | None:
    """Return the content of a sealed JSON file, or None if it does not exist; raise `ArtifactError` if damaged."""
    raw = store.find_bytes(key)
    return None if raw is None else open_sealed(store, key, raw)


def recall_sealed(store: Store, key: str, instead: str) -> dict[str, Any] | None:
    """Like `read_sealed`, for a file that only saves work: if it cannot be read, log `instead` and return None."""
    try:
        return read_sealed(store, key)
    except (ArtifactError, StorageError) as error:
        log.warning("%s: %s", error, instead)
        return None


def require_sealed(store: Store, key: str) -> dict[str, Any]:
    """Like `read_sealed`, for a required file: raise `ArtifactError` if it is missing or damaged."""
    found = read_sealed(store, key)
    if found is None:
        raise ArtifactError(f"{store.path(key)} is missing; {remedy_of(key)}")
    return found


def open_sealed(store: Store, key: str, raw: bytes) -> dict[str, Any]:
    """Return the content of a sealed JSON file from its bytes; raise `ArtifactError` if they are damaged."""
    try:
        values = unseal(_parse(raw), key)
        require_shape(key, values)
        return values
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{store.path(key)} is damaged: {error}; {remedy_of(key)}") from error


def read_listed(store: Store, key: str, sha256: str | None) -> Any:
    """Return the content of a JSON file that a manifest lists with this digest, or None if it is missing or not listed.

    Raises `ArtifactError` if its digest differs.
    """
    raw = None if sha256 is None else store.find_bytes(key)
    if raw is None:
        return None
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise ArtifactError(
            f"{store.path(key)} is damaged: it does not match the checksum in its manifest; {remedy_of(key)}"
        )
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{store.path(key)} is damaged: it is not valid JSON ({error}); {remedy_of(key)}"
        ) from error


def write_sealed(store: Store, key: str, values: dict[str, Any], indent: int | None = 2) -> None:
    """Write a JSON object with its checksum."""
    store.write_bytes(key, sealed_bytes(key, values, indent))


def sealed_bytes(key: str, values: dict[str, Any], indent: int | None = 2) -> bytes:
    """The bytes of a sealed JSON file, for compare-and-swap."""
    plain = json.loads(json.dumps(values))  # as it will be read back: keys become text
    return json_bytes(seal(plain, key), indent)


def seal_line(key: str, number: int, values: dict[str, Any]) -> bytes:
    """A line of a file of records, with its number (from 1), its checksum and a line end."""
    text = b"%s%s%d" % (json.dumps(values).encode()[:-1], NUMBER, number)
    return b'%s, "checksum": "%s"}\n' % (text, sum_at(key, text))


def sealed_number(key: str, line: bytes) -> int | None:
    """The number of an intact line (without its line end) of this file, else None.

    The line's values are not parsed, for speed.
    """
    end = LINE_END.fullmatch(line, max(0, line.rfind(NUMBER)))
    return int(end[1]) if end is not None and end[2] == sum_at(key, line[: end.end(1)]) else None


def unseal_line(line: bytes) -> dict[str, Any]:
    """The values of a sealed line."""
    values: dict[str, Any] = json.loads(line[: line.rfind(NUMBER)] + b"}")
    return values


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def sum_at(key: str, content: bytes | memoryview) -> bytes:
    """The checksum, 16 hexadecimal digits, of a key and its content."""
    digest = hashlib.sha256(key.encode() + b"\n")
    digest.update(content)
    return digest.hexdigest()[:16].encode()


def read_pointer(store: Store, key: str) -> Pointer | None:
    """Read a pointer; None if it does not exist. Raises `ArtifactError` if it is damaged."""
    found = read_sealed(store, key)
    return None if found is None else Pointer(**found)


def write_pointer(store: Store, key: str, step: int, scores: dict[str, float] | None) -> None:
    """Point a pointer to the checkpoint of a step."""
    write_sealed(store, key, Pointer(checkpoint=folder_name(step), step=step, scores=scores).model_dump())
