"""Engines: the fast one is used only where it gives the ids of the reference."""

import json
import logging
import random
import unicodedata
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from tests.trainer.raw_files import docstrings, sources
from tests.trainer.small_tokenizers import (
    byte_level_bpe,
    encoded,
    info_of,
    random_texts,
    unigram,
    word_piece,
    words,
)
from trainer.data import encoders
from trainer.data.encoders import (
    CHANGING,
    ENGINES,
    Encode,
    Ids,
    choose_engine,
    gigatoken_engine,
    settle_engine,
    tokenizers_engine,
)
from trainer.models.taken_tokenizer import END_OF_TEXT
from trainer.models.tokenizer import TokenizerInfo
from trainer.store.storage import Store

TEXTS = [*docstrings(60), *sources().values(), *random_texts(1500, seed=1), "", " ", "\n", END_OF_TEXT]


def assert_same(found: list[Ids], expected: list[Ids]) -> None:
    assert len(found) == len(expected)
    for text, ids, reference in zip(TEXTS, found, expected, strict=False):
        assert ids.tolist() == reference.tolist(), text


def test_both_engines_give_the_same_ids_for_any_text() -> None:
    info = info_of(byte_level_bpe())
    assert_same(gigatoken_engine(info)(encoded(TEXTS)), tokenizers_engine(info)(encoded(TEXTS)))


def with_merges_to(special: str) -> Tokenizer:
    """A byte-level BPE whose merges come to a special token, as the text that it was trained on spells it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[END_OF_TEXT, special], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(docstrings(80), trainer)
    return tokenizer


def with_plain_end() -> Tokenizer:
    """A byte-level BPE whose end token is an added one that is not special."""
    tokenizer = byte_level_bpe()
    tokenizer.add_tokens(["<eod>"])
    return tokenizer


SPELT = {
    "a piece": (unigram, "</s>", ["</s>", "<unk>"]),
    "a word": (partial(words, 5, added=1), END_OF_TEXT, [END_OF_TEXT]),
    "a merge": (partial(with_merges_to, "the"), END_OF_TEXT, ["the", END_OF_TEXT]),
    "an added end": (with_plain_end, "<eod>", ["<eod>", END_OF_TEXT]),
    "a word that ends": (byte_level_bpe, "in", ["in", END_OF_TEXT]),
}
"""Tokenizers, what ends a document, and spellings of tokens that no text is to become, by what these are besides."""


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in ENGINES for kind in [*SPELT][2 if name == "gigatoken" else 0 :]]
)
def test_no_text_becomes_a_special_token_or_the_end_whatever_the_vocabulary_has(name: str, kind: str) -> None:
    tokenizer, end, spellings = SPELT[kind]
    made = tokenizer()
    info, ids = info_of(made, end), {made.token_to_id(each) for each in spellings}
    encode = ENGINES[name](info)
    texts = [f"x{left}{spelling}{right}" for spelling in spellings for left in ("", " ") for right in ("", " ", "y")]
    for found in encode(encoded([*texts, *spellings])):
        assert not ids.difference({made.token_to_id("<unk>")}) & {*found.tolist()}  # what is unknown is told as that
    others = [text for text in TEXTS if not any(each in text for each in spellings)]
    expected = [each.ids for each in made.encode_batch(others, add_special_tokens=False)]
    assert [each.tolist() for each in encode(encoded(others))] == expected


@pytest.mark.parametrize("name", ENGINES)
def test_what_is_added_behind_special_tokens_keeps_its_ids(name: str) -> None:
    tokenizer = byte_level_bpe()
    tokenizer.add_special_tokens(["<|start|>", "<|end|>"])
    tokenizer.add_tokens(["<think>", "</think>", "ünd"])
    texts = ["def <think> x </think>", "<think></think>", "undündünd<think><think>", *TEXTS[:50]]
    expected = [each.ids for each in tokenizer.encode_batch(texts, add_special_tokens=False)]
    found = ENGINES[name](info_of(tokenizer))(encoded(texts))
    assert [each.tolist() for each in found] == expected
    assert tokenizer.token_to_id("<think>") in found[0] and tokenizer.token_to_id("</think>") in found[0]


def test_whole_words_that_are_added_tokens_are_left_to_the_reference() -> None:
    tokenizer = byte_level_bpe()
    tokenizer.add_tokens([AddedToken("def", single_word=True)])
    assert choose_engine("gigatoken", info_of(tokenizer), [b"nothing of the kind"]) == "tokenizers"


def with_nfc() -> Tokenizer:
    """A byte-level BPE whose normalizer is NFC, with added tokens found before and after it, as Qwen's."""
    tokenizer = byte_level_bpe()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken("<t>", normalized=False), AddedToken("</t>", normalized=False, lstrip=True)])
    tokenizer.add_tokens([AddedToken("\xe9!"), AddedToken("K;")])
    return tokenizer


def test_both_engines_put_text_into_nfc_by_the_same_version_of_unicode() -> None:
    info, draw = info_of(with_nfc()), random.Random(3)
    pieces = ["<t>", "</t>", "<t>\u0338", "e\u0301", "\xe9!", END_OF_TEXT]
    pieces += "e! K;\u0301\u0323\u212a\u037e\u09df\u0c3c\u2019\u1100\u1161\u11a8\u1ac6\u08cd"
    texts = ["".join(draw.choices(pieces, k=draw.randint(1, 12))) for _ in range(3000)]
    texts += ["\u0c15\u0323\u0c3c", "e\u0301\u1ac6", "\u0632\u0651\u08cd", *TEXTS]  # marks of Unicode 14 and later
    found, expected = gigatoken_engine(info)(encoded(texts)), tokenizers_engine(info)(encoded(texts))
    for text, ids, reference in zip(texts, found, expected, strict=True):
        assert ids.tolist() == reference.tolist(), ascii(text)


