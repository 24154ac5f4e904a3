"""Each field of C4's rules against a reading with Python's own strings."""

import re

from tests.trainer.curation_texts import encoded, manual_pages, texts
from trainer.curation.c4 import c4
from trainer.curation.texts import Texts

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


def fields(text: str) -> dict[str, int]:
    row = c4(Texts([text.encode()]))[0]
    return dict(zip(row.dtype.names, row.tolist(), strict=True))


def test_every_field_is_that_of_the_plain_reading() -> None:
    of = [*texts(), *manual_pages()]
    measured = c4(Texts(encoded(of)))
    assert measured.dtype.names == tuple(plain_c4(""))
    for text, row in zip(of, measured, strict=True):
        assert dict(zip(measured.dtype.names, row.tolist(), strict=True)) == plain_c4(text), repr(text[:200])
    assert all(measured[name].any() for name in measured.dtype.names)


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


def test_a_texts_fields_do_not_depend_on_its_batch() -> None:
    documents = encoded(texts())
    whole = c4(Texts(documents))
    for number, document in enumerate(documents):
        assert c4(Texts([document]))[0] == whole[number]
