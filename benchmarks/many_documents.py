"""Near duplicates among many documents: time, disk, and the memory of all processes, with synthetic signatures.

    python -m benchmarks.many_documents [DOCUMENTS]

Measuring the text of 100 million documents would take hours; this measures the pass over all keys and the comparison of
documents that share one. Keys and n-grams are synthetic and all shared keys were planted, so the number of duplicates
is known.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.common.progress import silent
from trainer.config.jobs import PrepareJob
from trainer.curation.deciding import NEAR, CurationRun, Plan
from trainer.curation.near import parts_of, write_ngrams
from trainer.curation.shared_keys import KEYS, Signature, start_pass
from trainer.curation.texts import starts_of
from trainer.curation.units import Numbered, Numbering, Unit, write_arrays
from trainer.data.pieces import Piece
from trainer.data.shard_building import Workers
from trainer.store.storage import Store

WORKERS = 2
UNITS = 4096
FAMILY = 64
"""Units per family; planted documents resemble those of the family's first unit."""

NGRAMS = 300
"""N-grams of a document."""

PLANTED = 100
"""One document in `PLANTED` is planted."""


def job_in(folder: str) -> PrepareJob:
    data = {
        "corpora": [{"name": "made", "paths": ["made"]}],
        "curation": {"near": {}, "exact": None},
        "tokenizer": {"vocab_size": 1024},
        "workers": WORKERS,
    }
    return PrepareJob.model_validate({"store": f"{folder}/store", "data": data})


def numbered(job: PrepareJob, documents: int) -> Numbering:
    """Units of equally many documents, with one piece each."""
    (corpus,), each = job.data.corpora, documents // UNITS
    units = [
        Numbered(
            Unit(corpus, None, (), "measures/made", number, UNITS, (Piece(f"{number}", "", 0, 0, 1, 1, True, "", 1),)),
            np.array([number * each]), np.array([each]),
        )
        for number in range(UNITS)
    ]  # fmt: skip
    return Numbering(units, {corpus.name: 0}, {corpus.name: np.full(UNITS, each)}, each * UNITS)


def write_signatures(job: PrepareJob, numbering: Numbering) -> int:
    """Generate the keys of all documents; return how many are duplicates."""
    assert job.data.curation is not None and job.data.curation.near is not None
    store, by, dropped = Store(job.store), Signature.of(job.data.curation.near), 0
    for number, (unit, firsts, counts) in enumerate(numbering.units):
        places = int(firsts[0]) + np.arange(int(counts[0]), dtype=np.uint64)
        planted = np.arange(len(places) // PLANTED)
        keys = np.add.outer(places * np.uint64(by.bands), np.arange(1, by.bands + 1, dtype=np.uint64))
        bands = planted % by.bands  # one shared key is enough
        before = len(places) * (number % FAMILY)  # number of documents between this unit and the first of its family
        keys[planted, bands] -= np.uint64(before * by.bands)
        dropped += len(planted) if before else 0
        write_arrays(store, unit.key(by), {KEYS: spread_out(keys)[:, :, None]})
    return dropped


def spread_out(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Pseudorandom 64-bit numbers, one-to-one: the final steps of SplitMix64 (Steele et al. 2014)."""
    mixed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def write_made_up_ngrams(decided: CurationRun) -> None:
    """Generate the n-grams of documents that share a key, equal for all that share it."""
    assert decided.options.near is not None
    units, alive = decided.numbering.units, decided.reasons == 0
    folder = start_pass(decided.store, units, Signature.of(decided.options.near), alive)
    sharing = decided.sharing(folder, decided.options.near.bands, NEAR)
    family = np.arange(decided.numbering.total)
    family[sharing.documents] = np.repeat(sharing.documents[starts_of(sharing.sizes)[:-1]], sharing.sizes)
    alive[:] = False
    alive[sharing.documents] = True
    for part in parts_of(folder, decided.options.near, units, alive):
        hashes = family[part.documents].astype(np.uint64)[:, None] * np.uint64(NGRAMS) + np.arange(
            NGRAMS, dtype=np.uint64
        )
        write_ngrams(decided.store, part, hashes)


def decide(job: PrepareJob, documents: int) -> int:
    """Drop the near duplicates; return their number."""
    with Workers(WORKERS) as workers:
        decided = CurationRun(Store(job.store), job, Plan({}, [], [], []), workers, silent())
        decided.numbering = numbered(job, documents)
        decided.reasons = np.zeros(decided.numbering.total, np.uint8)
        write_made_up_ngrams(decided)
        decided.drop_duplicates()
    return int((decided.reasons > 0).sum())


def main(documents: int) -> None:
    from benchmarks.measure import run_watched, say

    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        job = job_in(folder)
        numbering = numbered(job, documents)
        dropped = write_signatures(job, numbering)
        say("documents, planted duplicates", f"{numbering.total:,}, {dropped:,}")
        command = ["-m", "benchmarks.many_documents", "decide", folder, str(documents), str(dropped)]
        seconds, peak = run_watched(command)
        pairs = sum(path.stat().st_size for path in Path(job.store, "measures/pairs").rglob("*") if path.is_file())
        say(
            "time, peak memory of all processes, kept of pairs",
            f"{seconds:.0f} s, {peak:.0f} MiB, {pairs / 2**20:.0f} MiB",
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["decide"]:
        found = decide(job_in(sys.argv[2]), int(sys.argv[3]))
        if found != int(sys.argv[4]):
            sys.exit(f"{found} documents were dropped, expected {sys.argv[4]}")
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000_000)
