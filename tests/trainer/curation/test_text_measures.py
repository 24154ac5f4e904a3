"""What rules compare of single texts: each field against a formula in plain Python, languages against py3langid."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import compress, groupby
from typing import Any

import pytest
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from tests.trainer.curation_texts import SPOKEN, encoded, is_symbol, manual_pages, texts
from trainer.curation.c4 import c4
from trainer.curation.gopher import STOP_WORDS, quality, repetition
from trainer.curation.language import language
from trainer.curation.texts import Texts

Measured = Callable[[Texts], Any]

CITATIONS = re.compile(r"(\[[0-9]*\]|\[edit\]|\[citation needed\])+$")
SENTENCE = re.compile(
    r"""(?:(?<!\.)\.(?!\.)|[?!])["')\]”’».?!。！？｡]*(?=\s)|[。！？｡](?:["')\]”’».?!]*[。！？｡]|(?!["')\]”’».?!]))(?=.)"""
)
POLICIES = ["terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies"]


def plain_c4(text: str) -> dict[str, int]:
    """Raffel et al. 2020, section 2.2."""
    found = dict.fromkeys(
        ("sentences", "lorem_ipsum_lines", "curly_bracket_lines", "javascript_lines", "policy_lines"), 0
    )
    for whole in text.splitlines():
        line = CITATIONS.sub("", whole.strip().lower())
        if len(whole.split()) < 3 or max(map(len, whole.split())) > 1000 or line.endswith("..."):
            continue
        if line.endswith((".", "?", "!", '"', "'")):
            found["lorem_ipsum_lines"] += "lorem ipsum" in line
            found["javascript_lines"] += "javascript" in line
            if "javascript" not in line:
                found["curly_bracket_lines"] += "{" in line
                is_policy = any(phrase in line for phrase in POLICIES)
                found["policy_lines"] += is_policy
                found["sentences"] += 0 if is_policy else 1 + len(SENTENCE.findall(line))
    return found


def plain_quality(text: str) -> dict[str, float]:
    """Rae et al. 2021, appendix A1.1."""
    every, lines = text.split(), [line.strip() for line in text.splitlines()]
    words = [word for word in every if not is_symbol(word)]
    return {
        "words": len(words),
        "mean_word_length": sum(map(len, words)) / max(len(words), 1),
        "hashes_per_word": text.count("#") / max(len(every), 1),
        "ellipses_per_word": (text.count("...") + text.count("…")) / max(len(every), 1),
        "bullet_lines": sum(line.startswith(("•", "-")) for line in lines) / max(len(lines), 1),
        "ellipsis_lines": sum(line.endswith(("...", "…")) for line in lines) / max(len(lines), 1),
        "words_with_letter": sum(any(map(str.isalpha, word)) for word in every) / max(len(every), 1),
        "stop_words": len({"the", "be", "to", "of", "and", "that", "have", "with"} & set(every)),
    }


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
    first: dict[object, int] = {}
    return [first.setdefault(item, at) < at for at, item in enumerate(items)]


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


@pytest.mark.parametrize(
    ("measure", "plain"), [(c4, plain_c4), (quality, plain_quality), (repetition, plain_repetition)]
)
def test_every_field_is_that_of_the_plain_formula(measure: Measured, plain: Callable[[str], dict[str, float]]) -> None:
    of = [*texts(), *manual_pages()]
    measured = measure(Texts(encoded(of)))
    assert measured.dtype.names == tuple(plain(""))
    for text, row in zip(of, measured, strict=True):
        found = dict(zip(measured.dtype.names, row.tolist(), strict=True))
        assert found == (plain(text) if measure is c4 else pytest.approx(plain(text))), repr(text[:200])
    assert measure is not c4 or all(measured[name].any() for name in measured.dtype.names)


@pytest.mark.parametrize("measure", [c4, language, quality, repetition])
def test_a_texts_fields_do_not_depend_on_its_batch(measure: Measured) -> None:
    documents = encoded([*SPOKEN.values(), *texts()])
    whole = measure(Texts(documents))
    for number, document in enumerate(documents):
        assert measure(Texts([document]))[0] == whole[number]


def fields(text: str) -> dict[str, int]:
    row = c4(Texts([text.encode()]))[0]
    return dict(zip(row.dtype.names, row.tolist(), strict=True))


def test_sentences_end_with_a_mark_that_white_space_follows() -> None:
    for text, sentences in {
        "Pi is 3.14 today.": 1,
        "One is here. Two is here.": 2,
        "He said (so.) Then he left! \"Did he?\" 'Yes.'": 4,
        "What?! No... really, no more. Well.": 3,
        "一つ です。二つ です！三つ です.": 3,
        "Two words. Here are three.[1][edit]\nWhat the second line says": 2,
        "No mark at the end of the line\nToo few.\nWait for it...": 0,
        f"A word of {'x' * 1001} is.\nOne of {'x' * 1000} is not.": 1,
        "": 0,
    }.items():
        assert fields(text)["sentences"] == sentences, text


def test_lines_count_for_what_they_mention() -> None:
    text = (
        "Lorem Ipsum is here.\nlorem ipsum\nWe use COOKIES: enable JavaScript.\nThis site uses cookies.\nA { is "
        "here.\n{\n"
    )
    assert fields(text) == {
        "sentences": 2, "lorem_ipsum_lines": 1, "curly_bracket_lines": 1, "javascript_lines": 1, "policy_lines": 1,
    }  # fmt: skip


def test_other_stop_words_are_counted_as_they_are_written() -> None:
    of = Texts(encoded(["der die Das l'été", "die die die", "", "the of"]))
    assert quality(of, ["der", "die", "das", "l'été"])["stop_words"].tolist() == [3, 1, 0, 0]
    assert quality(of, [])["stop_words"].tolist() == [0, 0, 0, 0]
    assert quality(of)["stop_words"].tolist() == [0, 0, 0, 2] == quality(of, STOP_WORDS)["stop_words"].tolist()


def test_ratios_on_a_threshold_compare_as_the_threshold_itself() -> None:
    row = quality(Texts([b"#" + b" a" * 9 + b"\n...\n- a\n" + b"\n" * 7]))[0]
    assert row["bullet_lines"] == 0.1 and not row["bullet_lines"] > 0.1


def test_punctuation_is_no_word_of_its_own() -> None:
    """The reference of a command: of its words between white space nearly all have a letter."""
    text = (
        "Use sort(1) -- or `join -t, -1 2 [file...]' -- to merge them; see {uniq(1), or}, and (perhaps) #include "
        "<io.h>."
    )
    row = quality(Texts([text.encode()]))[0]
    assert row["words"] == 18 and row["words_with_letter"] == pytest.approx(16 / 20)
    assert row["hashes_per_word"] == row["ellipses_per_word"] == pytest.approx(1 / 20)


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


ROUNDING = 2e-4
"""Of sums of some hundred numbers of 32 bits, made in another order."""


@pytest.fixture(scope="module")
def library() -> LanguageIdentifier:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def test_languages_and_probabilities_are_those_of_the_library(library: LanguageIdentifier) -> None:
    known = [text for text in [*texts(), *SPOKEN.values(), *map(str.upper, SPOKEN.values())] if text.strip()]
    for text, row in zip(known, language(Texts(encoded(known))), strict=True):
        code, probability = library.classify(text)
        if row["language"] == b"und":
            assert probability < 0.02, repr(text[:200])  # the library takes the first of its equally probable ones
            continue
        assert row["language_probability"] == pytest.approx(probability, abs=ROUNDING), repr(text[:200])
        assert row["language"].decode() == code or library.rank(text)[1][1] == pytest.approx(probability, abs=ROUNDING)


def test_sentences_are_told_by_their_language() -> None:
    measured = language(Texts(encoded(list(SPOKEN.values()))))
    assert [code.decode() for code in measured["language"]] == list(SPOKEN)
    assert measured["language_probability"].min() > 0.9


def test_a_text_without_anything_known_is_of_no_language() -> None:
    measured = language(Texts([b"", b"\x00", SPOKEN["de"].encode()]))
    assert measured["language"].tolist() == [b"und", b"und", b"de"]
    assert measured["language_probability"][:2].tolist() == [0, 0]
    assert len(language(Texts([]))) == 0
