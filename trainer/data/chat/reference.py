"""A reference model's log-probabilities of pairs of answers, which preference tuning compares a model's with.

references/NAME-FP/
    train.npy …       float64 [pairs, 2]: log p(answer | prompt) in nats, of the chosen and of the rejected answer
cache/reference-FP/
    train-00000.json  sealed: `sums`, some of them, while they are computed
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import ArtifactError
from trainer.store.manifest import Manifest, fetch_made, read_manifest
from trainer.store.storage import Store

KIND, FOLDER = "reference", "references"

PART = 2048
"""Pairs that are kept together: what is computed again where the work was broken off."""

Reference = Mapping[str, NDArray[np.float64]]
"""By split, of shape [pairs, 2]."""


class PartOf(NamedTuple):
    """Some pairs of a split."""

    split: str
    pairs: range

    @property
    def name(self) -> str:
        """The file that they are kept in."""
        return f"{self.split}-{self.pairs.start // PART:05d}.json"


def parts_of(pairs: Mapping[str, int]) -> list[PartOf]:
    """The parts of splits of so many pairs."""
    return [
        PartOf(split, range(first, min(first + PART, size)))
        for split, size in pairs.items()
        for first in range(0, size, PART)
    ]


def write_reference(folder: Path, reference: Reference) -> None:
    """Write the files of an artifact into a folder."""
    for split, sums in reference.items():
        np.save(folder / f"{split}.npy", sums)


def read_reference(store: Store, key: str) -> Reference:
    """What a published reference holds. Raises `ArtifactError` if there is none, or it is damaged."""
    manifest = read_manifest(store, key, KIND)
    if manifest is None:
        raise ArtifactError(
            f"{store.path(key)} holds no log-probabilities of a reference model; run the job's command again, which "
            "makes them"
        )
    digests = manifest.digests()
    return {
        split: np.load(fetch_made(store, key, f"{split}.npy", digests[f"{split}.npy"]))
        for split in manifest.details["splits"]
    }


def tell_reference(manifest: Manifest) -> str:
    """How often the reference prefers the chosen answer."""
    splits = manifest.details["splits"].items()
    told = ", ".join(f"{each['accuracy']:.1%} of {each['pairs']:,} pairs of {split}" for split, each in splits)
    return f"the reference prefers the chosen answer, by its mean log-probability a token, in {told}"