def test_characters_that_are_not_put_into_nfc_are_in_it() -> None:
    texts = [character for character in map(chr, range(0xD800)) if not CHANGING.search(character)]
    assert len(texts) > 20000
    assert normalizers.NFC().normalize_str("".join(texts)) == "".join(texts)
    assert not any(map(unicodedata.combining, texts))


def test_another_normalizer_beside_nfc_is_left_to_the_reference() -> None:
    tokenizer = with_nfc()
    tokenizer.add_tokens([AddedToken("e\u0301e")])
    assert choose_engine("gigatoken", info_of(tokenizer), [b"nothing of the kind"]) == "tokenizers"
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    assert choose_engine("gigatoken", info_of(tokenizer), [b"nothing of the kind"]) == "tokenizers"


@pytest.mark.parametrize("name", ENGINES)
def test_padding_and_truncation_that_a_tokenizer_brings_are_off(name: str) -> None:
    tokenizer = byte_level_bpe()
    plain = ENGINES[name](info_of(tokenizer))(encoded(TEXTS))
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=9)
    assert_same(ENGINES[name](info_of(tokenizer))(encoded(TEXTS)), plain)


@pytest.mark.parametrize("name", ENGINES)
def test_a_batch_is_as_good_as_one_text_at_a_time(name: str) -> None:
    encode = ENGINES[name](info_of(byte_level_bpe()))
    texts = encoded(TEXTS[:100])
    assert encode([]) == []
    assert_same([encode([text])[0] for text in texts], encode(texts))


def test_the_fast_engine_gives_the_same_ids_after_it_was_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "CACHE_BYTES", 100)
    info = info_of(byte_level_bpe())
    encode = gigatoken_engine(info)
    reference = tokenizers_engine(info)
    for text in encoded(TEXTS[:20]):
        assert encode([text])[0].tolist() == reference([text])[0].tolist()


def test_the_wanted_engine_is_used_where_it_agrees(caplog: pytest.LogCaptureFixture) -> None:
    info = info_of(byte_level_bpe())
    assert choose_engine("gigatoken", info, encoded(TEXTS)) == "gigatoken"
    assert choose_engine("tokenizers", info, encoded(TEXTS)) == "tokenizers"
    assert choose_engine("gigatoken", info, []) == "gigatoken"
    assert not caplog.records


@pytest.mark.parametrize("tokenizer", [word_piece(), unigram()], ids=["wordpiece", "unigram"])
def test_a_tokenizer_that_the_fast_engine_cannot_take_is_left_to_the_reference_with_a_warning(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert (
            choose_engine("gigatoken", info_of(tokenizer, str(tokenizer.id_to_token(1))), encoded(TEXTS))
            == "tokenizers"
        )
    (record,) = caplog.records
    said = record.getMessage()
    assert "engine gigatoken does not support this tokenizer" in said
    assert "\n" not in said and ".rs:" not in said, "without the line of gigatoken's own source code"


def test_an_engine_that_disagrees_is_left_to_the_reference_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def without_merges(tokenizer: TokenizerInfo) -> Encode:
        description = json.loads(tokenizer.json)
        description["model"]["merges"] = []
        return tokenizers_engine(TokenizerInfo(json.dumps(description), "", tokenizer.eos_id, tokenizer.max_id))

    monkeypatch.setitem(ENGINES, "gigatoken", without_merges)
    with caplog.at_level(logging.WARNING):
        assert choose_engine("gigatoken", info_of(byte_level_bpe()), encoded(TEXTS[5:])) == "tokenizers"
    (record,) = caplog.records
    assert "engine gigatoken and `tokenizers` disagree on a sampled document" in record.getMessage()


def test_what_was_compared_is_not_compared_again_unless_something_of_it_changes(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    def choose(wanted: str, tokenizer: TokenizerInfo, samples: Sequence[bytes]) -> str:
        asked.append(len(samples))
        return choose_engine(wanted, tokenizer, samples)

    plain, other = byte_level_bpe(), byte_level_bpe()

    def settle(corpus: str = "code", ends: int = 60, tokenizer: Tokenizer = plain) -> str:
        return settle_engine(empty_store, corpus, "gigatoken", info_of(tokenizer), encoded(TEXTS[:ends]))

    other.add_tokens(["<tool>"])
    monkeypatch.setattr(encoders, "choose_engine", choose)
    assert [settle(), settle(), settle("docs"), settle(), settle(ends=59), settle(tokenizer=other)] == ["gigatoken"] * 6
    assert asked == [60, 60, 59, 60]
    monkeypatch.setattr(encoders, "version", lambda name: "99")
    settle(tokenizer=other)
    Path(empty_store.path("cache/engine-code.json")).write_text("{}")
    with caplog.at_level(logging.WARNING):
        settle(tokenizer=other)
    assert asked == [60, 60, 59, 60, 60, 60]
    assert "comparing engines again" in caplog.text


def test_a_choice_against_the_wanted_engine_is_not_remembered(
    empty_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    info = info_of(word_piece(), str(word_piece().id_to_token(1)))
    for _ in range(2):
        assert settle_engine(empty_store, "code", "gigatoken", info, encoded(TEXTS[:9])) == "tokenizers"
    assert caplog.text.count("does not support this tokenizer") == 2


def test_ids_are_counted_in_uint32() -> None:
    info = info_of(byte_level_bpe())
    found: Sequence[Ids] = [ids for make in ENGINES.values() for ids in make(info)([b"some text", b""])]
    assert {ids.dtype for ids in found} == {np.dtype(np.uint32)}
