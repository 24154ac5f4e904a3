"""Types of the records in a store, and the remedies for damaged ones, by their keys.

A checksum does not show that the content was correct when it was written, so the fields that later steps read are
validated; other fields are ignored.
"""

import re
from functools import cache
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from trainer.common.errors import in_one_line
from trainer.records.basis import AnyBasis
from trainer.records.evaluations import OfRun, OfTasks, Result
from trainer.records.plans import plan_type
from trainer.store.details import CurationDetails, KeptOutDetails, ReasonDetails, SetDetails
from trainer.store.manifest import FileRecord, Input, Time, fingerprint
from trainer.store.names import CHECKPOINTS, Count, Digest, Figure, Key, RunKey

Number = Figure | None


class Shape(BaseModel):
    """Declares the keys that are read; other keys are allowed."""

    model_config = ConfigDict(extra="allow")


class Ref(Shape):
    key: Key
    fingerprint: str = ""
    size: Count = 0


class Data(Shape):
    """Tokenizer and shards, or the key of an encoded set."""

    tokenizer: Ref | None = None
    shards: list[Ref] = []
    key: Key | None = None


class Fork(Shape):
    """The checkpoint that a fork began with, the fingerprint of its run, and a digest of its weights; older files lack
    the last two.
    """

    run: RunKey
    checkpoint: Key
    fingerprint: str = ""
    weights: str = ""


class Start(Shape):
    origin: Literal["store", "folder", "hub"]
    key: str | None


class Base(Shape):
    """The pretrained model behind a run."""

    name: str
    origin: Literal["store", "folder", "hub"]
    hub: str | None
    license: str | None
    language: list[str]


class Config(Shape):
    """config.json; code that needs more than its parts validates the job."""

    fingerprint: str
    identity: dict[str, Any]
    job: dict[str, Any] = {}
    data: Data = Data()
    inputs: dict[str, Input] = {}
    fork: Fork | None = None
    start: Start | None = None
    base: Base | None = None

    @model_validator(mode="after")
    def _is_named_by_its_identity(self) -> Self:
        if self.fingerprint != fingerprint(self.identity):
            raise ValueError("its fingerprint does not match its identity")
        return self


class Pointer(BaseModel):
    """checkpoint-last, -best and those of epochs: a checkpoint's path in the run's folder, its step and its scores."""

    model_config = ConfigDict(strict=True, extra="forbid")

    checkpoint: str
    step: Count
    scores: dict[str, float] | None

    @model_validator(mode="after")
    def _names_its_step(self) -> Self:
        if self.checkpoint != folder_name(self.step):
            raise ValueError(f"it refers to {self.checkpoint} for step {self.step}")
        return self


def folder_name(step: int) -> str:
    """The path of a step's checkpoint in the run's folder."""
    return f"{CHECKPOINTS}/step-{step:08d}"


class Holder(Shape):
    """lease.json"""

    id: str
    since: str
    beat: Time
    host: str
    pid: int
    machine: str
    started: str
    removing: bool = False


class AnswerSums(Shape):
    """A part of a reference's log-probabilities: of the chosen and the rejected answer of each pair."""

    sums: list[tuple[Figure, Figure]]


class Move(BaseModel):
    """A change of the champion, by a promotion or a rollback, with time and reason.

    The scores are those at the promotion.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Literal["promote", "roll back"]
    run: RunKey
    fingerprint: str
    scores: dict[str, Figure]
    time: str
    reason: str
    measured_on: AnyBasis | None = None


class History(Shape):
    """models/NAME/champion: the moves, oldest first."""

    moves: list[Move] = Field(min_length=1)


class Seen(Shape):
    """cache/seen-*.json"""

    files: dict[str, tuple[Count, str, list[tuple[Count, Count, Count, str]]]]
    """By path: size and version, and start, end, count and digest of each piece."""


class PackedCounts(Shape):
    """cache/packed-*.json"""

    windows: list[Count]


class Environment(Shape):
    packages: dict[str, str]


class Named(Shape):
    key: Key
    fingerprint: str


class RunMade(Shape):
    key: RunKey
    fingerprint: str
    config_sha256: Digest


class ModelMade(Named):
    created: str
    files: list[FileRecord]


class ReportMade(Shape):
    fingerprint: str
    files: list[FileRecord]


class MadeFrom(Named):
    manifest_sha256: Digest


class EncodedMade(MadeFrom):
    details: SetDetails


class ShardsMade(MadeFrom):
    corpus: str
    sources: Key
    sources_sha256: Digest | None


class DecisionsMade(MadeFrom):
    curation: CurationDetails
    documents: Count
    table: dict[str, list[ReasonDetails]]
    kept_out: KeptOutDetails | None


class Measured(Named):
    harness: Named | None = None


class Lineage(Shape):
    """lineage.json"""

    run: RunMade
    model: ModelMade
    evaluation: Measured | None
    tokenizer: MadeFrom | None = None
    encoded: EncodedMade | None = None
    reference: MadeFrom | None = None
    shards: list[ShardsMade] = []
    decisions: list[DecisionsMade] = []
    report: ReportMade | None = None


class Record(Shape):
    """A line of metrics.jsonl; additional fields are numbers, too."""

    __pydantic_extra__: dict[str, Number]

    kind: str
    step: Count


class TrainRecord(Record):
    loss: float
    learning_rate: float
    grad_norm: float
    tokens_per_second: float
    mfu: float
    step_seconds: float
    data_wait_seconds: float
    attempts: Count


READ = ("tokens", "answer_tokens", "text_bytes", "answer_bytes", "examples")
"""Counts of what an evaluation during training read, which its record has besides the metrics' figures."""


