"""Duplicates against plain references: all-pairs Jaccard similarities, and sets of n-grams that are compared pair by
pair.
"""

import hashlib
import random
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from tests.support import flip_bit
from tests.trainer.curating import curated_job, decide, job_on, originals_of, prose, reasons_of, write_documents
from tests.trainer.curation_texts import texts
from tests.trainer.made import prepare
from tests.trainer.plain_duplicates import sharing, superfluous
from trainer.common.errors import StorageError
from trainer.common.progress import silent
from trainer.config.curation import ExactConfig, NearConfig
from trainer.config.jobs import PrepareJob
from trainer.curation.measures import Batch
from trainer.curation.near import compare
from trainer.curation.shared_keys import KEYS, Digest, Signature, punctuation
from trainer.curation.showing import StoredDecisions
from trainer.curation.texts import Texts, shingles
from trainer.data.decisions import open_decisions, read_decisions
from trainer.data.readers import Document
from trainer.kinds.pretraining.kind import find_prepared
from trainer.store.manifest import read_manifest
from trainer.store.storage import Store


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
    likely = np.array(similarities) >= 0.8
    assert likely.sum() > 500
    assert found[likely].mean() >= expected[likely].mean() - 0.03
    unlike = np.array(similarities) < 0.2
    assert found[unlike].mean() < expected[unlike].mean() + 0.03


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
        [[min((factor * each + term) % prime for each in found) for factor, term in functions] for found in sets],
        object,
    )
    errors = [(minima[::2] == minima[1::2]).mean(axis=1) - true[: len(minima) // 2] for minima in (ours, plain)]
    assert abs(errors[0].mean()) < 0.01
    assert np.sqrt((errors[0] ** 2).mean()) < 1.2 * np.sqrt((errors[1] ** 2).mean())


def near_pairs(texts: Sequence[str], options: NearConfig) -> csr_array:
    """The pairs of texts that share a key."""
    return sharing(Signature.of(options)(batch_of(texts))[KEYS][:, :, 0])


@pytest.mark.parametrize("near", [{}, {"bands": 40, "rows": 3}, {"least_similarity": 0.6, "least_contained": 1.0}])
def test_documents_go_that_a_plain_comparison_of_their_n_grams_finds_superfluous(
    tmp_path: Path, near: dict[str, float]
) -> None:
    draw = random.Random(3)
    texts: list[str] = []
    for seed in range(100):
        words = prose(seed, 120)
        texts.append(" ".join(words))
        if seed % 3 == 0:
            texts += [" ".join(edited(words, share, draw)) for share in (0.01, 0.03, 0.06)]
            texts += [" ".join(words[draw.randrange(40) :]), " ".join([*words, *prose(seed + 1000, 40)])]
            texts.append(" ".join([*words, *words[:60] * 3]))  # what is repeated counts once
    texts = draw.sample(texts, len(texts))
    job = job_on(tmp_path, texts, {"exact": None, "near": near}, shards={"num_shards": 1})
    made = decide(job)
    options = NearConfig.model_validate(near)
    expected = superfluous(texts, 5, near_pairs(texts, options), options.least_similarity, options.least_contained)
    assert len(expected) > 80
    found = open_decisions(Store(job.store), made.key, "one")
    assert dict(zip(found.duplicates.tolist(), found.originals.tolist(), strict=True)) == {
        text: each.original for text, each in expected.items()
    }
    assert found.similarity.tolist() == pytest.approx([expected[text].similarity for text in sorted(expected)])
    assert found.contained.tolist() == pytest.approx([expected[text].contained for text in sorted(expected)])


def test_of_a_chain_only_those_go_that_one_which_stays_makes_superfluous(tmp_path: Path) -> None:
    words = prose(1, 200)
    chain = [" ".join([f"start{step}", *words[12 * step : 12 * step + 120]]) for step in range(6)]
    assert similarity(chain[0], chain[5], 5) < 0.4 < 0.8 == similarity(chain[0], chain[1], 5)
    job = job_on(
        tmp_path, [chain[4], "something else entirely", *chain[:4], chain[5]], {"near": {"bands": 60, "rows": 4}}
    )
    made = decide(job)
    near = "near duplicate"
    assert reasons_of(job, made.key, "one") == ["kept", "kept", "kept", near, "kept", near, near]
    assert originals_of(job, made.key, "one") == {3: 2, 5: 0, 6: 0}


def test_templates_that_share_every_key_stay_however_many_they_are(tmp_path: Path) -> None:
    template = [prose(seed, 60) for seed in range(6)]
    pages = [
        " ".join(
            word
            for part, own in zip(template, range(6), strict=True)
            for word in [*part, *prose(1000 * page + own, 12)]
        )
        for page in range(300)
    ]
    assert 0.5 < similarity(pages[0], pages[1], 5) < 0.8
    copy = pages[7].replace(pages[7].split()[3], "otherwise", 1)
    job = job_on(tmp_path, [*pages, copy], {"near": {}})
    made = decide(job)
    assert originals_of(job, made.key, "one") in ({300: 7}, {7: 300})


def test_of_corpora_one_of_which_contains_the_other_either_may_come_first(tmp_path: Path) -> None:
    texts = [" ".join(prose(seed, 120)) for seed in range(12)]
    paths = {
        "all": str(write_documents(tmp_path / "all.jsonl", texts)),
        "some": str(write_documents(tmp_path / "some.jsonl", texts[:3])),
    }
    for number, names in enumerate((("all", "some"), ("some", "all"))):
        job = curated_job(tmp_path / f"store{number}", {name: paths[name] for name in names}, {"near": {}})
        prepared = prepare(job, silent())
        kept = [read_manifest(Store(job.store), ref.key, "shards").details["totals"] for ref in prepared.shards]
        assert [each["documents"] + each["validation_documents"] for each in kept] == (
            [12] if names[0] == "all" else [3, 9]
        )
        assert find_prepared(job) is not None


@pytest.mark.parametrize("at_once", [1, 70, 2**20])
def test_what_goes_does_not_depend_on_how_the_work_is_divided(
    tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.curation.near.WORK_AT_ONCE", at_once)
    monkeypatch.setattr("trainer.curation.near.HASHES_AT_ONCE", at_once)
    monkeypatch.setattr("trainer.curation.units.UNIT_BYTES", 200 * at_once)
    monkeypatch.setattr("trainer.curation.shared_keys.SLICE_KEYS", 90 * at_once)
    draw, texts = random.Random(5), []
    for seed in range(40):
        words = prose(seed, 80)
        texts += [" ".join(words), " ".join(edited(words, 0.02, draw)), " ".join(words[:70])]
    folder = tmp_path / "raw"
    for number in range(10):
        write_documents(folder / f"{number}.jsonl", texts[12 * number : 12 * number + 12])
    job = curated_job(tmp_path / "store", {"one": f"{folder}/*.jsonl"}, {"near": {}})
    expected = superfluous(texts, 5, near_pairs(texts, NearConfig()))
    assert originals_of(job, decide(job).key, "one") == {text: each.original for text, each in expected.items()}
    assert len(expected) > 60 and not list(Path(job.store).rglob("ngrams-*"))


def job_on_copies(folder: Path, **near: float) -> PrepareJob:
    """Six texts, and a copy of each that is a near duplicate of it."""
    texts = [" ".join(prose(seed, 80)) for seed in range(6)]
    return job_on(folder, [*texts, *(f"{text} otherwise" for text in texts)], {"near": near})


def test_another_curation_with_other_bounds_may_end_while_documents_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [job_on_copies(tmp_path, least_similarity=least) for least in (0.8, 0.7)]
    other = []

    def compare_late(*arguments: Any) -> Any:
        monkeypatch.undo()
        other.append(decide(jobs[1]))
        return compare(*arguments)

    monkeypatch.setattr("trainer.curation.near.compare", compare_late)
    assert (
        len(originals_of(jobs[0], decide(jobs[0]).key, "one")) == 6 == len(originals_of(jobs[1], other[0].key, "one"))
    )
    assert not list(Path(jobs[0].store).rglob("ngrams-*"))


def test_nothing_stays_of_n_grams_if_a_pass_is_broken_off_right_before_they_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_on_copies(tmp_path)

    def break_off(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("trainer.curation.near.forget_ngrams", break_off)
        decide(job)
    assert list(Path(job.store).rglob("ngrams-*"))
    assert len(originals_of(job, decide(job).key, "one")) == 6
    assert not list(Path(job.store).rglob("ngrams-*"))


@pytest.mark.parametrize("change", ["flip", "lose"])
def test_n_grams_that_are_damaged_or_gone_are_gathered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    job = job_on_copies(tmp_path)
    monkeypatch.setattr("trainer.curation.near.HASHES_AT_ONCE", 200)

    def damaged(store: Store, folder: str, *arguments: Any) -> Any:
        (*_, file) = sorted(Path(job.store).glob("measures/pairs/*/ngrams-*-*-*.npz"))
        if change == "lose":
            file.unlink()
        else:
            flip_bit(file)
        return compare(store, folder, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr("trainer.curation.near.compare", damaged)
        with pytest.raises(StorageError, match=r"is gone or damaged.*start the command again"):
            decide(job)
    assert len(originals_of(job, decide(job).key, "one")) == 6


def test_a_document_with_a_key_that_many_have_is_compared_with_the_next_in_length_and_that_is_counted(
    tmp_path: Path,
) -> None:
    words = prose(1, 100)
    texts = [" ".join([*words, *prose(10 + number, 60 + number % 30)]) for number in range(150)]
    options = NearConfig(bands=1, rows=1)

    def keys_of(texts: Sequence[str]) -> list[int]:
        return [int(key) for key in Signature.of(options)(batch_of(texts))[KEYS][:, 0, 0]]

    keys = keys_of(texts)
    groups = Counter(keys)
    (common, many), *_ = groups.most_common()
    assert many > 33, "one key of most documents"
    shortest = min((text for text, key in zip(texts, keys, strict=True) if key == common), key=len)
    part = shortest.rpartition(" ")[0]
    assert keys_of([part]) == [common]
    job = job_on(tmp_path, [*texts, part], {"near": options.model_dump()})
    made = decide(job)
    assert originals_of(job, made.key, "one") == {len(texts): texts.index(shortest)}
    assert read_decisions(Store(job.store), made.key).details["compared"] == {
        "pairs": sum(min(before, 32) for count in groups.values() for before in range(count)) + 32,
        "incomplete": sum(count - 33 for count in groups.values() if count > 33),
    }


def test_documents_that_share_several_keys_are_compared_once(tmp_path: Path) -> None:
    words = prose(1, 120)
    texts = [" ".join([*words, *prose(2 + number, 60)]) for number in range(2)]
    options = NearConfig(bands=20, rows=1)
    keys = Signature.of(options)(batch_of(texts))[KEYS][:, :, 0]
    assert (keys[0] == keys[1]).sum() > 1
    job = job_on(tmp_path, texts, {"near": options.model_dump()})
    made = decide(job)
    assert reasons_of(job, made.key, "one") == ["kept", "kept"]
    assert read_decisions(Store(job.store), made.key).details["compared"] == {"pairs": 1, "incomplete": 0}


def test_an_exact_copy_names_the_first_copy_also_where_that_goes_as_a_near_duplicate(tmp_path: Path) -> None:
    words = prose(1, 200)
    texts = [" ".join(words), " ".join([*words[:100], "otherwise", *words[101:]]), " ".join(prose(2, 200))]
    documents = [texts[0], texts[1], texts[2], f"{texts[1]} ", texts[0], f" {texts[1]}"]
    job = job_on(tmp_path, documents, {"near": {}})
    path = tmp_path / "a.jsonl"
    made = decide(job)
    exact, near = "exact duplicate", "near duplicate"
    assert reasons_of(job, made.key, "one") == ["kept", near, "kept", exact, exact, exact]
    assert originals_of(job, made.key, "one") == {1: 0, 3: 1, 4: 0, 5: 1}
    (shown,) = StoredDecisions(Store(job.store), made.key).document(str(path), 4)
    assert shown.why == (
        f"it is a copy of {path}#2, which is dropped as near duplicate: {path}#1 is kept instead; the similarity of "
        "their n-grams is 0.95, and that one contains 97% of its n-grams"
    )


def test_copies_with_curly_apostrophes_are_near_duplicates(tmp_path: Path) -> None:
    straight = [
        " ".join(["don't", "it's"][number % 2] if number % 18 == 7 else word for number, word in enumerate(words))
        for words in (prose(seed, 200) for seed in range(10))
    ]
    curly = [text.replace("'", "\u2019") for text in straight]
    job = job_on(tmp_path, [*straight, *curly], {"near": {}})
    made = decide(job)
    assert reasons_of(job, made.key, "one") == [*["kept"] * 10, *["near duplicate"] * 10]
    assert set(open_decisions(Store(job.store), made.key, "one").similarity.tolist()) == {1.0}


def test_texts_without_words_resemble_nothing(tmp_path: Path) -> None:
    job = job_on(tmp_path, ["!!!", "???", "... ...", "a word"], {"near": {}})
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
    others = ["a  b\n c ", "A b C", "a, b c!", "A  B c", "a b. c", "a\tb\tc", "a b d", "a+ b c"]
    rows = Digest(tuple(normalise))(batch_of(["a b c", *others]))[KEYS][:, 0]
    equal = {other for other, row in zip(others, rows[1:], strict=True) if (row == rows[0]).all()}
    assert equal >= set(same) and not equal & {"a b d", "a+ b c"}
    assert bool(equal) == bool(same)


def test_another_seed_gives_other_keys() -> None:
    batch = batch_of([" ".join(prose(1, 60))])
    keys = [Signature.of(NearConfig(seed=seed))(batch)[KEYS] for seed in (0, 1, 0)]
    assert (keys[0] == keys[2]).all() and not (keys[0] == keys[1]).any()


def test_the_order_of_what_is_normalised_names_the_same_digest() -> None:
    orders = [["space", "case"], ["case", "space"], ["case", "space", "case"]]
    assert len({Digest.of(ExactConfig.model_validate({"normalise": each})) for each in orders}) == 1


def test_a_text_in_upper_case_is_the_same_whatever_letters_it_has() -> None:
    lower = ["ταΐζω", "προϋπόθεση", "Straße", "ǰ", "ᾷ", "ΰ", "ῗ", "ŉ", "ﬁ"]
    digest = Digest(("case", "unicode"))
    rows = [digest(batch_of(each))[KEYS] for each in (lower, [text.upper() for text in lower])]
    assert (rows[0] == rows[1]).all()
    assert (digest(batch_of([text.title() for text in lower]))[KEYS] == rows[0]).all()


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
        if "case" in normalise:  # Unicode 3.13, D145, composed again
            text = unicodedata.normalize("NFD", text) if "unicode" in normalise else text
            text = text.casefold()
            text = unicodedata.normalize("NFC", text) if "unicode" in normalise else text
        text = text.translate(punctuation()) if "punctuation" in normalise else text
        expected.append(
            hashlib.blake2b((" ".join(text.split()) if "space" in normalise else text).encode(), digest_size=16)
        )
    rows = digest(batch_of(found))[KEYS][:, 0]
    assert [row.tobytes() for row in rows] == [each.digest() for each in expected]
    assert digest(batch_of([]))[KEYS].shape == (0, 1, 2)
