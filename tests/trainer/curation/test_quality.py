"""Each field of Gopher's quality rules against a formula in plain Python."""

import pytest

from tests.trainer.curation_texts import encoded, is_symbol, manual_pages, texts
from trainer.curation.gopher import STOP_WORDS, quality
from trainer.curation.texts import Texts


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


def test_every_field_is_that_of_the_plain_formula() -> None:
    of = [*texts(), *manual_pages()]
    measured = quality(Texts(encoded(of)))
    assert measured.dtype.names == tuple(plain_quality(""))
    for text, row in zip(of, measured, strict=True):
        assert dict(zip(measured.dtype.names, row.tolist(), strict=True)) == pytest.approx(plain_quality(text)), repr(
            text[:200]
        )


def test_other_stop_words_are_counted_as_they_are_written() -> None:
    of = Texts(encoded(["der die Das l'été", "die die die", "", "the of"]))
    assert quality(of, ["der", "die", "das", "l'été"])["stop_words"].tolist() == [3, 1, 0, 0]
    assert quality(of, [])["stop_words"].tolist() == [0, 0, 0, 0]
    assert quality(of)["stop_words"].tolist() == [0, 0, 0, 2] == quality(of, STOP_WORDS)["stop_words"].tolist()


def test_ratios_on_a_threshold_compare_as_the_threshold_itself() -> None:
    row = quality(Texts([b"#" + b" a" * 9 + b"\n...\n- a\n" + b"\n" * 7]))[0]
    assert row["bullet_lines"] == 0.1 and not row["bullet_lines"] > 0.1


def test_a_texts_fields_do_not_depend_on_its_batch() -> None:
    documents = encoded(texts())
    whole = quality(Texts(documents))
    for number, document in enumerate(documents):
        assert quality(Texts([document]))[0] == whole[number]


def test_punctuation_is_no_word_of_its_own() -> None:
    """The reference of a command: of its words between white space nearly all have a letter."""
    text = (
        "Use sort(1) -- or `join -t, -1 2 [file...]' -- to merge them; see {uniq(1), or}, and (perhaps) #include "
        "<io.h>."
    )
    row = quality(Texts([text.encode()]))[0]
    assert row["words"] == 18 and row["words_with_letter"] == pytest.approx(16 / 20)
    assert row["hashes_per_word"] == row["ellipses_per_word"] == pytest.approx(1 / 20)
