"""Sealed files: what is read back of a store and listed in no manifest carries a checksum of its own. And pointers.

    a JSON object       has it under the key `checksum`
    metrics.jsonl       has one at the end of each line, after the line's number, so that lost lines can be told

What is summed is the content and the place, that is the key in the store: what was copied there from another run is
told from the run's own. A file without a checksum counts as damaged, else nobody would notice that the checksum is what
was lost.
"""

import hashlib
import json
import logging
import re
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from trainer.common.errors import ArtifactError, StorageError
from trainer.records.shapes import require_shape
from trainer.store.manifest import seal, unseal
from trainer.store.names import CHECKPOINTS, Count
from trainer.store.storage import Store, json_bytes

log = logging.getLogger(__name__)


REMEDIES = {
    r"runs/[^/]+/config\.json": "start the run's command again, which writes it anew if the rest of the run is of that "
    "command, or put back a copy of it, or move the run's folder away and train it anew",
    r"runs/[^/]+/plan\.json": "start the run's command again, which writes it anew from the data",
    r"runs/[^/]+/eval\.json": "run the evaluation again, which measures the model anew",
    r"runs/[^/]+/harness\.json": "start the run's command again, which has lm-eval measure the model anew, or delete "
    "the file",
    r"runs/[^/]+/environment\.json": "put back a copy of it, or delete it: only what it tells of the machine is lost",
    r"runs/[^/]+/lineage\.json": "make the report again, which writes it anew",
    r"runs/[^/]+/(checkpoint-(last|best)|epochs/.*)": "start the run's command again, which finds it from the "
    "checkpoints",
    r"runs/[^/]+/lease\.json": "wait two minutes, and delete it if no process works on the run",
    r"evaluations/.*": "run the evaluation again, which measures the checkpoint anew, or delete the file",
    r"models/.*": "put back a copy of it, or delete it and promote a run anew, which loses the history",
    r"pins/.*": "delete it, and pin what it was meant to pin anew",
    r"cache/packed-.*": "delete it: the documents are packed again",
    r"cache/.*": "delete it: the raw files are looked at again",
    r"(shards|encoded|tokenizers|decisions)/.*": "prepare the data again, which makes it anew, or delete its folder if "
    "nothing uses it",
    r"runs/[^/]+/(final|checkpoints)/.*": "start the run's command again, which sees to it",
}
"""What to do about a damaged file, by its key."""

NUMBER = b', "record": '
LINE_END = re.compile(NUMBER + rb'([1-9][0-9]{0,11}), "checksum": "([0-9a-f]{16})"\}')


def read_sealed(store: Store, key: str) -> dict[str, Any] | None:
    """What a sealed JSON file holds, without its checksum; None if there is no such file. Raises `ArtifactError` if
    damaged.
    """
    try:
        raw = store.read_bytes(key)
    except FileNotFoundError:
        return None
    return open_sealed(store, key, raw)


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
    if sha256 is None:
        return None
    try:
        raw = store.read_bytes(key)
    except FileNotFoundError:
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


def remedy_of(key: str) -> str:
    """What to do if the file under a key is damaged."""
    return next((remedy for pattern, remedy in REMEDIES.items() if re.fullmatch(pattern, key)), "put back a copy of it")


def seal_line(key: str, number: int, values: dict[str, Any]) -> bytes:
    """A line of a file of records, with its number (counted from 1), its checksum and its end."""
    text = b"%s%s%d" % (json.dumps(values).encode()[:-1], NUMBER, number)
    return b'%s, "checksum": "%s"}\n' % (text, _line_sum(key, text))


def sealed_number(key: str, line: bytes) -> int | None:
    """The number of a line, given without its end, that was written there; None of any other.

    The line's values are not looked at, which is fast.
    """
    end = LINE_END.fullmatch(line, max(0, line.rfind(NUMBER)))
    return int(end[1]) if end is not None and end[2] == _line_sum(key, line[: end.end(1)]) else None


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


def _line_sum(key: str, text: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + text).hexdigest()[:16].encode()


class Pointer(BaseModel):
    """The checkpoint that is named, by its place in the run's folder and by its step, with the scores of that step."""

    model_config = ConfigDict(strict=True, extra="forbid")

    checkpoint: str
    step: Count
    scores: dict[str, float] | None


def folder_name(step: int) -> str:
    """Where the checkpoint of a step is in its run's folder."""
    return f"{CHECKPOINTS}/step-{step:08d}"


def read_pointer(store: Store, key: str) -> Pointer | None:
    """What a pointer names; None if there is none. Raises `ArtifactError` if it is damaged."""
    found = read_sealed(store, key)
    if found is None:
        return None
    try:
        pointer = Pointer.model_validate(found)
    except ValidationError as error:
        raise ArtifactError(
            f"{store.path(key)} is damaged: it names no checkpoint and step; {remedy_of(key)}"
        ) from error
    if pointer.checkpoint != folder_name(pointer.step):
        raise ArtifactError(
            f"{store.path(key)} is damaged: it names {pointer.checkpoint} for step {pointer.step}; {remedy_of(key)}"
        )
    return pointer


def write_pointer(store: Store, key: str, step: int, scores: dict[str, float] | None) -> None:
    """Let a pointer name the checkpoint of a step."""
    write_sealed(store, key, Pointer(checkpoint=folder_name(step), step=step, scores=scores).model_dump())
