"""Splits of encoded labelled data, as training reads them.

train.arrow  validation.arrow  test.arrow
    id              string
    input_ids       list<int32>
    token_type_ids  list<int8>, where the model knows token types
    labels          int64 class ids, float64 numbers or, of several labels, an int8 for each class; null if unlabelled
    first_tokens    list<int32>, where each word has a label: the place of its first token, -1 if it has none; `labels`
                    are then list<int32>, the id of each word's class
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.data.encoded import Lists, SplitSet, open_set
from trainer.data.labelled.labels import UNLABELLED
from trainer.data.labelled.words import IGNORED, Words
from trainer.store.storage import Store

LISTS = {"input_ids": pa.int32(), "token_type_ids": pa.int8()}
FIRST_TOKENS = "first_tokens"


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

    def read(
        self, places: Sequence[int] | NDArray[np.int64], pad_to: int | None = None
    ) -> dict[str, NDArray[np.int64]]:
        """Some examples, padded on the right to the longest of them, or to `pad_to` tokens.

        Returns int64 arrays of shape [B, T]: input_ids, attention_mask, and token_type_ids where they are stored.
        Raises `ValueError` if an example is longer than `pad_to`.
        """
        places = np.asarray(places, dtype=np.int64)
        lengths = self.lengths[places]
        width = int(lengths.max()) if pad_to is None else pad_to
        if (lengths > width).any():
            raise ValueError(f"an example has {int(lengths.max())} tokens, beyond pad_to {width}")
        inputs = {
            name: column.read(places, width, self._pad_id if name == "input_ids" else 0)
            for name, column in self._columns.items()
        }
        return {**inputs, "attention_mask": (np.arange(width) < lengths[:, None]).astype(np.int64)}

    def rows(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the labels and the predictions of some examples stand."""
        return examples

    def known(self, examples: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which rows of some examples are of labelled ones."""
        return self.labelled[examples]

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

    `labels`: int64 of the words that the model sees, one example after another; `predictions` counts these words.
    """

    def __init__(self, table: pa.Table, pad_id: int) -> None:
        self.words = Words(table[FIRST_TOKENS])
        super().__init__(table, pad_id)
        self.predictions = len(self.words.first_tokens)

    def rows(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the labels and the predictions of the words of some examples stand."""
        return self.words.rows(examples)

    def known(self, examples: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.repeat(self.labelled[examples], self.words.counts(examples))

    def example_at(self, row: int) -> int:
        return self.words.example_at(row)

    def pick(self, examples: NDArray[np.int64], logits: Any) -> Any:
        """The logits of the words of these examples, of shape [S, C], out of those of their tokens, [B, T, C]."""
        return logits[self.words.places(examples)]

    def batch_labels(self, examples: NDArray[np.int64], width: int) -> NDArray[Any]:
        """The label of each of `width` tokens, IGNORED but for the first ones of words, of shape [B, width]."""
        by_token = np.full((len(examples), width), IGNORED, dtype=np.int64)
        by_token[self.words.places(examples)] = self.labels[self.rows(examples)]
        return by_token

    def _read_labels(self, table: pa.Table) -> NDArray[Any]:
        labels = np.full(len(self.words.seen), UNLABELLED, dtype=np.int64)
        labels[self.words.of_examples(self.labelled)] = table["labels"].combine_chunks().flatten().to_numpy()
        seen: NDArray[Any] = labels[self.words.seen]
        return seen


def open_split(table: pa.Table, pad_id: int) -> EncodedSplit:
    """The examples of a table, with a label for each, or for each of its words."""
    return (EncodedWords if FIRST_TOKENS in table.column_names else EncodedSplit)(table, pad_id)


EncodedSet = SplitSet[EncodedSplit]


def open_encoded(store: Store, key: str) -> EncodedSet:
    """Map a published data set. Raises `ArtifactError` if there is none, or it is damaged."""
    return open_set(store, key, lambda table, told, pad_id: open_split(table, pad_id))
