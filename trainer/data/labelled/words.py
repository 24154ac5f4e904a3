"""A label for each word of an example, and how labels are read and kept, by task."""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.config.labelled import LabelledDataConfig
from trainer.data.labelled.labels import (
    UNLABELLED,
    Label,
    LabelList,
    Labels,
    are_withheld,
    find_labels,
    find_listed,
    plain_label,
    plain_labels,
    read_label,
    read_list,
)

IGNORED = -100
"""Stands for the label of a token that has none, as in `torch.nn.functional.cross_entropy`."""

UNSEEN = -1
"""Stands for the first token of a word that is cut off, or that the tokenizer gives no token."""


def require_words(column: str, value: Any) -> None:
    """Raise `ValueError` if a row has no list with a word in it."""
    if not isinstance(value, list | tuple):
        found = "nothing" if value is None else type(value).__name__
        raise ValueError(f"column {column!r} holds {found}, not a list of words")
    if not value:
        raise ValueError(f"column {column!r} holds an empty list, without a word")


def plain_tags(value: Any, words: int, data: LabelledDataConfig) -> LabelList | None:
    """The labels of a row's words in their order, or None if they are missing. Raises `ValueError` if they can be
    none.
    """
    if value is None:
        return None
    column = data.label_column
    if not isinstance(value, list | tuple):
        raise ValueError(f"column {column!r} holds {type(value).__name__}, not a list with a label for each word")
    if len(value) != words:
        raise ValueError(
            f"column {data.text_columns[0]!r} holds {words} words, but column {column!r} holds {len(value)} labels; "
            "each word needs one"
        )
    found = [plain_label(each, data) for each in value]
    if None in found:
        raise ValueError(f"column {column!r}: word {found.index(None) + 1} of {words} has an empty label")
    # Each row of a file has texts of its own, though there are a few labels only.
    return tuple(sys.intern(each) if isinstance(each, str) else each for each in found if each is not None)


def read_tags(labels: Labels, value: LabelList | None, optional: bool) -> NDArray[np.int32]:
    """The id of each word's class; of no word where labels are missing, or all withheld, and that is allowed.

    Raises `ValueError` with what was found and expected.
    """
    if value is None:
        if not optional:
            raise ValueError("no labels are given")
        return np.empty(0, dtype=np.int32)
    if optional and are_withheld(labels, value, (UNLABELLED, IGNORED)):
        return np.empty(0, dtype=np.int32)
    ids = np.empty(len(value), dtype=np.int32)
    for number, each in enumerate(value):
        try:
            ids[number] = int(read_label(labels, each, optional=False) or 0)
        except ValueError as error:
            raise ValueError(f"word {number + 1} of {len(value)}: {error}") from error
    return ids


def as_column(found: Sequence[NDArray[np.int32]]) -> NDArray[Any]:
    """Arrays of any lengths as an array of arrays, of shape [N]."""
    column = np.empty(len(found), dtype=object)
    for number, each in enumerate(found):
        column[number] = each
    return column


def all_words(labels: NDArray[Any]) -> NDArray[np.int32]:
    """The ids of all words, of labels by example."""
    return np.concatenate([np.empty(0, dtype=np.int32), *labels])


def first_tokens(word_ids: Sequence[int], kept: slice, frame: int, words: int) -> NDArray[np.int32]:
    """The place of the first token of each word, UNSEEN where there is none or it is cut off, of shape [words].

    `word_ids` are the numbers of the words that an example's tokens belong to, of which some are `kept`, after `frame`
    others.
    """
    firsts = np.full(words, UNSEEN, dtype=np.int32)
    found, places = np.unique(np.array(word_ids, dtype=np.int64), return_index=True)
    seen = (places >= kept.start) & (places < kept.stop)
    firsts[found[seen]] = places[seen] - kept.start + frame
    return firsts


class Words:
    """The words of the examples of a split, out of a column of `first_tokens`.

    Those that the model sees stand one after another: `first_tokens` are their places, of shape [S], and `seen` says of
    all words whether they are among them, of shape [W].
    """

    def __init__(self, column: pa.ChunkedArray) -> None:
        lists = column.combine_chunks()
        firsts: NDArray[np.int32] = lists.flatten().to_numpy()
        self.seen = firsts != UNSEEN
        self.first_tokens = firsts[self.seen].astype(np.int64)
        self._lengths: NDArray[np.int32] = lists.value_lengths().to_numpy()
        self._ends = np.cumsum(self._lengths, dtype=np.int64)
        self._seen_ends = np.concatenate([[0], np.cumsum(self.seen)])[np.concatenate([[0], self._ends])]

    def rows(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places of the seen words of some examples, one example after another."""
        spans = zip(self._seen_ends[examples], self._seen_ends[examples + 1], strict=True)
        return np.concatenate([np.empty(0, dtype=np.int64), *(np.arange(start, end) for start, end in spans)])

    def counts(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many words of each of some examples are seen."""
        found: NDArray[np.int64] = self._seen_ends[examples + 1] - self._seen_ends[examples]
        return found

    def places(self, examples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the seen words of some examples stand in a batch of them: row and token."""
        return np.repeat(np.arange(len(examples)), self.counts(examples)), self.first_tokens[self.rows(examples)]

    def named(self, examples: NDArray[np.int64], ids: NDArray[Any], classes: Sequence[str]) -> list[list[str]]:
        """The names of the classes of the seen words of some examples, in lists by example."""
        names = [classes[number] for number in ids.tolist()]
        ends = np.cumsum(self.counts(examples)).tolist()
        return [names[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def of_examples(self, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of all words are of chosen examples, of shape [W]."""
        return np.repeat(chosen, self._lengths)

    def example_at(self, row: int) -> int:
        """The example that a seen word is of."""
        return int(np.searchsorted(self._seen_ends, row, side="right")) - 1

    def by_example(self) -> list[NDArray[np.bool_]]:
        """Which words of each example are seen."""
        return np.split(self.seen, self._ends[:-1])


AnyLabel = Label | LabelList
"""What a row says of its example: a label, or several."""


class LabelKind(NamedTuple):
    """What is done with the labels of a task.

    `plain` makes a label out of a row's value, of which the example has so many texts, or words; None if it is missing.
    `find` tells the classes by the values of train. `read` says what a label means, `missing` what stands where there
    is none, and `gather` makes an array of such meanings. The first and the third raise `ValueError`, the second
    `CorpusError`.
    """

    plain: Callable[[Any, int, LabelledDataConfig], AnyLabel | None]
    find: Callable[[LabelledDataConfig, Iterable[Any], list[str] | None, int], Labels]
    read: Callable[[Labels, Any, bool], Any]
    missing: Callable[[Labels], Any]
    gather: Callable[[list[Any]], NDArray[Any]]


KINDS = {
    "classification": LabelKind(
        lambda value, texts, data: plain_label(value, data), find_labels, read_label, lambda labels: UNLABELLED,
        lambda found: np.array(found, dtype=np.int64),
    ),
    "regression": LabelKind(
        lambda value, texts, data: plain_label(value, data), find_labels, read_label, lambda labels: np.nan,
        lambda found: np.array(found, dtype=np.float64),
    ),
    "multi-label": LabelKind(
        lambda value, texts, data: plain_labels(value, data), find_listed, read_list,
        lambda labels: np.full(len(labels.classes or ()), UNLABELLED), lambda found: np.array(found, dtype=np.int8),
    ),
    "tokens": LabelKind(plain_tags, find_listed, read_tags, lambda labels: np.empty(0, dtype=np.int32), as_column),
}  # fmt: skip
