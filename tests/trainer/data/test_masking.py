"""Masks of windows: how many tokens, which, and what stands in their place."""

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.trainer.labelled_data import bert_folder
from tests.trainer.small_tokenizers import byte_level_bpe
from trainer.config.training import MaskingConfig
from trainer.data.dataset import IGNORED, mask_window, predicted_in
from trainer.models.tokenizer import MaskTokens, TokenizerInfo, mask_tokens, vocabulary

SPECIAL = 0
TOKENS = MaskTokens(
    mask_id=1,
    special=np.arange(1000) < 2,
    continues=np.arange(1000) % 2 == 1,
    ordinary=np.arange(2, 1000),
)


def window(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(2, 1000, length)


def test_a_mask_is_a_pure_function_of_its_key_and_the_window() -> None:
    one, same, other = (mask_window(window(64), key, TOKENS, MaskingConfig()) for key in (5, 5, 6))
    assert np.array_equal(one.input_ids, same.input_ids) and np.array_equal(one.labels, same.labels)
    assert not np.array_equal(one.labels, other.labels)


@pytest.mark.parametrize("whole_words", [False, True])
def test_of_every_window_as_many_tokens_are_predicted_and_labels_are_what_stood_there(whole_words: bool) -> None:
    for seed in range(50):
        tokens = window(40 + seed, seed)
        masked = mask_window(tokens, seed, TOKENS, MaskingConfig(whole_words=whole_words))
        hidden = masked.labels != IGNORED
        assert hidden.sum() == predicted_in(len(tokens), 0.15)
        assert np.array_equal(masked.labels[hidden], tokens[hidden])
        assert np.array_equal(masked.input_ids[~hidden], tokens[~hidden])


def test_most_become_the_mask_token_some_another_and_some_stay() -> None:
    tokens = window(200_000)
    masked = mask_window(tokens, 1, TOKENS, MaskingConfig())
    hidden = masked.labels != IGNORED
    read, stood = masked.input_ids[hidden], tokens[hidden]
    assert (read == 1).mean() == pytest.approx(0.8, abs=0.01)
    assert (read == stood).mean() == pytest.approx(0.1, abs=0.01)
    others = read[(read != 1) & (read != stood)]
    assert (
        len(others) / len(read) == pytest.approx(0.1, abs=0.01) and others.min() >= 2 and len(np.unique(others)) > 900
    )


def test_special_tokens_are_left_alone_as_long_as_there_are_others() -> None:
    tokens = np.where(np.arange(100) % 4 == 0, SPECIAL, window(100))
    masked = mask_window(tokens, 3, TOKENS, MaskingConfig(fraction=0.5))
    assert (masked.labels[tokens == SPECIAL] == IGNORED).all()
    assert (mask_window(np.zeros(10, dtype=np.int64), 3, TOKENS, MaskingConfig()).labels != IGNORED).sum() == 2


def test_whole_words_are_hidden_with_all_their_tokens_but_the_last() -> None:
    # A word of three tokens, and one that begins after a special token.
    tokens = np.tile([10, 11, 13, SPECIAL, 15], 200)
    labels = mask_window(tokens, 2, TOKENS, MaskingConfig(whole_words=True)).labels.reshape(-1, 5)
    parts = (labels[:, :3] != IGNORED).sum(axis=1)
    assert ((parts == 1) | (parts == 2)).sum() <= 1, "the last may be cut"
    assert (parts == 3).any() and (labels[:, 4] != IGNORED).any()
    alone = mask_window(tokens, 2, TOKENS, MaskingConfig()).labels.reshape(-1, 5)
    assert (((alone[:, :3] != IGNORED).sum(axis=1) % 3) != 0).sum() > 10


def test_words_are_known_by_the_tokenizers_own_marks(tmp_path) -> None:
    text = (bert_folder(tmp_path / "bert") / "tokenizer.json").read_text()
    of_pieces = info(text)
    tokens, vocab = mask_tokens(of_pieces, None), vocabulary(text)
    assert tokens.mask_id == vocab["[MASK]"] and set(np.flatnonzero(tokens.special)) == {vocab[t] for t in SPECIALS}
    assert all(tokens.continues[number] == token.startswith("##") for token, number in vocab.items())
    bpe = byte_level_bpe()
    bpe.add_special_tokens(["<mask>"])
    tokens, vocab = mask_tokens(info(bpe.to_str()), None), bpe.get_vocab()
    assert tokens.mask_id == vocab["<mask>"]
    assert tokens.continues[vocab["e"]] and not tokens.continues[vocab["Ġ"]] and not tokens.continues[vocab["."]]


def words_of(text: str, vocab_size: int) -> list[str]:
    """What is hidden together of a text by a byte-level tokenizer."""
    bpe = byte_level_bpe(vocab_size)
    bpe.add_special_tokens(["<mask>"])
    return words_in(bpe, text)


def words_in(tokenizer: Tokenizer, text: str) -> list[str]:
    continues = mask_tokens(info(tokenizer.to_str()), None).continues
    words: list[list[int]] = []
    for number in tokenizer.encode(text).ids:
        if continues[number] and words:
            words[-1].append(number)
        else:
            words.append([number])
    return [tokenizer.decode(word) for word in words]


@pytest.mark.parametrize("vocab_size", [300, 500])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the cat's été", ["the", " cat", "'s", " été"]),
        ("слово—другое, «да»", ["слово", "—другое", ",", " ", "«да", "»"]),
        ("हिन्दी में", ["हिन्दी", " में"]),
        ("学习。中文 한국어", ["学", "习", "。", "中", "文", " 한국어"]),
    ],
)
def test_words_of_byte_level_tokenizers_end_where_those_of_the_text_do(
    text: str, words: list[str], vocab_size: int
) -> None:
    assert words_of(text, vocab_size) == words


SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def info(text: str) -> TokenizerInfo:
    return TokenizerInfo(json=text, sha256="", eos_id=0, max_id=max(vocabulary(text).values()))


@pytest.mark.parametrize("byte_fallback", [False, True])
def test_an_ideograph_is_a_word_of_a_vocabulary_with_marks_for_spaces(byte_fallback: bool) -> None:
    text = "the cat, 学习。中文 한국어"
    known = "".join(sorted({*text} - {" ", "学"} if byte_fallback else {*text} - {" "}))
    pieces = ["<unk>", "<mask>", "▁", "▁the", *known, *(f"<0x{byte:02X}>" for byte in range(256) if byte_fallback)]
    model = models.Unigram([(piece, -1.0) for piece in pieces], 0, byte_fallback)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<mask>"])
    words = words_in(tokenizer, text)
    assert [word for word in words if word.strip()] == ["the", "cat", ",", *"学习。中文", "한국어"]
