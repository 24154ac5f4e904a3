"""Languages as py3langid itself tells them, text by text."""

import pytest
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from tests.trainer.curation_texts import SPOKEN, encoded, texts
from trainer.curation.language import language
from trainer.curation.texts import Texts

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


def test_a_texts_language_does_not_depend_on_its_batch() -> None:
    documents = encoded([*SPOKEN.values(), *texts()[:50]])
    whole = language(Texts(documents))
    for number, document in enumerate(documents):
        assert language(Texts([document]))[0] == whole[number]
