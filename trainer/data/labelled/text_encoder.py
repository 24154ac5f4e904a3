"""Texts and pairs of texts to token ids, by a pretrained model's own tokenizer.

Whole texts are encoded without special tokens, cut, and then framed like the tokenizer frames them. The ids equal those
of `tokenizer(a, b, truncation="longest_first")`, whose time and memory grow with the product of the two lengths.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

from trainer.common.errors import ConfigError, TokenizerError
from trainer.common.temporary import temporary_folder
from trainer.config.labelled import LabelledDataConfig
from trainer.data.labelled.encoded import UNSEEN
from trainer.data.labelled.word_spaces import space_words
from trainer.models.pretrained import UNLIMITED, load_config, load_tokenizer, most_positions, read_object
from trainer.models.taken_tokenizer import PLAIN_CLASS, TOKENIZER_CONFIG, find_other_class, save_flat
from trainer.models.tokenizer import text_reader
from trainer.store.manifest import digest_file, fingerprint


class Frame(NamedTuple):
    """Special tokens before, between and after one text or the two of a pair; token types of these and of the texts."""

    tokens: tuple[NDArray[np.int32], ...]
    types: tuple[NDArray[np.int8], ...]
    text_types: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of special tokens."""
        return sum(map(len, self.tokens))


def find_frame(backend: Tokenizer, members: int) -> Frame:
    """The frame of one text, or of a pair (`members` 2), found by encoding a short text."""
    text = next(
        (each for each in ("a", *backend.get_vocab(True)) if backend.encode(each, add_special_tokens=False).ids), "a"
    )
    probe = backend.encode(text, text if members == 2 else None)
    ids, types = np.array(probe.ids, dtype=np.int32), np.array(probe.type_ids, dtype=np.int8)
    spans, kinds, end = [], [], 0
    for member in range(members):
        places = [place for place, owner in enumerate(probe.sequence_ids) if owner == member] or [end]
        spans.append(slice(end, places[0]))
        kinds.append(int(types[places[0]]) if places[0] < len(types) else 0)
        end = places[-1] + 1
    spans += [slice(end, end)] * (2 - members) + [slice(end, None)]
    return Frame(tuple(ids[span] for span in spans), tuple(types[span] for span in spans), tuple(kinds))


def put_between(backend: Tokenizer, token: str) -> None:
    """Make a tokenizer insert a token between the texts of a pair, besides its other special tokens."""
    present = json.loads(backend.post_processor.__getstate__()) if backend.post_processor is not None else None
    processors = [] if present is None else present["processors"] if present["type"] == "Sequence" else [present]
    template = next((each for each in processors if each["type"] == "TemplateProcessing"), None)
    if template is None:
        first, second = ({"Sequence": {"id": name, "type_id": kind}} for kind, name in enumerate("AB"))
        template = {"type": "TemplateProcessing", "single": [first], "pair": [first, second], "special_tokens": {}}
        processors.append(template)
    place = next(place for place, piece in enumerate(template["pair"]) if piece.get("Sequence", {}).get("id") == "B")
    template["pair"].insert(place, {"SpecialToken": {"id": token, "type_id": 0}})
    template["special_tokens"][token] = {"id": token, "ids": [backend.token_to_id(token)], "tokens": [token]}
    whole = processors[0] if len(processors) == 1 else {"type": "Sequence", "processors": processors}
    # A post-processor can be loaded from JSON only as a part of a tokenizer.
    bearer = json.loads(Tokenizer(models.WordLevel({}, unk_token="")).to_str())
    backend.post_processor = Tokenizer.from_str(json.dumps({**bearer, "post_processor": whole})).post_processor


