"""Duplicates against plain references: all-pairs Jaccard similarities, and clusters by walking through pairs."""

import hashlib
import random
import unicodedata
from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.curating import Here, curated_job, decide, originals_of, prose, reasons_of, write_documents
from tests.trainer.curation_texts import texts
from trainer.config.curation import NearConfig
from trainer.corpus.readers import Document
from trainer.curation.duplicates import Clusters
from trainer.curation.keys import KEYS, Digest, Signature, punctuation
from trainer.curation.measures import Batch
from trainer.curation.showing import Decided
from trainer.curation.texts import Texts, shingles
from trainer.store.storage import Store


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.curation.curating.Workers", Here)


def batch_of(texts: Sequence[str]) -> Batch:
    return Batch([Document(text.encode(), ends=True) for text in texts])


def similarity(one: str, other: str, ngram: int) -> float:
    """Jaccard's, of the sets of n-grams of lower-case words."""
    sets = []
    for text in (one, other):
        words = text.lower().split()
        sets.append({tuple(words[start : start + ngram]) for start in range(max(1, len(words) - ngram + 1))})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def edited(words: list[str], share: float, draw: random.Random) -> list[str]:
    """Words of which a share, at random places, are others."""
    return [f"w{draw.randrange(10**6)}" if draw.random() < share else word for word in words]


@pytest.mark.parametrize(("bands", "rows"), [(14, 8), (20, 5)])
def test_pairs_are_found_as_often_as_the_formula_says(bands: int, rows: int) -> None:
    options = NearConfig(bands=bands, rows=rows)
    draw = random.Random(bands)
    texts, similarities = [], []
    for seed in range(3000):
        words = prose(seed, 150)
        pair = " ".join(words), " ".join(edited(words, draw.uniform(0.0, 0.12), draw))
        texts += pair
        similarities.append(similarity(*pair, options.ngram))
    keys = Signature.of(options)(batch_of(texts))[KEYS]
    assert keys.shape == (len(texts), bands, 1)
    found = (keys[::2, :, 0] == keys[1::2, :, 0]).any(axis=1)
    expected = np.array([options.found(each) for each in similarities])
    assert abs(found.mean() - expected.mean()) < 0.03
    likely = np.array(similarities) >= options.threshold
    assert likely.sum() > 500
    assert found[likely].mean() >= expected[likely].mean() - 0.03
    assert found[np.array(similarities) < 0.2].mean() < 0.03


