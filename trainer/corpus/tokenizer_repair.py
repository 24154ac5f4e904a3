"""A tokenizer that is damaged or lost, while something in the store was made with it.

The key of a trained tokenizer does not name its bytes, so under that key must come back what was there, and nothing else: a
copy from a checkpoint, or the same bytes made again. Shards and runs that name the key say which bytes these are.
"""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from tokenizers import Tokenizer

from trainer.common.errors import ArtifactError, TokenizerError, WrongContent
from trainer.config.corpora import DataConfig
from trainer.corpus.tokenizer import KIND, TOKENIZER_FILE
from trainer.corpus.tokenizer_making import name_tokenizer, save_trained, tokenizer_recipe
from trainer.store.manifest import MANIFEST, Manifest, digest_file, publish_folder, read_manifest
from trainer.store.places import CHECKPOINT_KIND, CHECKPOINTS, CONFIG, FINAL, FINAL_KIND
from trainer.store.storage import Store

log = logging.getLogger(__name__)

SHARDS = "shards"
NAMED = 5
"""Dependents that an error names."""


class Lost(NamedTuple):
    """A tokenizer that is not there as it was: what was made with it, and the digest of its tokenizer.json."""

    key: str
    dependents: list[str]
    sha256: str


def find_lost(store: Store, data: DataConfig) -> Lost | None:
    """What depends on the tokenizer that a configuration names; None if nothing does, and any may be made under its key.

    Raises `TokenizerError` if its bytes are not known, so that none can be told to be right.
    """
    _, key = name_tokenizer(data)
    dependents = _made_with(store, key)
    if not dependents:
        if store.names(key):
            log.warning("%s is damaged: nothing was made with it, so it is made anew", store.path(key))
        return None
    manifest = _manifest(store, key, KIND)
    listed = manifest.digests()[TOKENIZER_FILE] if manifest else None
    sha256 = listed or _told_by_shards(store, key) or _told_by_runs(store, dependents)
    if sha256 is None:
        raise _refused(store, Lost(key, dependents, ""), "what it was is recorded nowhere that can be read")
    return Lost(key, dependents, sha256)


def restore_tokenizer(store: Store, data: DataConfig, lost: Lost) -> bool:
    """Put a trained tokenizer back, from an intact copy in the store, to the same bytes; returns whether there is a copy."""
    found = _find_copy(store, lost.key, lost.sha256) if data.tokenizer.path is None else None  # what was taken is taken again
    if found is None:
        return False
    place, content = found
    manifest = _manifest(store, lost.key, KIND)
    with store.staging(key=lost.key) as folder:
        details = save_trained(data.tokenizer, Tokenizer.from_buffer(content), None, folder)
        (folder / TOKENIZER_FILE).write_bytes(content)
        if manifest and {path.name: digest_file(path).sha256 for path in folder.iterdir()} == manifest.digests():
            (folder / MANIFEST).write_bytes(store.read_bytes(f"{lost.key}/{MANIFEST}"))
            store.put_folder(folder, lost.key, last=MANIFEST)
        else:
            details = manifest.details if manifest else {**details, "recipe": tokenizer_recipe(data)}
            publish_folder(store, folder, lost.key, KIND, lost.key[-16:], details)
    log.warning("%s was damaged or lost: it was put back as it was, from %s", store.path(lost.key), store.path(place))
    return True


def require_same_tokenizer(store: Store, lost: Lost, sha256: str) -> None:
    """Raise `TokenizerError` unless the tokenizer that was made again is the one that was lost."""
    if sha256 != lost.sha256:
        raise _refused(store, lost, "what is made of today's text or files is another one")
    log.warning("%s was damaged or lost: it was made again, to the same bytes", store.path(lost.key))


def _refused(store: Store, lost: Lost, problem: str) -> TokenizerError:
    named = ", ".join(lost.dependents[:NAMED]) + (", …" if len(lost.dependents) > NAMED else "")
    known = f" (sha256 {lost.sha256})" if lost.sha256 else ""
    return TokenizerError(
        f"{store.path(lost.key)} is damaged or lost, no checkpoint in {store.path('runs')} holds an intact copy of it, and "
        f"{problem}; it is needed by {named}. Put back a copy of its {TOKENIZER_FILE}{known}, or choose another "
        "data.tokenizer.name to train a new one"
    )


def _made_with(store: Store, key: str) -> list[str]:
    """The shard sets and runs whose record names the tokenizer, be the record damaged or not."""
    records = {f"{SHARDS}/{name}": MANIFEST for name in store.names(SHARDS)}
    records.update({f"runs/{name}": CONFIG for name in store.names("runs")})

    def names_it(folder: str) -> bool:
        try:
            return key.encode() in store.read_bytes(f"{folder}/{records[folder]}")
        except FileNotFoundError:
            return False

    with ThreadPoolExecutor() as pool:
        return [folder for folder, named in zip(records, pool.map(names_it, records), strict=True) if named]


def _told_by_shards(store: Store, key: str) -> str | None:
    """The digest that the newest shard set made with the tokenizer tells."""
    sets = [_manifest(store, f"{SHARDS}/{name}", SHARDS) for name in store.names(SHARDS)]
    made = [manifest for manifest in sets if manifest and manifest.details["tokenizer"] == key]
    told: list[str] = [each.details["tokenizer_sha256"] for each in sorted(made, key=lambda each: each.created)]
    return told[-1] if told else None


def _told_by_runs(store: Store, dependents: list[str]) -> str | None:
    """The digest that a checkpoint of a run made with the tokenizer tells."""
    runs = [run.removeprefix("runs/") for run in dependents if run.startswith("runs/")]
    return next((sha256 for _, sha256 in _carried(store, runs)), None)


def _find_copy(store: Store, key: str, sha256: str) -> tuple[str, bytes] | None:
    """Where in the store the lost bytes are, and the bytes: its own folder, else that of a checkpoint of any run."""
    for place in [key, *(place for place, carried in _carried(store, store.names("runs")) if carried == sha256)]:
        with suppress(FileNotFoundError, WrongContent):
            return place, store.fetch(f"{place}/{TOKENIZER_FILE}", sha256, check=True).read_bytes()
    return None


def _carried(store: Store, runs: list[str]) -> Iterator[tuple[str, str]]:
    """The final models and checkpoints of some runs that carry a tokenizer, with its digest as their manifest lists it."""
    for run in runs:
        checkpoints = store.names(f"runs/{run}/{CHECKPOINTS}")
        places = {f"runs/{run}/{FINAL}": FINAL_KIND}
        places.update({f"runs/{run}/{CHECKPOINTS}/{name}": CHECKPOINT_KIND for name in checkpoints})
        for place, kind in places.items():
            manifest = _manifest(store, place, kind)
            if manifest and (sha256 := manifest.digests().get(TOKENIZER_FILE)):
                yield place, sha256


def _manifest(store: Store, key: str, kind: str) -> Manifest | None:
    """The manifest of an artifact; None if there is none or it is damaged."""
    try:
        return read_manifest(store, key, kind)
    except ArtifactError:
        return None