def cut_lengths(lengths: Sequence[int], room: int) -> list[int]:
    """How many tokens of one text, or of the two of a pair, to keep: the longer text is cut first, then both equally.

    The same as the strategy `longest_first` of the `tokenizers` library.
    """
    if sum(lengths) <= room:
        return list(lengths)
    if len(lengths) == 1:
        return [room]
    short = min(*lengths, room // 2)
    return [short, room - short] if lengths[0] <= lengths[1] else [room - short, short]


POSITIONS_AFTER_PADDING = frozenset(
    ("camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
    "roberta",
     "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod")
)  # fmt: skip
"""Families that number positions from padding id + 1, so their tables have that many unusable positions."""


NEVER = r"(?!)"
"""A pattern that matches nothing."""


class Encoding(NamedTuple):
    """One example: ids and their types, of shape [T], and whether tokens were cut off.

    For an example of words also the index of each word's first token, of shape [words], see `_first_tokens`.
    """

    input_ids: NDArray[np.int32]
    token_type_ids: NDArray[np.int8]
    truncated: bool
    first_tokens: NDArray[np.int32] | None = None


@dataclass(frozen=True)
class TextEncoder:
    """A tokenizer prepared for a data set.

    `max_length` counts special tokens; `pad_is_end`: it had no padding token and pads with its end token; `divider`: a
    token that was added between the texts of a pair; `has_types`: whether the model has token types; `pad_id`: the id
    that batches are padded with; `digest` identifies the files that `save` writes. `by_words`: an example is a list of
    words, each tokenized separately; `spaced`: with a space before it, which only tokenizer.json specifies.
    `model_type` is the model's.
    """

    tokenizer: Any
    frame: Frame
    max_length: int
    vocab_size: int
    pad_is_end: bool
    divider: str | None
    has_types: bool
    pad_id: int
    digest: str
    by_words: bool
    spaced: bool
    model_type: str

    @cached_property
    def other_class(self) -> str | None:
        """The class that `AutoTokenizer` loads from the saved files beside such a model, if it puts no space before
        words.
        """
        return find_other_class(self.tokenizer.backend_tokenizer.to_str(), self.model_type) if self.spaced else None

    @property
    def cuts_left(self) -> bool:
        """Whether the end of a text is kept if it is too long."""
        return bool(self.tokenizer.truncation_side == "left")

    @property
    def pad_token(self) -> str:
        return str(self.tokenizer.pad_token)

    def save(self, folder: Path) -> None:
        """Write files from which `AutoTokenizer.from_pretrained` loads a tokenizer with the same ids as `encode`."""
        _save(self.tokenizer, self.spaced or self.divider is not None, folder)

    def encode(self, texts: Sequence[tuple[str, ...]]) -> list[Encoding]:
        """Encode the examples, each a text, the two of a pair, or words, cut to `max_length`."""
        if self.by_words:
            words = [list(each) for each in texts]
            found = self._reader.encode_batch(words, is_pretokenized=True, add_special_tokens=False)
            return [self._framed_words(each, len(of)) for each, of in zip(found, words, strict=True)]
        members = [
            [
                np.array(found.ids, dtype=np.int32)
                for found in self._reader.encode_batch_fast(list(each), add_special_tokens=False)
            ]
            for each in zip(*texts, strict=True)
        ]
        return [self._framed(ids) for ids in zip(*members, strict=True)]

    @cached_property
    def _markers(self) -> re.Pattern[str]:
        """Matches the special tokens that have no role of the tokenizer's own, such as markers that a user added."""
        own = {str(token) for token in self.tokenizer.special_tokens_map.values()}
        added = [token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special]
        markers = sorted({*added} - own, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, markers)) if markers else NEVER)

    def find_markers(self, texts: Sequence[str]) -> set[str]:
        """The special tokens without a role of their own that these texts spell; they are read as text."""
        return {token for text in texts for token in self._markers.findall(text)}

    @cached_property
    def _reader(self) -> Tokenizer:
        """Reads texts. As in pretraining, the spelling of a special token in a text does not become that token."""
        return text_reader(self.tokenizer.backend_tokenizer.to_str())

    def _framed_words(self, found: Any, words: int) -> Encoding:
        framed = self._framed((np.array(found.ids, dtype=np.int32),))
        before, kept = len(self.frame.tokens[0]), len(framed.input_ids) - self.frame.size
        cut = len(found.ids) - kept if self.cuts_left else 0
        return framed._replace(first_tokens=_first_tokens(found.word_ids, slice(cut, cut + kept), before, words))

    def _framed(self, ids: tuple[NDArray[np.int32], ...]) -> Encoding:
        frame, keeps_end = self.frame, self.cuts_left
        lengths = cut_lengths([len(each) for each in ids], self.max_length - frame.size)
        cut = [each[len(each) - n :] if keeps_end else each[:n] for each, n in zip(ids, lengths, strict=True)]
        types = [np.full(len(each), kind, dtype=np.int8) for each, kind in zip(cut, frame.text_types, strict=True)]
        return Encoding(
            input_ids=np.concatenate([frame.tokens[0], cut[0], frame.tokens[1], *cut[1:], frame.tokens[2]]),
            token_type_ids=np.concatenate([frame.types[0], types[0], frame.types[1], *types[1:], frame.types[2]]),
            truncated=sum(lengths) < sum(map(len, ids)),
        )


def _first_tokens(word_ids: Sequence[int], kept: slice, frame: int, words: int) -> NDArray[np.int32]:
    """The index of the first token of each word, UNSEEN if it has none or it is cut off; shape [words].

    `word_ids` are the words' numbers of an example's tokens; `kept` is the range of kept tokens, which follow `frame`
    special tokens.
    """
    firsts = np.full(words, UNSEEN, dtype=np.int32)
    found, places = np.unique(np.array(word_ids, dtype=np.int64), return_index=True)
    seen = (places >= kept.start) & (places < kept.stop)
    firsts[found[seen]] = places[seen] - kept.start + frame
    return firsts