def test_estimates_are_as_near_as_those_of_a_plain_minhash() -> None:
    options = NearConfig(bands=16, rows=8)
    draw = random.Random(1)
    pairs = []
    for seed in range(400):
        words = prose(seed, 150)
        pairs.append((" ".join(words), " ".join(edited(words, draw.uniform(0.0, 0.2), draw))))
    texts = Texts([text.encode() for pair in pairs for text in pair])
    hashes, starts = shingles(texts, options.ngram)
    true = np.array([similarity(*pair, options.ngram) for pair in pairs])
    ours = Signature.of(options).minima(hashes, starts)
    prime = 2**61 - 1
    functions = [(draw.randrange(1, prime), draw.randrange(prime)) for _ in range(128)]
    sets = [list(map(int, hashes[start:end])) for start, end in pairwise(starts[:121])]
    plain = np.array(  # Broder 1997, with the functions (a x + b) mod p
        [[min((factor * each + term) % prime for each in found) for factor, term in functions] for found in sets], object
    )
    errors = [(minima[::2] == minima[1::2]).mean(axis=1) - true[: len(minima) // 2] for minima in (ours, plain)]
    assert abs(errors[0].mean()) < 0.01
    assert np.sqrt((errors[0] ** 2).mean()) < 1.2 * np.sqrt((errors[1] ** 2).mean())


def test_planted_documents_are_found_as_all_pairs_of_a_plain_reference_say(tmp_path: Path) -> None:
    draw = random.Random(3)
    texts: list[str] = []
    for seed in range(120):
        words = prose(seed, 120)
        texts.append(" ".join(words))
        if seed % 3 == 0:
            texts += [" ".join(edited(words, share, draw)) for share in (0.01, 0.03)]
    order = draw.sample(range(len(texts)), len(texts))
    texts = [texts[place] for place in order]
    path = write_documents(tmp_path / "a.jsonl", texts)
    job = curated_job(tmp_path / "store", {"one": str(path)}, {"near": {"bands": 20, "rows": 5}}, shards={"num_shards": 1})
    reasons = reasons_of(job, decide(job).key, "one")
    options = NearConfig(bands=20, rows=5)
    alike = {pair: similarity(texts[pair[0]], texts[pair[1]], 5) for pair in combinations(range(len(texts)), 2)}
    dropped = {number for number, reason in enumerate(reasons) if reason != "kept"}
    resembling = {max(pair) for pair, found in alike.items() if found >= options.threshold}
    recall = len(dropped & resembling) / len(resembling)
    expected = np.mean([options.found(found) for found in alike.values() if found >= options.threshold])
    assert len(resembling) > 60 and recall >= expected - 0.03
    related = {max(pair) for pair, found in alike.items() if found >= 0.2}
    assert dropped <= related, "nothing that resembles nothing goes"


def test_of_a_chain_the_first_stays(tmp_path: Path) -> None:
    words = prose(1, 200)
    chain = [" ".join([f"start{step}", *words[12 * step : 12 * step + 120]]) for step in range(6)]
    assert similarity(chain[0], chain[5], 5) < 0.4 < 0.7 < similarity(chain[0], chain[1], 5)
    path = write_documents(tmp_path / "a.jsonl", [chain[4], "something else entirely", *chain[:4], chain[5]])
    job = curated_job(tmp_path / "store", {"one": str(path)}, {"near": {"bands": 60, "rows": 4}})
    made = decide(job)
    assert reasons_of(job, made.key, "one") == ["kept", "kept"] + ["near duplicate"] * 5
    assert set(originals_of(job, made.key, "one").values()) == {0}


def test_an_exact_copy_names_the_first_copy_also_where_that_goes_as_a_near_duplicate(tmp_path: Path) -> None:
    words = prose(1, 200)
    texts = [" ".join(words), " ".join([*words[:100], "otherwise", *words[101:]]), " ".join(prose(2, 200))]
    path = write_documents(tmp_path / "a.jsonl", [texts[0], texts[1], texts[2], f"{texts[1]} ", texts[0], f" {texts[1]}"])
    job = curated_job(tmp_path / "store", {"one": str(path)}, {"near": {}})
    made = decide(job)
    exact, near = "exact duplicate", "near duplicate"
    assert reasons_of(job, made.key, "one") == ["kept", near, "kept", exact, exact, exact]
    assert originals_of(job, made.key, "one") == {1: 0, 3: 1, 4: 0, 5: 1}
    (shown,) = Decided(Store(job.store), made.key).document(str(path), 4)
    assert shown.why == (
        f"it is a copy of {path}#2, they share 100% of their n-grams; that one goes as near duplicate: {path}#1 stays in its "
        "place; they share 95% of their n-grams"
    )


@pytest.mark.parametrize("at_once", [1, 7, 2**22])
def test_clusters_are_those_of_a_walk_through_the_pairs_in_any_order(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.curation.duplicates.SETTLED_AT_ONCE", at_once)
    draw = random.Random(5)
    for _ in range(50):
        size = draw.randrange(2, 60)
        pairs = [(draw.randrange(size), draw.randrange(size)) for _ in range(draw.randrange(size))]
        expected = list(range(size))
        for _ in range(size):
            for one, other in pairs:
                expected[one] = expected[other] = min(expected[one], expected[other])
        clusters = Clusters(size)
        for pair in draw.sample(pairs, len(pairs)):
            clusters.link(np.array([pair if draw.random() < 0.5 else pair[::-1]], np.int64))
        assert clusters.settle(np.ones(len(expected), bool)).tolist() == expected


def test_texts_without_words_resemble_nothing(tmp_path: Path) -> None:
    path = write_documents(tmp_path / "a.jsonl", ["!!!", "???", "... ...", "a word"])
    job = curated_job(tmp_path / "store", {"one": str(path)}, {"near": {}})
    assert reasons_of(job, decide(job).key, "one") == ["kept"] * 4


@pytest.mark.parametrize(
    ("normalise", "same"),
    [
        ([], []),
        (["space"], ["a  b\n c "]),
        (["case"], ["A b C"]),
        (["punctuation"], ["a, b c!"]),
        (["unicode", "space", "case", "punctuation"], ["A  B c", "a b. c", "a\tb\tc"]),
    ],
)
def test_what_is_normalised_does_not_count(normalise: list[str], same: list[str]) -> None:
    others = ["a  b\n c ", "A b C", "a, b c!", "A  B c", "a b. c", "a\tb\tc", "a b d"]
    rows = Digest(tuple(normalise))(batch_of(["a b c", *others]))[KEYS][:, 0]
    equal = {other for other, row in zip(others, rows[1:], strict=True) if (row == rows[0]).all()}
    assert equal >= set(same) and "a b d" not in equal
    assert bool(equal) == bool(same)


def test_characters_that_are_written_otherwise_are_the_same() -> None:
    rows = Digest(("unicode",))(batch_of(["\u00e9t\u00e9", "e\u0301te\u0301", "ete"]))[KEYS][:, 0]
    assert (rows[0] == rows[1]).all() and (rows[0] != rows[2]).any()


@pytest.mark.parametrize(
    "normalise", [("space", "unicode"), ("space",), ("unicode",), ("case", "punctuation", "space", "unicode")]
)
def test_a_digest_is_that_of_the_text_as_python_normalises_it(normalise: tuple[str, ...]) -> None:
    spaces = ["\t one\x1ctwo\x1f\x0b three\r\n", " ", "", "end \x1d", "\x00 \x7f  a", "one\x85two\u00a0\u2003three"]
    found = [*texts(), *spaces]
    digest = Digest(normalise)
    expected = []
    for text in found:
        text = unicodedata.normalize("NFC", text) if "unicode" in normalise else text
        text = text.casefold() if "case" in normalise else text
        text = text.translate(punctuation()) if "punctuation" in normalise else text
        expected.append(hashlib.blake2b((" ".join(text.split()) if "space" in normalise else text).encode(), digest_size=16))
    rows = digest(batch_of(found))[KEYS][:, 0]
    assert [row.tobytes() for row in rows] == [each.digest() for each in expected]
    assert digest(batch_of([]))[KEYS].shape == (0, 1, 2)
