"""What the manifests of each kind of artifact say of it, as far as later work reads it: they are checked by these types
when they are written, and when they are read.

A checksum says that a manifest is the one that was written there, not that whoever wrote it did so rightly.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, PositiveInt

from trainer.store.names import Count, Digest, Key, Share


class Details(BaseModel):
    """Typed where it is looked at; other keys may stand beside."""

    model_config = ConfigDict(extra="allow")


class Totals(Details):
    """Counts over all shards of a set."""

    raw_bytes: Count
    documents: Count
    tokens: Count
    text_bytes: Count
    validation_documents: Count
    validation_tokens: Count
    validation_bytes: Count
    validation_token_bytes: Count
    bad_records: Count


class ShardsDetails(Details):
    """A tokenized corpus."""

    corpus: str
    dtype: Literal["<u2", "<u4"]
    block_bytes: Literal[32768]
    eos_id: Count
    vocab_size: Count
    tokenizer_sha256: Digest
    num_shards: Count
    shard_tokens: list[Count]
    totals: Totals
    keeps_text: bool
    validation_digest: str
    skipped: list[str] = []


class SplitDetails(Details):
    """A split of an encoded set."""

    examples: Count
    bad_records: Count
    skipped: list[str] = []


class SourceDetails(Details):
    """Where the records of an encoded set come from: files by split, or the parts of a data set."""

    identity: dict[str, list[list[Any]]] | list[Any]
    paths: dict[str, list[str]] = {}


class SetDetails(Details):
    """A data set in splits, encoded for the task that its recipe names."""

    task: str
    pad_id: Count
    vocab_size: Count
    tokenizer: str
    tokenizer_sha256: Digest
    splits: Mapping[str, SplitDetails]
    source: SourceDetails


class LabelledSplitDetails(SplitDetails):
    """A split of a labelled set."""

    labelled: Count


class LabelledDetails(SetDetails):
    """A labelled set."""

    classes: list[str] | None
    text_columns: list[str]
    label_column: str
    splits: Mapping[str, LabelledSplitDetails]


class ChatSplitDetails(SplitDetails):
    """A split of a set of conversations."""

    tokens: Count
    answer_tokens: Count
    answer_bytes: Count
    answer_token_bytes: Count
    longest: Count
    truncated: Count
    unanswered: Count
    unmarked: Count


class ChatDetails(SetDetails):
    """A set of conversations."""

    context: PositiveInt
    end_id: Count
    keeps_text: bool
    splits: Mapping[str, ChatSplitDetails]


OF_TASK: dict[Any, type[SetDetails]] = {
    **dict.fromkeys(("classification", "multi-label", "regression", "tokens"), LabelledDetails),
    **dict.fromkeys(("chat", "preference"), ChatDetails),
}  # fmt: skip
"""What is said of an encoded set besides, by its task."""


class KeptOutFile(Details):
    """A file of an evaluation set: a field of it that is looked for."""

    path: str
    field: str
    sha256: str


class KeptOutTexts(Details):
    """How many texts a field of a file of an evaluation set holds, and how many of these are too short to be looked
    for.
    """

    sha256: str
    field: str
    texts: Count
    too_short: Count


class FrequentDetails(Details):
    """Words that documents go for, so many `of` a corpus's, and the example of an evaluation set that has them."""

    corpus: str
    documents: Count
    of: PositiveInt
    words: str
    example: str


class KeptOutDetails(Details):
    """The evaluation sets that documents share no n-gram of words with, and the key of the hashes of these.

    `examples` is the key of what tells the example that each hash is of; `frequent` are the n-grams that each drop many
    of a corpus's documents.
    """

    ngram: Count
    least_words: Count
    key: Key
    files: list[KeptOutFile]
    examples: Key
    texts: list[KeptOutTexts]
    frequent: list[FrequentDetails]


class ReasonDetails(Details):
    """How many documents, and bytes of UTF-8, stay (`kept`), or go for a reason."""

    reason: str
    documents: Count
    bytes: Count


class NearDetails(Details):
    """The options for near duplicates."""

    least_similarity: float
    least_contained: float
    ngram: Count
    bands: PositiveInt
    rows: PositiveInt


class ComparedDetails(Details):
    """How many pairs of documents were compared, and how many documents not with all that they share a key with."""

    pairs: Count
    incomplete: Count


class CurationDetails(Details):
    """The options of curation, as far as they are told."""

    near: NearDetails | None
    transform: dict[str, Any] | None


class DecisionsDetails(Details):
    """What was decided of raw text: `table` by corpus and reason; `measures` are the folders of what was measured."""

    curation: CurationDetails
    corpora: list[dict[str, Any]]
    reasons: list[str]
    first_documents: dict[str, Count]
    documents: Count
    table: dict[str, list[ReasonDetails]]
    compared: ComparedDetails | None
    kept_out: KeptOutDetails | None
    measures: list[Key]


class ReferenceSplit(Details):
    """How many pairs of answers a split has, and the share of which the reference prefers the chosen one."""

    pairs: Count
    accuracy: Share


class ReferenceDetails(Details):
    """A reference model's log-probabilities."""

    splits: Mapping[str, ReferenceSplit]


class TokenizerDetails(Details):
    """A tokenizer."""

    eos_token: str
    vocab_size: Count


class CheckpointDetails(Details):
    """A checkpoint of a run."""

    step: Count
    scores: dict[str, float] | None
    run: str


class ModelDetails(Details):
    """A run's final model."""

    run: str
    step: Count | None = None
    context: Count | None = None
    shards: list[Key] = []


DETAILS_OF: dict[str, type[Details]] = {
    "shards": ShardsDetails, "encoded": SetDetails, "decisions": DecisionsDetails, "tokenizer": TokenizerDetails,
    "reference": ReferenceDetails, "checkpoint": CheckpointDetails, "model": ModelDetails,
}  # fmt: skip


def require_details(kind: str, details: dict[str, Any], recipe: Mapping[str, Any]) -> None:
    """Raise `ValueError` if an artifact of a kind and recipe is not described as later work takes it."""
    if kind not in DETAILS_OF:
        return
    found = DETAILS_OF[kind].model_validate(details)
    if not isinstance(found, SetDetails):
        return
    if found.task != (asked := recipe.get("data.task", found.task if found.task in OF_TASK else None)):
        raise ValueError(f"details.task is {found.task!r}, but the recipe says {asked!r}")
    OF_TASK.get(found.task, SetDetails).model_validate(details)