def load_text_encoder(model: str | Path, data: LabelledDataConfig, finished: bool = False) -> TextEncoder:
    """The tokenizer in a model's folder, prepared for a data set.

    For a `finished` model, which is not trained any more, words are read as its tokenizer reads them, and batches are
    padded such that it gives what it gives for each text alone. Raises `TokenizerError` if it cannot be loaded or used,
    `ConfigError` if the model cannot be read or is too short.
    """
    name, by_words = str(model), data.task == "tokens"
    config = load_config(name).get_text_config()
    tokenizer = load_tokenizer(name, finished and by_words and is_plain(name))
    backend: Tokenizer = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    pad_is_end = choose_padding(tokenizer, name)
    spaced = by_words and not finished and space_words(tokenizer)
    frame, divider = _choose_frame(tokenizer, len(data.text_columns), name)
    length = resolve_length(data, tokenizer, config, name)
    if frame.size >= length:
        raise ConfigError(
            f"data.max_length is {length}, but the tokenizer of {name!r} adds {frame.size} tokens of its own"
        )
    # Some tokenizers return types although the model has none: GPT-2 would look them up as token ids.
    has_types = "token_type_ids" in tokenizer.model_input_names and (getattr(config, "type_vocab_size", 0) or 0) > 1
    inputs = ["input_ids", "token_type_ids", "attention_mask"] if has_types else ["input_ids", "attention_mask"]
    keep_settings(tokenizer, model_input_names=inputs, model_max_length=length, split_special_tokens=True)
    vocab_size = max(backend.get_vocab(True).values()) + 1
    pad_id = _unread_padding(config, frame, tokenizer.pad_token_id) if finished else tokenizer.pad_token_id
    digest = digest_saved(partial(_save, tokenizer, spaced or divider is not None))
    return TextEncoder(
        tokenizer, frame, length, vocab_size, pad_is_end, divider, has_types, pad_id, digest, by_words, spaced,
        config.model_type
    )  # fmt: skip


def is_plain(folder: str | Path) -> bool:
    """Whether a folder specifies the class that uses tokenizer.json as it is; `TextEncoder.save` may do so."""
    path = Path(folder, TOKENIZER_CONFIG)
    return path.is_file() and read_object(path).get("tokenizer_class") == PLAIN_CLASS


def resolve_length(data: LabelledDataConfig, tokenizer: Any, config: Any, name: str) -> int:
    """The most tokens of an example: as configured, else the lesser of the tokenizer's limit and the model's positions.

    Raises `ConfigError` if that exceeds the model's positions, or if there is no limit.
    """
    positions = most_positions(config)
    if positions < UNLIMITED and config.model_type in POSITIONS_AFTER_PADDING:
        positions -= (config.pad_token_id or 0) + 1
    if data.max_length is not None:
        if data.max_length > positions:
            raise ConfigError(f"data.max_length is {data.max_length}, but the model {name!r} has {positions} positions")
        return data.max_length
    most = min(tokenizer.model_max_length, positions)
    if most >= UNLIMITED:
        raise ConfigError(f"neither the model {name!r} nor its tokenizer has a maximum length; set data.max_length")
    return int(most)


def keep_settings(tokenizer: Any, **settings: Any) -> None:
    """Set what a tokenizer saves, so that the published tokenizer gives the ids that the model was trained on."""
    for key, value in {**settings, "padding_side": "right"}.items():
        setattr(tokenizer, key, value)
        tokenizer.init_kwargs[key] = value


def digest_saved(save: Callable[[Path], None]) -> str:
    """The digest of the files that a tokenizer's `save` writes."""
    with temporary_folder() as folder:
        save(Path(folder))
        return fingerprint({path.name: digest_file(path).sha256 for path in Path(folder).iterdir()})


def choose_padding(tokenizer: Any, name: str) -> bool:
    """Pad with the end token if there is no padding token; returns whether that is so."""
    if tokenizer.pad_token is not None:
        return False
    if tokenizer.eos_token is None:
        raise TokenizerError(
            f"the tokenizer of {name!r} has neither a padding token nor an end token to pad with; set one in its "
            "tokenizer_config.json"
        )
    tokenizer.pad_token = tokenizer.eos_token
    return True


def _unread_padding(config: Any, frame: Frame, pad_id: int) -> int:
    """An id to pad a finished model's batches with: its own padding id, else the tokenizer's or another one.

    Many models read a text's class at its last token that is not `config.pad_token_id`, and some number positions by
    it. A model without one reads the class at the last token, so padding is an id that ends no text.
    """
    own = getattr(config, "pad_token_id", None)
    if own is not None and 0 <= own < config.vocab_size:
        return int(own)
    after = frame.tokens[-1]
    return int(pad_id == 0) if len(after) and after[-1] == pad_id else pad_id


def _choose_frame(tokenizer: Any, members: int, name: str) -> tuple[Frame, str | None]:
    """The tokenizer's frame; adds its separator or end token between the texts of a pair if it puts nothing there."""
    backend: Tokenizer = tokenizer.backend_tokenizer
    frame = find_frame(backend, members)
    if members == 1 or len(frame.tokens[1]):
        return frame, None
    token = tokenizer.sep_token or tokenizer.eos_token
    if token is None:
        raise TokenizerError(
            f"the tokenizer of {name!r} puts nothing between the texts of a pair, and has no separator or end token "
            "to put there; set one in its tokenizer_config.json"
        )
    put_between(backend, str(token))
    return find_frame(backend, members), str(token)


def _save(tokenizer: Any, plain: bool, folder: Path) -> None:
    # Some families build special tokens in code; the plain class takes them from tokenizer.json.
    save_flat(tokenizer, folder, **({"tokenizer_class": PLAIN_CLASS} if plain else {}))
