"""Splits of encoded labelled data, as training reads them, and the weights of classes in the loss.

train.arrow  validation.arrow  test.arrow
    id              string
    input_ids       list<int32>
    token_type_ids  list<int8>, if the model has token types
    labels          int64 class ids, float64 numbers or, for several labels, an int8 per class; null if unlabelled
    first_tokens    list<int32>, if each word has a label: the index of its first token, -1 if it has none; `labels`
                    is then list<int32>, the id of each word's class
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.common.display import some
from trainer.common.errors import ConfigError
from trainer.config.labelled import BALANCED, ClassWeights
from trainer.data.encoded import IGNORED, Lists, SplitSet, open_set
from trainer.data.labelled.labels import UNLABELLED
from trainer.store.storage import Store

LISTS = {"input_ids": pa.int32(), "token_type_ids": pa.int8()}
FIRST_TOKENS = "first_tokens"

UNSEEN = -1
"""Represents the first token of a word that is cut off, or that the tokenizer gives no tokens."""


class EncodedSplit:
    """Examples with one label each, or one set of several labels.

    `lengths`: tokens of each example, int64 [N]; `labelled`: whether it has a label, bool [N]; `labels`: int64 or
    float64 [N], or int8 [N, C], where entries of unlabelled examples are meaningless. `predictions` counts a model's
    predictions: one per example.
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
        """The ids of the examples, in order."""
        names: list[str] = self._names.to_pylist()
        return names

    def read(self, places: Sequence[int] | NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Some examples, padded on the right to the longest of them.

        Returns int64 arrays of shape [B, T]: input_ids, attention_mask, and token_type_ids if they are stored.
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
        """The indices of some examples' labels and predictions."""
        return examples

    def example_at(self, row: int) -> int:
        """The example of a label or a prediction."""
        return row

    def pick(self, examples: NDArray[np.int64], logits: Any) -> Any:
        """The logits of these examples out of those of a batch; shape [B, C]."""
        return logits[: len(examples)]

    def batch_labels(self, examples: NDArray[np.int64], width: int) -> NDArray[Any]:
        """The labels of a batch of labelled examples, each padded to `width` tokens."""
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
    """Examples in which each word has a label.

    The words that the model sees are concatenated: `labels` has theirs, int64 [S], and `predictions` counts them.
    """

    def __init__(self, table: pa.Table, pad_id: int) -> None:
        lists = table[FIRST_TOKENS].combine_chunks()
        firsts: NDArray[np.int32] = lists.flatten().to_numpy()
        self._seen = firsts != UNSEEN
        self._first_tokens = firsts[self._seen].astype(np.int64)
        self._words: NDArray[np.int32] = lists.value_lengths().to_numpy()
        """The number of words of each example, seen or not."""
        starts = np.concatenate([[0], np.cumsum(self._words, dtype=np.int64)])
        self._seen_starts = np.concatenate([[0], np.cumsum(self._seen)])[starts]
        super().__init__(table, pad_id)
        self.predictions = len(self._first_tokens)

    def rows(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The indices of the labels and predictions of some examples' words, example by example."""
        spans = zip(self._seen_starts[examples], self._seen_starts[examples + 1], strict=True)
        return np.concatenate([np.empty(0, dtype=np.int64), *(np.arange(start, end) for start, end in spans)])

    def example_at(self, row: int) -> int:
        return int(np.searchsorted(self._seen_starts, row, side="right")) - 1

    def pick(self, examples: NDArray[np.int64], logits: Any) -> Any:
        """The logits of the words of these examples, of shape [S, C], out of their tokens' logits, [B, T, C]."""
        return logits[self._places(examples)]

    def batch_labels(self, examples: NDArray[np.int64], width: int) -> NDArray[Any]:
        """The label of each token, IGNORED except for the first token of each word; shape [B, width]."""
        by_token = np.full((len(examples), width), IGNORED, dtype=np.int64)
        by_token[self._places(examples)] = self.labels[self.rows(examples)]
        return by_token

    def named(self, examples: NDArray[np.int64], ids: NDArray[Any], classes: Sequence[str]) -> list[list[str]]:
        """The class names of the seen words of some examples, in lists by example."""
        names = [classes[number] for number in ids.tolist()]
        ends = np.cumsum(self._counts(examples)).tolist()
        return [names[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def seen(self) -> list[NDArray[np.bool_]]:
        """Which words of each example are seen, a bool array per example."""
        return np.split(self._seen, np.cumsum(self._words)[:-1])

    def _counts(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self._seen_starts[examples + 1] - self._seen_starts[examples]
        return found

    def _places(self, examples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows and tokens of the seen words of some examples in a batch of these examples."""
        return np.repeat(np.arange(len(examples)), self._counts(examples)), self._first_tokens[self.rows(examples)]

    def _read_labels(self, table: pa.Table) -> NDArray[Any]:
        labels = np.full(len(self._seen), UNLABELLED, dtype=np.int64)
        labels[np.repeat(self.labelled, self._words)] = table["labels"].combine_chunks().flatten().to_numpy()
        seen: NDArray[Any] = labels[self._seen]
        return seen


def open_split(table: pa.Table, pad_id: int) -> EncodedSplit:
    """The examples of a table, with one label each, or one per word."""
    return (EncodedWords if FIRST_TOKENS in table.column_names else EncodedSplit)(table, pad_id)


EncodedSet = SplitSet[EncodedSplit]


def open_encoded(store: Store, key: str) -> EncodedSet:
    """Map a published data set. Raises `ArtifactError` if it is missing or damaged."""
    return open_set(store, key, lambda table, facts, pad_id: open_split(table, pad_id))


def find_class_weights(wanted: ClassWeights, classes: Sequence[str], counts: Mapping[str, int] | None) -> list[float]:
    """The weight of each class, by id; `counts` are train's examples, or seen words, of each class, None if unknown.

    Balanced weights are examples / (classes x examples of the class), as in scikit-learn's `compute_class_weight`. In
    weights by name, a missing class has weight 1. Raises `ConfigError` for an unknown class, and for balanced weights
    if a class has no examples.
    """
    if wanted != BALANCED:
        _check_names(wanted, classes)
        return [wanted.get(name, 1.0) for name in classes]
    if counts is None:
        return [1.0] * len(classes)
    if absent := [name for name in classes if not counts[name]]:
        raise ConfigError(
            f"training.class_weights is {BALANCED}, but no training example has the class {absent[0]!r}; set the "
            "weights by class name"
        )
    examples = sum(counts[name] for name in classes)
    return [examples / (len(classes) * counts[name]) for name in classes]


def _check_names(wanted: Mapping[str, float], classes: Sequence[str]) -> None:
    if unknown := [name for name in wanted if name not in classes]:
        close = difflib.get_close_matches(unknown[0], classes, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"training.class_weights has {unknown[0]!r}, but the classes are {some(map(repr, classes), 12)}{hint}"
        )
