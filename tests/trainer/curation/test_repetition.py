"""Each field of Gopher's repetition rules against a formula in plain Python."""

from collections import Counter
from collections.abc import Sequence
from itertools import compress, groupby

import pytest

from tests.trainer.curation_texts import encoded, manual_pages, texts
from trainer.curation.gopher import repetition
from trainer.curation.texts import Texts


def plain_repetition(text: str) -> dict[str, float]:
    """Rae et al. 2021, table A1."""
    lines, words, characters = text.splitlines(), text.split(), max(len(text), 1)
    full = [line for line in lines if line]
    paragraphs, sizes = paragraphs_of(text)
    fields = {
        "duplicate_lines": sum(duplicates(full)) / max(len(full), 1),
        "duplicate_line_characters": sum(map(len, compress(full, duplicates(full)))) / characters,
        "duplicate_paragraphs": sum(duplicates(paragraphs)) / max(len(paragraphs), 1),
        "duplicate_paragraph_characters": sum(compress(sizes, duplicates(paragraphs))) / characters,
    }
    for n in (2, 3, 4):
        counts = Counter(" ".join(words[at : at + n]) for at in range(len(words) - n + 1))
        top, times = counts.most_common(1)[0] if counts else ("", 0)
        fields[f"top_{n}_gram_characters"] = len(top) * times / characters
    for n in range(5, 11):
        fields[f"duplicate_{n}_gram_characters"] = duplicate_characters(words, n) / characters
    return fields


def paragraphs_of(text: str) -> tuple[list[tuple[str, ...]], list[int]]:
    """The lines of each paragraph, which stands between empty lines, and its characters, those among them that end
    lines.
    """
    paragraphs, sizes = [], []
    for is_empty, run in groupby(text.splitlines(keepends=True), key=lambda line: line.splitlines() == [""]):
        if not is_empty:
            lines = "".join(run).splitlines(keepends=True)
            paragraphs.append(tuple(line.splitlines()[0] for line in lines))
            sizes.append(sum(map(len, lines[:-1])) + len(paragraphs[-1][-1]))
    return paragraphs, sizes


def duplicates(items: Sequence[object]) -> list[bool]:
    return [item in items[:at] for at, item in enumerate(items)]


def duplicate_characters(words: list[str], n: int) -> int:
    """The characters of the n-grams that stood before; none counted twice, so reading goes on behind such a one."""
    seen, at, characters = set(), 0, 0
    while at + n <= len(words):
        gram = tuple(words[at : at + n])
        if gram in seen:
            characters += sum(map(len, gram))
            at += n
        else:
            seen.add(gram)
            at += 1
    return characters


def test_every_field_is_that_of_the_plain_formula() -> None:
    of = [*texts(), *manual_pages()]
    measured = repetition(Texts(encoded(of)))
    assert measured.dtype.names == tuple(plain_repetition(""))
    for text, row in zip(of, measured, strict=True):
        found = dict(zip(measured.dtype.names, row.tolist(), strict=True))
        assert found == pytest.approx(plain_repetition(text)), repr(text[:200])


@pytest.mark.deep
def test_the_first_of_equally_frequent_n_grams_counts() -> None:
    text = "one two . three hundred thousand . one two ! three hundred thousand !"
    assert repetition(Texts([text.encode()]))["top_2_gram_characters"][0] == pytest.approx(
        2 * len("one two") / len(text)
    )


def test_line_ends_of_windows_change_no_share_of_lines_and_paragraphs() -> None:
    text = "one\ntwo\n\none\ntwo\n\nthree\none\n"
    plain, windows = repetition(Texts([text.encode(), text.replace("\n", "\r\n").encode()]))
    assert plain["duplicate_lines"] == windows["duplicate_lines"] == pytest.approx(3 / 6)
    assert plain["duplicate_paragraphs"] == windows["duplicate_paragraphs"] == pytest.approx(1 / 3)


def test_a_texts_fields_do_not_depend_on_its_batch() -> None:
    documents = encoded(texts())
    whole = repetition(Texts(documents))
    for number, document in enumerate(documents):
        assert repetition(Texts([document]))[0] == whole[number]
