"""What is the same sentence when text is compared with evaluation sets, however it is written."""

import html
import re
import time
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.curating import curated_job, decide, job_on, prose, reasons_of
from tests.trainer.curation_texts import texts
from trainer.config.curation import DecontaminateConfig, EvaluationText
from trainer.curation.contamination import hashes_of
from trainer.curation.showing import StoredDecisions
from trainer.curation.texts import Texts, matching, matching_words
from trainer.store.storage import Store

SENTENCE = "The miller's well-known daughter can't find the office's fifth naïve café of Straße 12, it is said"

ENTITIES = {ord("ï"): "&iuml;", ord("é"): "&#233;", ord("ß"): "&szlig;"}

SAME = {
    "curly apostrophes and quotes": SENTENCE.replace("'", "’").replace("The", "“The").replace("said", "said”"),
    "other apostrophes": SENTENCE.replace("'", "´"),
    "grave accents": SENTENCE.replace("'", "`"),
    "accents as entities": unicodedata.normalize("NFD", SENTENCE).replace("\u0301", "&#769;").replace("\u0308",
    "&#x308;"),
    "soft hyphens": SENTENCE.replace("daughter", "daugh\u00adter").replace("office", "of\u00adfice"),
    "characters that are not seen": SENTENCE.replace("daughter", "daugh\u200bter").replace("The", "\ufeffThe"),
    "ligatures": SENTENCE.replace("ffi", "ﬃ").replace("fi", "ﬁ"),
    "full width": "".join(chr(ord(each) + 0xFEE0) if each.isascii() and each.isalnum() else each for each in SENTENCE),
    "full width apostrophes and hyphens": SENTENCE.replace("'", "＇").replace("-", "－").replace(" ", "\u3000"),
    "dropped accents": SENTENCE.replace("ï", "i").replace("é", "e").replace("ß", "ss"),
    "decomposed accents": unicodedata.normalize("NFD", SENTENCE),
    "tags": SENTENCE.replace("well-known daughter", '<a class="x"\n href=\'y\'>well-known</a> <b>daughter</b><br/>'),
    "comments": SENTENCE.replace("daughter ", "daughter<!-- a comment --> "),
    "emphasis": SENTENCE.replace("fifth naïve", "_fifth_ __naïve__"),
    "entities": html.escape(SENTENCE).replace(" ", "&nbsp;").translate(ENTITIES),
    "curly apostrophes as entities": SENTENCE.replace("'", "&rsquo;"),
    "hyphens at line ends": SENTENCE.replace("daughter", "daugh-\n  ter").replace("office", "of-\r\nfice"),
    "lines that end at a word's own hyphen": SENTENCE.replace("well-known", "well-\nknown"),
    "soft hyphens at line ends": SENTENCE.replace("daughter", "daugh\u00ad\nter"),
    "other hyphens": SENTENCE.replace("-", "\u2011"),
    "capitals": SENTENCE.upper(),
}  # fmt: skip


def words_of(text: str) -> list[int]:
    return [int(each) for each in matching_words(matching(Texts([text.encode()]))).hashes]


@pytest.mark.parametrize("way", SAME)
def test_the_same_sentence_has_the_same_words(way: str) -> None:
    assert SAME[way] != SENTENCE
    assert words_of(SAME[way]) == words_of(SENTENCE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("the well known mill", "the well-known mill"), ("1990-1995", "19901995"), ("a - b", "ab"), ("e-\n\nf", "ef"),
        ("for (i = 0; i <n; i++) x->y", "for (i = 0; i"), ("a < b and c > d", "a d"), ("क", "कि"), ("ก", "กี่"),
        ("foo_bar", "foobar"), ("a__b", "a_b"),
    ],
)  # fmt: skip
def test_other_sentences_have_other_words(one: str, other: str) -> None:
    assert words_of(one) != words_of(other)


def test_a_fraction_is_two_numbers() -> None:
    for one in ("1½ cups", "1&frac12; cups", "1 ½ cups"):
        assert words_of(one) == words_of("1 1/2 cups")
    assert words_of("⅞") == words_of("7/8") != words_of("78")


def test_a_tag_that_is_shown_is_the_same_as_one_that_is_meant() -> None:
    assert words_of("a vector&lt;int&gt; of them") == words_of("a vector<int> of them")


def test_plain_text_is_the_same_object() -> None:
    plain = Texts([b"if (a < b && c > d) x &= y;", "d’été".encode()])
    assert matching(plain) is plain


