"""Duplicates among thousands of real texts, against the Jaccard similarity of every pair and what the bands' formula
predicts.

Families of texts that resemble each other, licences for instance, are found or missed together, so that a family counts
once, and the pass is made with many hash functions.
"""

import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array

from tests.real_texts import real_texts
from tests.trainer.curating import curated_job, decide, originals_of, reasons_of, write_documents
from tests.trainer.curation_texts import plain_said, texts
from tests.trainer.plain_duplicates import firsts, jaccard, said, sharing, superfluous
from tests.trainer.planted_texts import EVALUATION, EXACT, KEPT, NEAR, chains, copies, junk
from trainer.config.curation import NearConfig
from trainer.config.jobs import PrepareJob
from trainer.curation.shared_keys import KEYS
from trainer.curation.units import read_arrays
from trainer.data.decisions import open_decisions
from trainer.store.storage import Store

pytestmark = [pytest.mark.deep, pytest.mark.xdist_group("real duplicates")]

LONGEST = 20_000
RELATED, APART = 0.3, 0.1
"""Texts that are less similar than these belong to no family, and resemble nothing."""

SEEDS = range(1, 101)
BINS = list(pairwise([0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01]))
POINTS = 0.03
NEAR_OPTIONS = NearConfig()
WHOLE = {"num_shards": 1, "piece_bytes": 2**26}


@pytest.fixture(scope="module")
def real() -> list[str]:
    texts = [text for _, text in real_texts() if len(text) <= LONGEST]
    assert len(texts) > 2000, len(texts)
    return texts


@pytest.fixture(scope="module")
def similarities(real: list[str]) -> csr_array:
    return jaccard(real, NEAR_OPTIONS.ngram)


def signatures(job: PrepareJob) -> NDArray[np.uint64]:
    """What the stage has measured, a row a document and a column a band."""
    store = Path(job.store)
    files = [next(store.glob(f"measures/{corpus.name}-*/signature-*/*.npz")) for corpus in job.data.corpora]
    keys = [read_arrays(Store(job.store), str(path.relative_to(store)), KEYS)[0] for path in files]
    return np.concatenate(keys)[:, :, 0]


class Families(NamedTuple):
    """Pairs of texts that resemble each other, by the first text of their family."""

    ones: NDArray[np.int32]
    others: NDArray[np.int32]
    first: NDArray[np.int64]
    similarity: NDArray[np.float64]

    def share(self, found: NDArray[np.float64], least: float, most: float) -> float:
        """The mean over families of the share of each one's pairs of such similarities that is found."""
        within = (self.similarity >= least) & (self.similarity < most)
        sums, counts = np.bincount(self.first[within], found[within]), np.bincount(self.first[within])
        return float(np.mean(sums[counts > 0] / counts[counts > 0]))


def test_the_words_of_the_plain_reference_are_those_of_the_definition() -> None:
    for text in texts():
        words = plain_said(unicodedata.normalize("NFC", text))
        lowered = ["".join(character.lower()[0] for character in word).replace("’", "'") for word in words]
        assert said(text) == lowered, repr(text[:200])


def test_pairs_are_found_as_often_as_the_formula_says(real: list[str], similarities: csr_array, tmp_path: Path) -> None:
    likely = similarities.multiply(similarities >= RELATED).tocsr()
    members = np.unique(np.concatenate(likely.nonzero()))
    pairs = likely[members][:, members].tocoo()
    families = Families(pairs.row, pairs.col, firsts(pairs)[pairs.row], pairs.data)
    raw = write_documents(tmp_path / "raw.jsonl", [real[number] for number in members])
    shares: list[list[float]] = []
    for seed in SEEDS:
        near = {"seed": seed}
        job = curated_job(tmp_path / f"store-{seed}", {"real": str(raw)}, {"exact": None, "near": near}, shards=WHOLE)
        decide(job)
        keys = signatures(job)
        found = (keys[families.ones] == keys[families.others]).any(axis=1).astype(float)
        shares.append([families.share(found, *edges) for edges in BINS])
    predicted = np.vectorize(NEAR_OPTIONS.found)(families.similarity)
    expected = np.array([families.share(predicted, *edges) for edges in BINS])
    measured = np.mean(shares, axis=0)
    assert (np.abs(measured - expected) < POINTS).all(), list(zip(BINS, measured, expected, strict=True))


