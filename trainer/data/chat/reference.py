"""A reference model's log-probabilities of pairs of answers, which preference tuning holds a model against.

references/NAME-FP/
    train-00000.json …   sealed: `sums`, log p(answer | prompt) in nats of both answers of PART pairs, chosen one first
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import ArtifactError
from trainer.records.sealed import read_listed
from trainer.store.manifest import FileRecord, Manifest, read_manifest
from trainer.store.storage import Store

KIND, FOLDER = "reference", "references"

PART = 2048
"""Pairs of a file: what is computed again where the work was broken off."""


class PartOf(NamedTuple):
    """Some pairs of a split, and the name of their file."""

    split: str
    pairs: range

    @property
    def name(self) -> str:
        return f"{self.split}-{self.pairs.start // PART:05d}.json"


def parts_of(pairs: dict[str, int]) -> list[PartOf]:
    """The files of splits of so many pairs."""
    return [
        PartOf(split, range(first, min(first + PART, size)))
        for split, size in pairs.items()
        for first in range(0, size, PART)
    ]


def read_reference(store: Store, key: str) -> dict[str, NDArray[np.float64]]:
    """Log-probabilities of the chosen and the rejected answer of each pair, in nats, by split, of shape [N, 2].

    Raises `ArtifactError` if there are none, or they are damaged.
    """
    manifest = read_manifest(store, key, KIND)
    if manifest is None:
        raise ArtifactError(
            f"{store.path(key)} holds no log-probabilities of a reference model; run the job's command again, which "
            "makes them"
        )
    files, found = {file.name: file for file in manifest.files}, dict[str, list[Any]]()
    for part in parts_of({split: told["pairs"] for split, told in manifest.details["splits"].items()}):
        found.setdefault(part.split, []).extend(_read(store, key, files.get(part.name), part))
    return {split: np.array(sums, dtype=np.float64).reshape(-1, 2) for split, sums in found.items()}


def _read(store: Store, key: str, file: FileRecord | None, part: PartOf) -> list[list[float]]:
    told = read_listed(store, f"{key}/{part.name}", file.sha256 if file else None)
    if told is None or len(told["sums"]) != len(part.pairs):
        raise ArtifactError(
            f"{store.path(key)}/{part.name} is missing; run the job's command again, which makes it anew"
        )
    sums: list[list[float]] = told["sums"]
    return sums


def tell_reference(manifest: Manifest) -> str:
    """How often the reference finds the chosen answer the likelier one, token by token."""
    splits = manifest.details["splits"].items()
    told = ", ".join(f"{each['likelier']:.1%} of {each['pairs']:,} pairs of {split}" for split, each in splits)
    return f"the reference finds the chosen answer the likelier one, by its tokens' mean, in {told}"
