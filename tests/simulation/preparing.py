"""Preparing data for runs, and curation decisions. Encoding is simulated, curation is real."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.simulation.bucket import URL
from tests.simulation.world import World, pause
from tests.trainer.curating import write_documents
from tests.trainer.report_runs import DETAILS
from trainer.common.progress import silent
from trainer.config.jobs import PrepareJob
from trainer.curation.curate import curate
from trainer.data.decisions import open_decisions
from trainer.records.steps import Step, make, publish
from trainer.store.manifest import ArtifactRef, Input, Manifest
from trainer.store.storage import Store

CURATED = "curated"
"""The data that is encoded from curated documents only."""

CORPUS = "corpus"
DOCUMENTS = ["one", "other", "ONE"], ["one", "a third"]
"""The documents of each raw file; those starting with `one` are duplicates for curation."""
STAYS = [True, True, False, False, True]

EXACT = {"exact": {"normalise": ["case"]}}
CURATIONS = EXACT, {**EXACT, "filters": [{"kind": "length", "least_bytes": 1}]}
"""Two curations that drop the same documents and share some of their measures and comparisons."""

LONG_AGO = 0.0
"""The modification time of raw files; results of newer files would not be cached."""


class WrongRead(AssertionError):
    """Wrong content was read without an error."""


@contextmanager
def relying(relied: Counter[str], found: ArtifactRef) -> Iterator[None]:
    """Count a reliance on an artifact during the block if it is reused; a new one is protected by its age."""
    relied[found.key] += found.reused
    try:
        yield
    finally:
        relied[found.key] -= found.reused


def write_raw(folder: Path) -> Path:
    """Write the raw text for curation, and new texts for models."""
    for number, texts in enumerate(DOCUMENTS):
        os.utime(write_documents(folder / f"{CORPUS}-{number}.jsonl", texts), (LONG_AGO, LONG_AGO))
    os.utime(write_documents(folder / "new.jsonl", ["new"]), (LONG_AGO, LONG_AGO))
    return folder


def encode(store: Store, name: str, raw: Path, relied: Counter[str]) -> ArtifactRef:
    """Find or prepare a run's data, and before it, if it is curated, the decisions."""
    if name != CURATED:
        return make(_encoding(store, name, {}))
    decided = decide(store, raw, EXACT)
    with relying(relied, decided):
        return make(_encoding(store, name, {"decisions": decided.as_input()}))


def _encoding(store: Store, name: str, inputs: Mapping[str, Input]) -> Step:
    def build(step: Step) -> Manifest:
        if "decisions" in inputs:
            read_decided(store, inputs["decisions"].key)
        with store.staging(key=step.key) as folder:
            for number in range(2):
                (folder / f"part-{number}").write_text(f"{name} {number}")
            return publish(step, folder, DETAILS["encoded"])

    return Step(store, "encoded", "encoded", name, {"name": name}, build, inputs=inputs)


def decide(store: Store, raw: Path, curation: Mapping[str, Any]) -> ArtifactRef:
    """Find or compute the curation decisions."""
    corpora = [{"name": CORPUS, "paths": [f"{raw}/{CORPUS}-*.jsonl"], "format": "jsonl"}]
    data = {"corpora": corpora, "tokenizer": {"vocab_size": 300}, "shards": {"num_shards": 1}, "workers": 1}
    job = PrepareJob.model_validate({"store": URL, "data": {**data, "curation": curation}})
    return make(curate(store, job, silent()))


def read_decided(store: Store, key: str) -> None:
    """Read the decisions and check them."""
    if (stays := (open_decisions(store, key, CORPUS).reasons == 0).tolist()) != STAYS:
        raise WrongRead(f"{key} lets {stays} stay")


def prepare(world: World, name: str, raw: Path, relied: Counter[str]) -> None:
    pause(world, 600.0)
    encode(Store(URL), name, raw, relied)


def curate_text(world: World, raw: Path, relied: Counter[str]) -> None:
    """Decide with one of the curations, and read the decisions."""
    store = Store(URL)
    pause(world, 600.0)
    decided = decide(store, raw, world.draw.choice(CURATIONS))
    with relying(relied, decided):
        read_decided(store, decided.key)
