"""Splits of encoded labelled data, as training reads them, and what each class counts in the loss.

train.arrow  validation.arrow  test.arrow
    id              string
    input_ids       list<int32>
    token_type_ids  list<int8>, where the model knows token types
    labels          int64 class ids, float64 numbers or, of several labels, an int8 for each class; null if unlabelled
    first_tokens    list<int32>, where each word has a label: the place of its first token, -1 if it has none; `labels`
                    are then list<int32>, the id of each word's class
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.common.errors import ConfigError
from trainer.config.labelled import BALANCED, ClassWeights
from trainer.data.encoded import IGNORED, Lists, SplitSet, open_set
from trainer.data.labelled.labels import UNLABELLED
from trainer.store.storage import Store

LISTS = {"input_ids": pa.int32(), "token_type_ids": pa.int8()}
FIRST_TOKENS = "first_tokens"

UNSEEN = -1
"""Stands for the first token of a word that is cut off, or that the tokenizer gives no token."""


class EncodedSplit:
    """Examples that have one label each, or several as one.

    `lengths`: tokens of each example, int64 [N]; `labelled`: whether it has a label, bool [N]; `labels`: int64 or
    float64 [N], or int8 [N, C], in which those that are missing mean nothing. `predictions` counts what a model says:
    one for each example.
    """

    def __init__(self, table: pa.Table, pad_id: int) -> None:
        self._names, self._pad_id = table["id"], pad_id
        self._columns = {name: Lists(table[name]) for name in LISTS if name in table.column_names}
        self.lengths = self._columns["input_ids"].lengths
        self.labelled: NDArray[np.bool_] = table["labels"].is_valid().to_numpy()
        self.labels, self.predictions = self._read_labels(table), len(self)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def ids(self) -> list[str]:
        """The names of the examples, in order."""
        names: list[str] = self._names.to_pylist()
        return names

    def read(self, places: Sequence[int] | NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Some examples, padded on the right to the longest of them.

        Returns int64 arrays of shape [B, T]: input_ids, attention_mask, and token_type_ids where they are stored.
        """
        places = np.asarray(places, dtype=np.int64)
        lengths = self.lengths[places]
        width = int(lengths.max())
        inputs = {
            name: column.read(places, width, self._pad_id if name == "input_ids" else 0)
            for name, column in self._columns.items()
        }
        return {**inputs, "attention_mask": (np.arange(width) < lengths[:, None]).astype(np.int64)}

    def rows(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the labels and the predictions of some examples stand."""
        return examples

    def example_at(self, row: int) -> int:
        """The example that a label or a prediction is of."""
        return row

    def pick(self, examples: NDArray[np.int64], logits: Any) -> Any:
        """Those of a model's logits of a batch that say something of these examples, of shape [B, C]."""
        return logits[: len(examples)]

    def batch_labels(self, examples: NDArray[np.int64], width: int) -> NDArray[Any]:
        """The labels of a batch of labelled examples, each of `width` tokens."""
        labels: NDArray[Any] = self.labels[examples]
        return labels

    def _read_labels(self, table: pa.Table) -> NDArray[Any]:
        column = table["labels"].combine_chunks()
        if not pa.types.is_fixed_size_list(column.type):
            single: NDArray[Any] = column.fill_null(UNLABELLED).to_numpy()
            return single
        labels = np.full((len(column), column.type.list_size), UNLABELLED, dtype=np.int8)
        labels[self.labelled] = column.flatten().to_numpy().reshape(-1, column.type.list_size)
        return labels


class EncodedWords(EncodedSplit):
    """Examples of which each word has a label.

    Those that the model sees stand one after another: `labels` are theirs, int64 [S], `predictions` counts them.
    """

    def __init__(self, table: pa.Table, pad_id: int) -> None:
        lists = table[FIRST_TOKENS].combine_chunks()
        firsts: NDArray[np.int32] = lists.flatten().to_numpy()
        self._seen = firsts != UNSEEN
        self._first_tokens = firsts[self._seen].astype(np.int64)
        self._words: NDArray[np.int32] = lists.value_lengths().to_numpy()
        """Of each example, seen or not."""
        starts = np.concatenate([[0], np.cumsum(self._words, dtype=np.int64)])
        self._seen_starts = np.concatenate([[0], np.cumsum(self._seen)])[starts]
        super().__init__(table, pad_id)
        self.predictions = len(self._first_tokens)

    def rows(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the labels and the predictions of the words of some examples stand, one example after another."""
        spans = zip(self._seen_starts[examples], self._seen_starts[examples + 1], strict=True)
        return np.concatenate([np.empty(0, dtype=np.int64), *(np.arange(start, end) for start, end in spans)])

    def example_at(self, row: int) -> int:
        return int(np.searchsorted(self._seen_starts, row, side="right")) - 1

    def pick(self, examples: NDArray[np.int64], logits: Any) -> Any:
        """The logits of the words of these examples, of shape [S, C], out of those of their tokens, [B, T, C]."""
        return logits[self._places(examples)]

    def batch_labels(self, examples: NDArray[np.int64], width: int) -> NDArray[Any]:
        """The label of each of `width` tokens, IGNORED but for the first ones of words, of shape [B, width]."""
        by_token = np.full((len(examples), width), IGNORED, dtype=np.int64)
        by_token[self._places(examples)] = self.labels[self.rows(examples)]
        return by_token

    def named(self, examples: NDArray[np.int64], ids: NDArray[Any], classes: Sequence[str]) -> list[list[str]]:
        """The names of the classes of the seen words of some examples, in lists by example."""
        names = [classes[number] for number in ids.tolist()]
        ends = np.cumsum(self._counts(examples)).tolist()
        return [names[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def seen(self) -> list[NDArray[np.bool_]]:
        """Which words of each example are seen."""
        return np.split(self._seen, np.cumsum(self._words)[:-1])

    def _counts(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._seen_starts[examples + 1] - self._seen_starts[examples]
        return found

    def _places(self, examples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the seen words of some examples stand in a batch of them: row and token."""
        return np.repeat(np.arange(len(examples)), self._counts(examples)), self._first_tokens[self.rows(examples)]

    def _read_labels(self, table: pa.Table) -> NDArray[Any]:
        labels = np.full(len(self._seen), UNLABELLED, dtype=np.int64)
        labels[np.repeat(self.labelled, self._words)] = table["labels"].combine_chunks().flatten().to_numpy()
        seen: NDArray[Any] = labels[self._seen]
        return seen


def open_split(table: pa.Table, pad_id: int) -> EncodedSplit:
    """The examples of a table, with a label for each, or for each of its words."""
    return (EncodedWords if FIRST_TOKENS in table.column_names else EncodedSplit)(table, pad_id)


EncodedSet = SplitSet[EncodedSplit]


def open_encoded(store: Store, key: str) -> EncodedSet:
    """Map a published data set. Raises `ArtifactError` if there is none, or it is damaged."""
    return open_set(store, key, lambda table, told, pad_id: open_split(table, pad_id))


def find_class_weights(wanted: ClassWeights, classes: Sequence[str], counts: Mapping[str, int] | None) -> list[float]:
    """The weight of each class, by its id; `counts` are the examples, or words that are seen, that train has of each,
    or None while that is not known.

    Balanced ones are examples / (classes x examples of the class), as scikit-learn's `compute_class_weight` has it. Of
    weights by name, a class that is not named counts 1. Raises `ConfigError` for the name of no class, and if a class
    that is to be balanced has no example.
    """
    if wanted != BALANCED:
        _check_names(wanted, classes)
        return [wanted.get(name, 1.0) for name in classes]
    if counts is None:
        return [1.0] * len(classes)
    if absent := [name for name in classes if not counts[name]]:
        raise ConfigError(
            f"training.class_weights is {BALANCED}, but nothing that is trained on has the class {absent[0]!r}; give "
            "the weights by the names of the classes"
        )
    examples = sum(counts[name] for name in classes)
    return [examples / (len(classes) * counts[name]) for name in classes]


def _check_names(wanted: Mapping[str, float], classes: Sequence[str]) -> None:
    if unknown := [name for name in wanted if name not in classes]:
        close = difflib.get_close_matches(unknown[0], classes, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"training.class_weights names {unknown[0]!r}, but the classes are {', '.join(map(repr, classes[:12]))}"
            f"{' …' if len(classes) > 12 else ''}{hint}"
        )
