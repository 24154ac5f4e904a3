"""Sealed files: what is read back of a store and listed in no manifest carries a checksum of its own. And pointers.

    a JSON object       has it under the key `checksum`
    metrics.jsonl       has one at the end of each line, after the line's number, so that lost lines can be told
    .npz of curation    have it as their zip file's comment (curation/units.py)

What is summed is the content and the place, that is the key in the store: what was copied there from another run is
told from the run's own. A file without a checksum counts as damaged, else nobody would notice that the checksum is what
was lost.
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
    """What a sealed JSON file holds, without its checksum; None if there is no such file. Raises `ArtifactError` if
    damaged.
    """
    raw = store.find_bytes(key)
    return None if raw is None else open_sealed(store, key, raw)


def recall_sealed(store: Store, key: str, instead: str) -> dict[str, Any] | None:
    """The same of a file that only spares work: where it cannot be read, None, and a warning of what is done
    `instead`.
    """
    try:
        return read_sealed(store, key)
    except (ArtifactError, StorageError) as error:
        log.warning("%s: %s", error, instead)
        return None


def require_sealed(store: Store, key: str) -> dict[str, Any]:
    """The same of a file that must be there. Raises `ArtifactError` if it is missing or damaged."""
    found = read_sealed(store, key)
    if found is None:
        raise ArtifactError(f"{store.path(key)} is missing; {remedy_of(key)}")
    return found


def open_sealed(store: Store, key: str, raw: bytes) -> dict[str, Any]:
    """What a sealed JSON file holds, of bytes that were read from under its key. Raises `ArtifactError` if they are
    damaged.
    """
    try:
        values = unseal(_parse(raw), key)
        require_shape(key, values)
        return values
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{store.path(key)} is damaged: {error}; {remedy_of(key)}") from error


def read_listed(store: Store, key: str, sha256: str | None) -> Any:
    """What a JSON file holds that a manifest lists with this digest; None if there is no such file, or it is not
    listed.

    Raises `ArtifactError` if it is another one.
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
    """A sealed JSON file's bytes, for one that is replaced only by who has read it as it is."""
    plain = json.loads(json.dumps(values))  # as it is read back: names are texts
    return json_bytes(seal(plain, key), indent)


def seal_line(key: str, number: int, values: dict[str, Any]) -> bytes:
    """A line of a file of records, with its number (counted from 1), its checksum and its end."""
    text = b"%s%s%d" % (json.dumps(values).encode()[:-1], NUMBER, number)
    return b'%s, "checksum": "%s"}\n' % (text, sum_at(key, text))


def sealed_number(key: str, line: bytes) -> int | None:
    """The number of a line, given without its end, that was written there; None of any other.

    The line's values are not looked at, which is fast.
    """
    end = LINE_END.fullmatch(line, max(0, line.rfind(NUMBER)))
    return int(end[1]) if end is not None and end[2] == sum_at(key, line[: end.end(1)]) else None


def unseal_line(line: bytes) -> dict[str, Any]:
    """The values of a line that is sealed."""
    values: dict[str, Any] = json.loads(line[: line.rfind(NUMBER)] + b"}")
    return values


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError("it holds no JSON object")
    return found


def sum_at(key: str, content: bytes | memoryview) -> bytes:
    """The checksum, 16 hexadecimal digits, of what stands under a key."""
    digest = hashlib.sha256(key.encode() + b"\n")
    digest.update(content)
    return digest.hexdigest()[:16].encode()


def read_pointer(store: Store, key: str) -> Pointer | None:
    """What a pointer names; None if there is none. Raises `ArtifactError` if it is damaged."""
    found = read_sealed(store, key)
    return None if found is None else Pointer(**found)


def write_pointer(store: Store, key: str, step: int, scores: dict[str, float] | None) -> None:
    """Let a pointer name the checkpoint of a step."""
    write_sealed(store, key, Pointer(checkpoint=folder_name(step), step=step, scores=scores).model_dump())
