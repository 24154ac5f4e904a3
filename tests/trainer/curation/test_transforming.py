"""Documents as they are made of their raw text, before anything else sees them."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.trainer.curating import decide, job_on, prose, reasons_of
from tests.trainer.made import prepare
from trainer.common.progress import silent
from trainer.config.curation import TransformConfig
from trainer.data import decisions
from trainer.data.decisions import transformed
from trainer.data.readers import Document
from trainer.data.shards import open_shards
from trainer.models.tokenizer import load_tokenizer
from trainer.store.storage import Store


def made_of(text: str, **options: object) -> str:
    return transformed(TransformConfig.model_validate(options), Document(text.encode(), ends=True)).text.decode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("write to jo.do+x@mail.example.org.", "write to <email>."),
        ("<a_b@c-d.de>, e@f.gh", "<<email>>, <email>"),
        ("@decorator, a@b, user@host", "@decorator, a@b, user@host"),
        ("from 192.0.2.7: 255.255.255.255, 10.0.0.1/8", "from <ip>: <ip>, <ip>/8"),
        ("version 1.2.3.4.5, 256.1.1.1, 1.2.3", "version 1.2.3.4.5, 256.1.1.1, 1.2.3"),
        ("2001:db8:0:0:0:0:0:1 and 2001:db8::1", "<ip> and <ip>"),
        ("64 bytes from 2001:db8::1: icmp_seq=1", "64 bytes from <ip>: icmp_seq=1"),
        ("from 2001:0db8:85a3:0000:0000:8a2e:0370:7334: x", "from <ip>: x"),
        ("ip:2001:db8::1, dead:beef::1, cafe:2001:db8:0:0:0:0:0:1", "ip:<ip>, <ip>, cafe:<ip>"),
        ("x:1::2, std::dead:beef, key:12:34:56", "x:1::2, std::dead:beef, key:12:34:56"),
        ("at 12:34:56: a[1::2]: all", "at 12:34:56: a[1::2]: all"),
        ("a::b, std::vector, 12:30:45", "a::b, std::vector, 12:30:45"),
        ("x[1::2] = a[0::2], A::B1, c[::1]", "x[1::2] = a[0::2], A::B1, c[::1]"),
        ("fe80::1, 1:2:3:4:5:6:7:8, 12:34:56:78:9a:bc", "<ip>, <ip>, 12:34:56:78:9a:bc"),
    ],
)
def test_addresses_are_masked_and_what_only_looks_like_one_is_not(text: str, expected: str) -> None:
    assert made_of(text, mask=["email", "ip"]) == expected


@pytest.mark.parametrize("character", ["a", "1", "f", "a.", "1:", "@", "a@"])
def test_a_line_without_end_is_looked_through_once(character: str) -> None:
    assert len(made_of(character * (10**6 // len(character)), mask=["email", "ip"])) > 1000


def test_characters_are_written_in_one_way() -> None:
    assert made_of("e\u0301 \ufb01", unicode="NFC") == "\u00e9 \ufb01"
    assert made_of("e\u0301 \ufb01", unicode="NFKC") == "\u00e9 fi"


def test_what_is_tokenized_is_what_is_made_of_the_text(tmp_path: Path) -> None:
    texts = [" ".join([*prose(number, 60), "mail me@example.org", f"e\u0301{number}"]) for number in range(20)]
    job = job_on(tmp_path, texts, {"transform": {"unicode": "NFC", "mask": ["email"]}})
    data = prepare(job, silent())
    store = Store(job.store)
    tokenizer = Tokenizer.from_str(load_tokenizer(store, data.tokenizer.key).json)
    shards = open_shards(store, data.shards[0].key)
    sides = [side for side in (shards.train, shards.validation) for number in range(len(side.lengths))]
    assert sides
    text = "".join(
        tokenizer.decode(side.read(number, 0, length).tolist(), skip_special_tokens=False)
        for side in (shards.train, shards.validation)
        for number, length in enumerate(side.lengths)
    )
    assert text.count("<email>") == len(texts) and "@" not in text
    assert "\u00e9" in text and "e\u0301" not in text
    other = job_on(tmp_path, texts, {"transform": {"unicode": "NFC"}})
    assert prepare(other, silent()).shards[0].key != data.shards[0].key


def test_duplicates_are_those_of_what_is_made_of_the_text(tmp_path: Path) -> None:
    texts = ["write to a@example.org now", "write to b@example.org now"]
    for mask, expected in (([], "kept"), (["email"], "exact duplicate")):
        job = job_on(tmp_path, texts, {"transform": {"mask": mask}})
        assert reasons_of(job, decide(job).key, "one") == ["kept", expected]


def test_shards_of_transformed_text_belong_to_one_version_of_unicode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.12 knows the letter \U0001e030, and writes it as \u0430 in the form NFKC; Python 3.11 keeps it."""
    job = job_on(tmp_path, [" ".join(prose(0, 60))], {"transform": {"unicode": "NFKC"}})
    (shards,) = prepare(job, silent()).shards
    monkeypatch.setattr(decisions, "UNICODE", "0.0.0")
    assert prepare(job, silent()).shards[0].key != shards.key