def test_real_texts_go_that_a_plain_comparison_of_their_n_grams_finds_superfluous(
    real: list[str], similarities: csr_array, tmp_path: Path
) -> None:
    raw = write_documents(tmp_path / "raw.jsonl", real)
    job = curated_job(tmp_path / "store", {"real": str(raw)}, {"exact": None, "near": {}}, shards=WHOLE)
    found = open_decisions(Store(job.store), decide(job).key, "real")
    expected = superfluous(real, NEAR_OPTIONS.ngram, sharing(signatures(job)))
    assert len(expected) > 50
    gone = sorted(expected)
    assert found.duplicates.tolist() == gone and np.flatnonzero(found.reasons).tolist() == gone
    assert found.originals.tolist() == [expected[text].original for text in gone]
    assert found.similarity == pytest.approx([expected[text].similarity for text in gone])
    assert found.contained == pytest.approx([expected[text].contained for text in gone])
    both = similarities + similarities.T
    assert found.similarity == pytest.approx(both[found.duplicates, found.originals], abs=1e-6)
    assert ((found.similarity >= 0.8) | (found.contained >= 0.95)).all()


def test_planted_copies_and_links_of_a_chain_resemble_each_other_and_the_ends_of_a_chain_do_not(
    real: list[str],
) -> None:
    chain = [each.text for each in chains(1, 0)]
    similarities = jaccard(chain, NEAR_OPTIONS.ngram).toarray()
    assert similarities.diagonal(1).min() > 0.9 and similarities[0, -1] < 0.4
    long = [number for number, text in enumerate(real) if len(text.split()) > 300]
    for each in copies(real, long[:40]):
        assert each.original is not None
        assert jaccard([real[each.original], each.text], NEAR_OPTIONS.ngram).max() > 0.85


def test_what_is_planted_among_real_texts_goes_for_its_reason_and_the_first_of_each_family_stays(
    real: list[str], similarities: csr_array, tmp_path: Path
) -> None:
    resembled = np.concatenate((similarities >= APART).nonzero())
    alone = [int(each) for each in np.setdiff1d(np.arange(len(real)), resembled) if len(real[each].split()) > 300]
    assert len(alone) > 200, len(alone)
    copied_from = alone[:: len(alone) // 60]
    copied = list(copies(real, copied_from))
    copied += chains(5, len(real) + len(copied))
    thrown = list(junk())
    planted = {"real": real, "copies": [each.text for each in copied], "junk": [each.text for each in thrown]}
    job = curated_job(
        tmp_path / "store",
        {name: str(write_documents(tmp_path / f"{name}.jsonl", texts)) for name, texts in planted.items()},
        curation_of(tmp_path),
        shards=WHOLE,
    )
    key = decide(job).key
    reasons = {name: reasons_of(job, key, name) for name in planted}
    originals = originals_of(job, key, "copies")
    assert [(reason, originals.get(place)) for place, reason in enumerate(reasons["copies"])] == [
        each[1:] for each in copied
    ]
    assert {reasons["real"][number] for number in copied_from} == {KEPT}
    assert reasons["junk"] == [each.reason for each in thrown]
    assert [*reasons["real"], *reasons["copies"]] == expected_reasons([*real, *planted["copies"]], signatures(job))


def curation_of(folder: Path) -> dict[str, object]:
    """What is decided of real texts and copies by duplicates alone, and of junk by rules as well."""
    evaluation = folder / "evaluation.txt"
    evaluation.write_text("\n".join(EVALUATION), encoding="utf-8")
    rules = [{"kind": "language", "languages": ["en"]}, {"kind": "gopher_repetition"}]
    return {
        "near": {},
        "filters": [{**rule, "corpora": ["junk"]} for rule in rules],
        "decontaminate": {"files": [{"paths": [str(evaluation)]}]},
    }


def expected_reasons(texts: Sequence[str], keys: NDArray[np.uint64]) -> list[str]:
    """Why texts go, by a walk through all that are the same, and a plain comparison of the first of these."""
    known: dict[str, int] = {}
    same = [
        known.setdefault(" ".join(unicodedata.normalize("NFC", text).split()), place)
        for place, text in enumerate(texts)
    ]
    is_first = np.array(same) == np.arange(len(texts))
    candidates = sharing(np.where(is_first[:, None], keys[: len(texts)], np.uint64(0)))
    gone = superfluous(texts, NEAR_OPTIONS.ngram, candidates)
    return [EXACT if not is_first[place] else NEAR if place in gone else KEPT for place in range(len(texts))]
