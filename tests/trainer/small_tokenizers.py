"""Small tokenizers of several kinds, and texts that are hard for them."""

import random
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.trainer.raw_files import docstrings
from trainer.models.taken_tokenizer import END_OF_TEXT
from trainer.models.tokenizer import TokenizerInfo


@cache
def _bpe_json(vocab_size: int) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(docstrings(80), trainer)
    return str(tokenizer.to_str())


def byte_level_bpe(vocab_size: int = 500) -> Tokenizer:
    """A byte-level BPE such as is trained by default."""
    return Tokenizer.from_str(_bpe_json(vocab_size))


def bpe_that_ends_texts_itself() -> Tokenizer:
    """A byte-level BPE whose post-processor adds the end token to every text."""
    tokenizer = byte_level_bpe()
    end = (END_OF_TEXT, tokenizer.token_to_id(END_OF_TEXT))
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END_OF_TEXT}", special_tokens=[end])
    return tokenizer


def word_piece() -> Tokenizer:
    """A lower-casing WordPiece, of which gigatoken knows nothing."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(docstrings(30), trainer)
    return tokenizer


def unigram() -> Tokenizer:
    """A Unigram model over words with a mark before them."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "</s>"]
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(docstrings(30), trainer)
    return tokenizer


def words(count: int, added: int = 0) -> Tokenizer:
    """One id for each of `count` words, then `added` tokens, the end token last of them."""
    vocab = {f"w{number}": number for number in range(count - 1)}
    tokenizer = Tokenizer(models.WordLevel({**vocab, "[UNK]": count - 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = [f"<added{number}>" for number in range(added - 1)] + [END_OF_TEXT] * (added > 0)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


def info_of(tokenizer: Tokenizer, eos: str = END_OF_TEXT) -> TokenizerInfo:
    """What encoding needs to know of a tokenizer."""
    vocab = tokenizer.get_vocab(True)
    return TokenizerInfo(json=tokenizer.to_str(), sha256="", eos_id=vocab[eos], max_id=max(vocab.values()))


def saved(tokenizer: Tokenizer, path: Path) -> Path:
    """Write a tokenizer to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path


def random_texts(count: int, seed: int) -> list[str]:
    """Strings of many scripts, marks, controls and spaces, with the special token's spelling among them."""
    draw = random.Random(seed)
    ranges = [(32, 126), (9, 13), (0xA0, 0x2FF), (0x370, 0x5FF), (0x900, 0x97F), (0x2000, 0x206F), (0x3000, 0x30FF),
              (0x4E00, 0x4FFF), (0xAC00, 0xADFF), (0xFE00, 0xFEFF), (0x1F300, 0x1F64F), (0, 31)]  # fmt: skip
    pieces = [END_OF_TEXT, "\r\n", "  ", "\n\n", "'ll", "don't", "2024", " the", "e\u0301"]

    def piece() -> str:
        if draw.random() < 0.3:
            return draw.choice(pieces)
        low, high = draw.choice(ranges)
        return "".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 8)))

    return ["".join(piece() for _ in range(draw.randint(0, 30))) for _ in range(count)]


def encoded(texts: Iterable[str]) -> list[bytes]:
    return [text.encode() for text in texts]
