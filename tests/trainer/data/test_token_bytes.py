"""How many bytes of text tokens stand for, and what tells a held-out text from another."""

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models

from tests.trainer.raw_files import docstrings
from tests.trainer.small_tokenizers import (
    bpe_that_ends_texts_itself,
    byte_level_bpe,
    encoded,
    info_of,
    random_texts,
    unigram,
    word_piece,
)
from trainer.data.encoders import ENGINES
from trainer.models.tokenizer import HeldOutText, byte_lengths

TEXTS = [*docstrings(40), *(text for text in random_texts(300, seed=5) if text)]


@pytest.mark.parametrize(
    "tokenizer", [byte_level_bpe(), bpe_that_ends_texts_itself()], ids=["plain", "ends-texts-itself"]
)
def test_the_tokens_of_a_byte_level_tokenizer_stand_for_exactly_the_texts_bytes(tokenizer: Tokenizer) -> None:
    info = info_of(tokenizer)
    lengths = byte_lengths(info.json)
    assert len(lengths) == info.vocab_size and lengths[info.eos_id] == 0
    for text, ids in zip(encoded(TEXTS), ENGINES["tokenizers"](info)(encoded(TEXTS)), strict=True):
        assert lengths[ids].sum() == len(text)


def test_an_added_token_stands_for_its_spelling_and_a_special_one_for_nothing() -> None:
    tokenizer = byte_level_bpe()
    tokenizer.add_tokens([AddedToken("émigré", normalized=False)])
    tokenizer.add_special_tokens(["<pad>"])
    lengths = byte_lengths(info_of(tokenizer).json)
    assert lengths[tokenizer.token_to_id("émigré")] == len("émigré".encode()) == 8
    assert lengths[tokenizer.token_to_id("<pad>")] == 0


def test_other_tokenizers_are_estimated_by_the_spelling_of_their_tokens() -> None:
    vocab = [("<unk>", 0.0), ("\u2581the", -1.0), ("<0x0A>", -2.0), ("é", -3.0)]
    tokenizer = Tokenizer(models.Unigram(vocab, 0, byte_fallback=True))
    tokenizer.add_special_tokens(["</s>"])
    assert byte_lengths(info_of(tokenizer, "</s>").json).tolist() == [0, 4, 1, 2, 0]
    pieces = word_piece()
    lengths, vocabulary = byte_lengths(info_of(pieces, "[SEP]").json), pieces.get_vocab()
    continuing = next(token for token in vocabulary if token.startswith("##"))
    assert lengths[vocabulary[continuing]] == len(continuing.encode()) - 2
    assert lengths[vocabulary["[UNK]"]] == lengths[vocabulary["[SEP]"]] == 0
    assert byte_lengths(info_of(unigram(), "</s>").json).max() > 1


def test_held_out_text_is_told_by_its_documents_in_any_order_whatever_the_tokenizer() -> None:
    tallies = []
    for size, texts in ((300, TEXTS), (500, TEXTS[::-1]), (300, TEXTS[1:])):
        info = info_of(byte_level_bpe(size))
        tally = HeldOutText(byte_lengths(info.json))
        for text, ids in zip(encoded(texts), ENGINES["tokenizers"](info)(encoded(texts)), strict=True):
            tally.add(text, ids)
        tallies.append(tally)
    one, other, fewer = tallies
    assert one.digest == other.digest != fewer.digest and len(fewer.digest) == 32
    assert one.text_bytes == one.token_bytes == other.token_bytes == sum(len(text.encode()) for text in TEXTS)
    empty = HeldOutText(np.zeros(1, dtype=np.int64))
    assert int(empty.digest, 16) == 0
