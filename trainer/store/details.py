"""Types of the `details` in manifests, by kind of artifact, as far as later steps read them.

They are validated when a manifest is written and read: a checksum does not show that the content was correct.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, PositiveInt

from trainer.store.names import Count, Digest, Key, Share


class Details(BaseModel):
    """Declares the keys that are read; other keys are allowed."""

    model_config = ConfigDict(extra="allow")


class Totals(Details):
    """Counts of a shard, or over all shards of a set."""

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
    """A data set in splits, encoded for the task in its recipe."""

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
"""Additional details of an encoded set, by its task."""


class KeptOutFile(BaseModel):
    """A file of an evaluation set, identified by its content, and the field that is searched for in the corpora."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    field: str
    sha256: str


class KeptOutTexts(Details):
    """Number of texts in a field of an evaluation set's file, and how many are too short to be searched for."""

    sha256: str
    field: str
    texts: Count
    too_short: Count


class FrequentDetails(Details):
    """Words for which `documents` of a corpus's `of` are dropped, and the evaluation example that contains them."""

    corpus: str
    documents: Count
    of: PositiveInt
    words: str
    example: str


class KeptOutDetails(Details):
    """The evaluation sets that kept documents share no n-gram of words with; `key` is that of the n-grams' hashes.

    `examples` is the key of the file that maps each hash to its example; `frequent` lists n-grams that each drop many
    documents of a corpus.
    """

    ngram: Count
    least_words: Count
    key: Key
    files: list[KeptOutFile]
    examples: Key
    texts: list[KeptOutTexts]
    frequent: list[FrequentDetails]


class ReasonDetails(Details):
    """Number of documents and UTF-8 bytes that are kept (`kept`) or dropped for a reason."""

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
    """Number of compared document pairs, and of documents not compared with all that share a key with them."""

    pairs: Count
    incomplete: Count


class CurationDetails(Details):
    """The recorded options of curation."""

    near: NearDetails | None
    transform: dict[str, Any] | None


class DecisionsDetails(Details):
    """Curation's decisions: `table` by corpus and reason; `measures` are the keys of the measurements."""

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
    """Number of answer pairs in a split, and the share in which the reference prefers the chosen answer."""

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


class DataKind(NamedTuple):
    """A kind of artifact that runs are made from: its folder in a store, the type of its details, and its role in the
    record of a run that has exactly one of it.

    An artifact's key is FOLDER/NAME-FINGERPRINT.
    """

    folder: str
    details: type[Details]
    role: str | None = None


DATA_KINDS = {
    "reference": DataKind("references", ReferenceDetails, "reference"),
    "encoded": DataKind("encoded", SetDetails, "encoded set"),
    "shards": DataKind("shards", ShardsDetails),
    "tokenizer": DataKind("tokenizers", TokenizerDetails, "tokenizer"),
    "decisions": DataKind("decisions", DecisionsDetails),
}
"""By the `kind` in manifests; what is built from others comes before them, as garbage collection removes it first."""

DETAILS_OF: dict[str, type[Details]] = {
    **{kind: each.details for kind, each in DATA_KINDS.items()},
    "checkpoint": CheckpointDetails,
    "model": ModelDetails,
}


def require_details(kind: str, details: dict[str, Any], recipe: Mapping[str, Any]) -> None:
    """Raise `ValueError` if the details of an artifact do not match its kind and recipe."""
    if kind not in DETAILS_OF:
        return
    found = DETAILS_OF[kind].model_validate(details)
    if not isinstance(found, SetDetails):
        return
    if found.task != (task := recipe.get("data.task", found.task if found.task in OF_TASK else None)):
        raise ValueError(f"details.task is {found.task!r}, but the recipe has {task!r}")
    OF_TASK.get(found.task, SetDetails).model_validate(details)