def test_words_are_compared_as_before_but_for_what_does_not_count() -> None:
    """Of text in ASCII without hyphens, tags, entities, grave accents and emphasis, the hashes are those in lower
    case.
    """
    plain = [text for text in texts() if text.isascii() and not re.search(r"[-<&`]|\b_|_\b", text)]
    assert len(plain) > 100
    of = Texts([text.encode() for text in plain])
    assert matching(of) is of
    assert matching_words(of).hashes.tolist() == of.normalized_words().hashes.tolist()


@pytest.mark.parametrize("part", ["<a ", "<a b='", "<a b ", "<!--", "&#", "a-\n", "<a b=c ", "<a", "_", "_a", "a_"])
def test_no_text_takes_long_to_compare(part: str) -> None:
    """Ten times the text takes no more than some ten times as long."""

    def seconds(count: int) -> float:
        started = time.thread_time()
        words_of(part * count)
        return time.thread_time() - started

    seconds(10)
    assert seconds(300_000) < 30 * max(seconds(30_000), 0.01)


def lengths_of(text: str, **options: int) -> dict[int, int]:
    wanted = DecontaminateConfig(files=[EvaluationText(paths=["any"])], **options)
    hashed = hashes_of(matching(Texts([text.encode()])), wanted)
    return {length: len(hashes) for length, (hashes, _) in hashed.hashes.items()}


def test_two_characters_of_chinese_japanese_or_thai_count_as_a_word() -> None:
    chinese = "水车小屋在河流狭窄的地方它的轮子日夜不停地转动着没有人知道它是什么时候建造的"
    assert lengths_of(chinese) == {26: len(chinese) - 25}
    assert lengths_of(chinese[:9]) == {}
    assert lengths_of(chinese[:10]) == {10: 1} == lengths_of("水，车小屋。在河流 狭窄的！")
    thai = "กังหันน้ำตั้งอยู่ตรงที่แม่น้ำแคบ"
    assert lengths_of(thai) == {sum(map(str.isalpha, thai)): 1}
    assert lengths_of(" ".join(prose(3, 40))) == {13: 28}


@pytest.mark.parametrize("part_bytes", [2**20, 1024])
def test_documents_go_whatever_way_they_are_written_in(
    part_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they are cut in parts, and what they share is told as it is written there."""
    monkeypatch.setattr("trainer.data.readers.PART_BYTES", part_bytes)
    (tmp_path / "raw").mkdir()
    for number, text in enumerate(SAME.values()):
        around = [" ".join(prose(100 * number + line, 9)) + ".\n" for line in range(30)]
        (tmp_path / "raw" / f"{number:02}.txt").write_text(
            "".join([*around[:12], text, ".\n", *around[12:]]), encoding="utf-8"
        )
    (tmp_path / "raw" / "99.txt").write_text(" ".join(prose(7, 400)), encoding="utf-8")
    (tmp_path / "test.txt").write_text(SENTENCE + "\n", encoding="utf-8")
    job = curated_job(
        tmp_path / "store", {}, {"exact": None, "decontaminate": {"files": [{"paths": [str(tmp_path / "test.txt")]}]}},
        corpora=[{"name": "one", "paths": [str(tmp_path / "raw" / "*.txt")], "format": "text"}],
    )  # fmt: skip
    made = decide(job)
    decided = StoredDecisions(Store(job.store), None)
    one = decided.of("one")
    paths, reasons = (
        np.repeat([piece.path for piece in one.pieces], one.counts),
        np.array(reasons_of(job, made.key, "one")),
    )
    assert set(paths[reasons == "contaminated"]) == set(paths) - {f"{tmp_path}/raw/99.txt"}
    told = [shown.why for shown in decided.examples("contaminated", None, 99)]
    assert all("shares " in each and each.endswith(f"{tmp_path}/test.txt#1 (text)") for each in told), told


def test_a_sentence_of_chinese_is_found_in_a_document(tmp_path: Path) -> None:
    sentence = "水车小屋在河流狭窄的地方它的轮子日夜不停地转动着没有人知道"
    documents = [f"从前有人说过：{sentence[:26]}。", f"从前有人说过：{sentence[:25]}。", f"从前，{sentence[2:]}"]
    (tmp_path / "test.txt").write_text(sentence + "\n", encoding="utf-8")
    kept_out = {"files": [{"paths": [str(tmp_path / "test.txt")]}]}
    job = job_on(tmp_path, documents, {"exact": None, "decontaminate": kept_out})
    assert reasons_of(job, decide(job).key, "one") == ["contaminated", "kept", "contaminated"]