class EvaluationRecord(Record):
    loss: Number
    corpora: dict[str, Number] = {}
    corpora_bits_per_byte: dict[str, Number] = {}
    positive: str | None = None
    """The class of two that the figures of one class are of."""


class ScheduleRecord(Record):
    rates: list[tuple[Count, float]]


class TasksRecord(Record):
    by: dict[str, str]


class CheckpointRecord(Record):
    scores: dict[str, Number] | None = None


RECORDS: dict[str, type[Record]] = {
    "train": TrainRecord,
    "evaluation": EvaluationRecord,
    "schedule": ScheduleRecord,
    "tasks": TasksRecord,
    "checkpoint": CheckpointRecord,
}
"""Types of lines of metrics.jsonl, by kind."""


class Sealed(NamedTuple):
    """A kind of sealed file: a pattern of its keys, the remedy, and its type or a function that returns the type."""

    keys: str
    remedy: str
    shape: Any = None


SEALED = (
    Sealed(
        r"runs/[^/]+/config\.json",
        "start the run's command again, which rewrites it if the rest of the run belongs to that command; or restore a "
        "copy of it; or move the run's folder elsewhere and train again",
        Config,
    ),
    Sealed(r"runs/[^/]+/plan\.json", "start the run's command again, which rewrites it from the data", plan_type),
    Sealed(r"runs/[^/]+/eval\.json", "run the evaluation again, which rewrites it", OfRun),
    Sealed(
        r"runs/[^/]+/harness\.json",
        "start the run's command again, which runs lm-eval again, or delete the file",
        OfTasks,
    ),
    Sealed(
        r"runs/[^/]+/environment\.json",
        "restore a copy of it, or delete it: only information about the machine is lost",
        Environment,
    ),
    Sealed(r"runs/[^/]+/lineage\.json", "create the report again, which rewrites it", Lineage),
    Sealed(
        r"runs/[^/]+/(checkpoint-(last|best)|epochs/.*)",
        "start the run's command again, which rewrites it from the checkpoints",
        Pointer,
    ),
    Sealed(r"runs/[^/]+/lease\.json", "wait two minutes, and delete it if no process writes to the run", Holder),
    Sealed(
        r"evaluations/.*",
        "run the evaluation again, which rewrites it, or delete the file",
        Result,
    ),
    Sealed(
        r"models/.*",
        "restore a copy of it, or delete it and promote a run again, which loses the history",
        History,
    ),
    Sealed(r"pins/holds/.*", "delete it if nothing runs in this store, or after 8 days"),
    Sealed(r"pins/.*", "delete it and set the pin again"),
    Sealed(r"cache/packed-.*", "delete it: the documents are packed again", PackedCounts),
    Sealed(r"cache/reference-.*", "delete it: it is computed again", AnswerSums),
    Sealed(r"cache/seen-.*\.json", "delete it: the raw files are read again", Seen),
    Sealed(r"cache/.*", "delete it: the raw files are read again"),
    Sealed(r"references/.*", "run the job's command again, which rebuilds it"),
    Sealed(
        r"(shards|encoded|tokenizers|decisions)/.*",
        "prepare the data again, which rebuilds it, or delete its folder if nothing uses it",
    ),
    Sealed(r"runs/[^/]+/(final|checkpoints)/.*", "start the run's command again, which repairs it"),
)


def remedy_of(key: str) -> str:
    """The remedy for a damaged file, by its key."""
    found = _kind_of(key)
    return found.remedy if found else "restore a copy of it"


def require_shape(key: str, values: dict[str, Any]) -> None:
    """Raise `ValueError` if a record does not have the type of its key."""
    found = _kind_of(key)
    if found is not None and found.shape is not None:
        _check(found.shape if isinstance(found.shape, type) else found.shape(values), values)


def _kind_of(key: str) -> Sealed | None:
    return next((kind for kind in SEALED if re.fullmatch(kind.keys, key)), None)


def require_record(values: dict[str, Any]) -> None:
    """Raise `ValueError` if a line of metrics.jsonl is invalid."""
    if not isinstance(kind := values.get("kind"), str):
        raise ValueError("it has no kind")
    _check(RECORDS.get(kind, Record), values)


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def _check(shape: Any, values: dict[str, Any]) -> None:
    try:
        _adapter(shape).validate_python(values)
    except ValidationError as error:
        raise ValueError(in_one_line(error)) from error
