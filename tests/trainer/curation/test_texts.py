"""Words, lines and shingles of texts, against their definitions; hashes that never change."""

import numpy as np
import pytest

from tests.trainer.curation_texts import encoded, is_alone, is_symbol, plain_said, texts
from trainer.curation.characters import ALONE, LETTER, LINE_ENDS, kinds_of_characters, lower_case
from trainer.curation.texts import Texts, shingles

PINNED_WORDS = ["7fea3d6bdd64059f", "2ab1a6b41f48b833"]
PINNED_SHINGLES = ["e2aad404697cc651", "8c6532c438b05d73", "870af0512be031a6"]


@pytest.fixture(scope="module")
def measured() -> Texts:
    return Texts(encoded(texts()))


def lower(word: str) -> str:
    return "".join(character.lower()[0] for character in word).replace("\u2019", "'")


def test_words_are_what_stands_between_white_space(measured: Texts) -> None:
    words, points = measured.words, "".join(texts())
    assert len(words.starts) == len(texts()) + 1
    for number, text in enumerate(texts()):
        own = slice(words.starts[number], words.starts[number + 1])
        found = [points[first:end] for first, end in zip(words.first[own], words.end[own], strict=True)]
        assert found == text.split(), repr(text[:200])
        assert words.symbol[own].tolist() == [is_symbol(word) for word in found], repr(text[:200])


def test_words_that_are_compared_are_those_of_the_definition(measured: Texts) -> None:
    said, points = measured.normalized_words(), "".join(texts())
    for number, text in enumerate(texts()):
        own = slice(said.starts[number], said.starts[number + 1])
        found = [points[first:end] for first, end in zip(said.first[own], said.end[own], strict=True)]
        assert found == plain_said(text), repr(text[:200])
        assert said.alone[own].tolist() == [is_alone(word[0]) for word in found], repr(text[:200])


def test_equal_words_have_equal_hashes_and_others_do_not(measured: Texts) -> None:
    words = [word for text in texts() for word in text.split()]
    said = [lower(word) for text in texts() for word in plain_said(text)]
    for hashes, spellings in ((measured.words.hashes, words), (measured.normalized_words().hashes, said)):
        assert len(np.unique(hashes)) == len(set(spellings)) == len(set(zip(hashes.tolist(), spellings, strict=True)))


def test_lines_are_those_of_python(measured: Texts) -> None:
    lines, points = measured.lines, "".join(texts())
    found = [points[first:end] for first, end in zip(lines.first, lines.end, strict=True)]
    assert found == [line for text in texts() for line in text.splitlines()]
    assert lines.starts.tolist() == np.cumsum([0, *(len(text.splitlines()) for text in texts())]).tolist()
    assert len(np.unique(lines.hashes)) == len(set(found)) == len(set(zip(lines.hashes.tolist(), found, strict=True)))


@pytest.mark.parametrize("n", [1, 5, 13])
def test_shingles_are_equal_where_n_successive_words_are(n: int, measured: Texts) -> None:
    hashes, starts = shingles(measured, n)
    expected = []
    for number, text in enumerate(texts()):
        words = [lower(word) for word in plain_said(text)]
        grams = [tuple(words[at : at + n]) for at in range(len(words) - n + 1)] or [tuple(words)] * bool(words)
        assert starts[number + 1] - starts[number] == len(grams), repr(text[:200])
        expected += grams
    assert len(np.unique(hashes)) == len(set(expected)) == len(set(zip(hashes.tolist(), expected, strict=True)))


def test_what_is_found_of_a_text_does_not_depend_on_the_others_of_its_batch(measured: Texts) -> None:
    assert any(document.isascii() for document in measured.documents) and measured.points.dtype == np.uint32
    said = measured.normalized_words()
    for number, document in enumerate(measured.documents):
        alone = Texts([document])
        pairs = (alone.words, measured.words), (alone.normalized_words(), said), (alone.lines, measured.lines)
        for own, all_of_them in pairs:
            part = slice(all_of_them.starts[number], all_of_them.starts[number + 1])
            for name in set(own._fields) - {"starts"}:
                offset = measured.starts[number] if name in ("first", "end") else 0
                assert getattr(own, name).tolist() == (getattr(all_of_them, name)[part] - offset).tolist()
        hashes, starts = shingles(measured, 3)
        assert shingles(alone, 3)[0].tolist() == hashes[starts[number] : starts[number + 1]].tolist()


def test_no_texts_have_no_words_and_no_lines() -> None:
    for documents in ([], [b""], [b"", b""]):
        nothing = Texts(documents)
        assert nothing.points.tolist() == nothing.words.hashes.tolist() == nothing.lines.hashes.tolist() == []
        assert nothing.words.starts.tolist() == nothing.lines.starts.tolist() == shingles(nothing, 5)[1].tolist()
        assert len(nothing.words.starts) == len(documents) + 1


def test_hashes_are_the_same_for_all_time() -> None:
    """Signatures that were kept are compared with those of later versions."""
    one = Texts(["The mill, the RACE\nпривет".encode()])
    assert one.words.hashes.tolist() == [plain_hash(word) for word in ("The", "mill,", "the", "RACE", "привет")]
    assert one.normalized_words().hashes.tolist() == [
        plain_hash(word) for word in ("the", "mill", "the", "race", "привет")
    ]
    assert one.lines.hashes.tolist() == [plain_hash("The mill, the RACE"), plain_hash("привет")]
    assert [f"{each:016x}" for each in one.normalized_words().hashes[:2]] == PINNED_WORDS
    assert [f"{each:016x}" for each in shingles(one, 3)[0]] == PINNED_SHINGLES


def plain_hash(text: str) -> int:
    value = 0xCBF29CE484222325
    for character in text:
        value = (value ^ ord(character)) * 0x9E3779B97F4A7C15 % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        value = (value ^ value >> shift) * factor % 2**64
    return value


def test_hashes_are_well_mixed() -> None:
    """Of a hundred thousand numbers written out, each bit of the hash is set in half, and follows no other bit."""
    hashes = Texts([" ".join(map(str, range(100_000))).encode()]).words.hashes
    bits = (hashes[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.01
    correlations = np.corrcoef(bits.T.astype(np.float64)) - np.eye(64)
    assert np.abs(correlations).max() < 0.02


def test_characters_are_as_python_tells() -> None:
    assert [chr(point) for point in np.flatnonzero(kinds_of_characters() == 0)] == sorted(LINE_ENDS)
    letters = kinds_of_characters() >= LETTER
    for point in (*range(0, 0x3400), *range(0x9F00, 0x20010), 0xE0100, 0x10FFFF):
        character = chr(point)
        assert letters[point] == character.isalpha(), hex(point)
        assert (kinds_of_characters()[point] == ALONE) == is_alone(character), hex(point)
        assert (kinds_of_characters()[point] < 2) == character.isspace(), hex(point)
        assert chr(lower_case()[point]) == character.lower()[0], hex(point)
    assert [point for point in range(0x20000, 0x110000) if chr(point).lower() != chr(point)] == []
