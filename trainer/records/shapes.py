"""What records that are read back of a store must look like, and what to do about a damaged one, by their keys.

A checksum says that a record is the one that was written there, not that whoever wrote it did so rightly. What later
work takes from a record has the type that is said here; what else it holds is left alone.
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
    """Typed where it is looked at; other keys may stand beside."""

    model_config = ConfigDict(extra="allow")


class Ref(Shape):
    key: Key
    fingerprint: str = ""
    size: Count = 0


class Data(Shape):
    """A tokenizer and shards, or the key of an encoded set."""

    tokenizer: Ref | None = None
    shards: list[Ref] = []
    key: Key | None = None


class Fork(Shape):
    run: RunKey
    checkpoint: Key


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
    """config.json; its job is looked at by who needs more than its parts."""

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
            raise ValueError("its fingerprint is not that of its identity")
        return self


class Pointer(BaseModel):
    """checkpoint-last, -best and those of epochs: the checkpoint that is named, by its place in the run's folder and by
    its step, with the scores of that step.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    checkpoint: str
    step: Count
    scores: dict[str, float] | None

    @model_validator(mode="after")
    def _names_its_step(self) -> Self:
        if self.checkpoint != folder_name(self.step):
            raise ValueError(f"it names {self.checkpoint} for step {self.step}")
        return self


def folder_name(step: int) -> str:
    """Where the checkpoint of a step is in its run's folder."""
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
    """Some of a reference's log-probabilities: those of the chosen and the rejected answer of each pair."""

    sums: list[tuple[Figure, Figure]]


class Move(BaseModel):
    """A run that became champion, by a promotion or because the one above it was taken away: when, and why.

    Its scores are those that it was promoted with.
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
    """By path: its size and version, and of each stretch of it the start, the end, what it holds, and the digest."""


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
    """A line of metrics.jsonl: what stands beside the named figures are numbers too."""

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


class EvaluationRecord(Record):
    loss: Number
    corpora: dict[str, Number] = {}
    corpora_bits_per_byte: dict[str, Number] = {}


class ScheduleRecord(Record):
    rates: list[tuple[Count, float]]


class CheckpointRecord(Record):
    scores: dict[str, Number] | None = None


RECORDS: dict[str, type[Record]] = {
    "train": TrainRecord,
    "evaluation": EvaluationRecord,
    "schedule": ScheduleRecord,
    "checkpoint": CheckpointRecord,
}
"""Lines of metrics.jsonl, by their kind."""


class Sealed(NamedTuple):
    """A kind of file: its keys, what to do about a damaged one, and what it holds; a function tells that of some."""

    keys: str
    remedy: str
    shape: Any = None


SEALED = (
    Sealed(
        r"runs/[^/]+/config\.json",
        "start the run's command again, which writes it anew if the rest of the run is of that command, or put back a "
        "copy of it, or move the run's folder away and train it anew",
        Config,
    ),
    Sealed(r"runs/[^/]+/plan\.json", "start the run's command again, which writes it anew from the data", plan_type),
    Sealed(r"runs/[^/]+/eval\.json", "run the evaluation again, which measures the model anew", OfRun),
    Sealed(
        r"runs/[^/]+/harness\.json",
        "start the run's command again, which has lm-eval measure the model anew, or delete the file",
        OfTasks,
    ),
    Sealed(
        r"runs/[^/]+/environment\.json",
        "put back a copy of it, or delete it: only what it tells of the machine is lost",
        Environment,
    ),
    Sealed(r"runs/[^/]+/lineage\.json", "make the report again, which writes it anew", Lineage),
    Sealed(
        r"runs/[^/]+/(checkpoint-(last|best)|epochs/.*)",
        "start the run's command again, which finds it from the checkpoints",
        Pointer,
    ),
    Sealed(r"runs/[^/]+/lease\.json", "wait two minutes, and delete it if no process works on the run", Holder),
    Sealed(
        r"evaluations/.*",
        "run the evaluation again, which measures the checkpoint anew, or delete the file",
        Result,
    ),
    Sealed(
        r"models/.*",
        "put back a copy of it, or delete it and promote a run anew, which loses the history",
        History,
    ),
    Sealed(r"pins/holds/.*", "delete it if nothing runs in this store, or after 8 days"),
    Sealed(r"pins/.*", "delete it, and pin what it was meant to pin anew"),
    Sealed(r"cache/packed-.*", "delete it: the documents are packed again", PackedCounts),
    Sealed(r"cache/reference-.*", "delete it: it is computed again", AnswerSums),
    Sealed(r"cache/seen-.*\.json", "delete it: the raw files are looked at again", Seen),
    Sealed(r"cache/.*", "delete it: the raw files are looked at again"),
    Sealed(r"references/.*", "run the job's command again, which makes it anew"),
    Sealed(
        r"(shards|encoded|tokenizers|decisions)/.*",
        "prepare the data again, which makes it anew, or delete its folder if nothing uses it",
    ),
    Sealed(r"runs/[^/]+/(final|checkpoints)/.*", "start the run's command again, which sees to it"),
)


def remedy_of(key: str) -> str:
    """What to do if the file under a key is damaged."""
    found = _kind_of(key)
    return found.remedy if found else "put back a copy of it"


def require_shape(key: str, values: dict[str, Any]) -> None:
    """Raise `ValueError` with what is wrong if a record under a key is not what later work takes it for."""
    found = _kind_of(key)
    if found is not None and found.shape is not None:
        _check(found.shape if isinstance(found.shape, type) else found.shape(values), values)


def _kind_of(key: str) -> Sealed | None:
    return next((kind for kind in SEALED if re.fullmatch(kind.keys, key)), None)


def require_record(values: dict[str, Any]) -> None:
    """The same of a line of metrics.jsonl."""
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
