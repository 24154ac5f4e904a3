"""What records that are read back of a store must look like, by their keys.

A checksum says that a record is the one that was written there, not that whoever wrote it did so rightly. What later
work takes from a record has the type that is said here; what else it holds is left alone.
"""

import re
from functools import cache
from typing import Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator

from trainer.common.errors import in_one_line
from trainer.records.basis import ExamplesBasis, TextBasis
from trainer.records.evaluations import Result
from trainer.records.run_kinds import plan_type
from trainer.store.details import CurationDetails, KeptOutDetails, ReasonDetails
from trainer.store.manifest import FileRecord, Input, fingerprint
from trainer.store.names import Count, Digest, Figure, Key, RunKey

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


class Pointing(Shape):
    checkpoint: Key
    step: Count
    scores: dict[str, float] | None


class Holder(Shape):
    """lease.json"""

    id: str
    since: str
    beat: AwareDatetime
    host: str
    pid: int
    machine: str
    started: str
    removing: bool = False


class Moved(Shape):
    action: Literal["promote", "roll back"]
    run: RunKey
    fingerprint: str
    scores: dict[str, Figure]
    time: str
    reason: str
    measured_on: TextBasis | ExamplesBasis | None = None


class History(Shape):
    """models/NAME/champion"""

    moves: list[Moved]


class Seen(Shape):
    """cache/seen-*.json"""

    files: dict[str, tuple[Count, str, list[tuple[Count, Count, Count, str]]]]
    """By path: its size and version, and of each stretch of it the start, the end, what it holds, and the digest."""


class PackedCounts(Shape):
    """cache/packed-*.json"""

    windows: list[Count]


class Environment(Shape):
    packages: dict[str, str]


class RunMade(Shape):
    key: RunKey
    fingerprint: str
    config_sha256: Digest


class ModelMade(Shape):
    key: Key
    fingerprint: str
    created: str
    files: list[FileRecord]


class ReportMade(Shape):
    fingerprint: str
    files: list[FileRecord]


class MadeFrom(Shape):
    key: Key
    fingerprint: str
    manifest_sha256: Digest


class ShardsMade(MadeFrom):
    corpus: str
    sources: Key
    sources_sha256: Digest | None


class DecisionsMade(MadeFrom):
    curation: CurationDetails
    documents: Count
    table: dict[str, list[ReasonDetails]]
    kept_out: KeptOutDetails | None


class MeasuredBeside(Shape):
    key: Key
    fingerprint: str


class Measured(Shape):
    key: Key
    fingerprint: str
    harness: MeasuredBeside | None = None


class Lineage(Shape):
    """lineage.json"""

    run: RunMade
    model: ModelMade
    evaluation: Measured | None
    tokenizer: MadeFrom | None = None
    encoded: MadeFrom | None = None
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

SHAPES: dict[str, Any] = {
    r"runs/[^/]+/config\.json": Config,
    r"runs/[^/]+/plan\.json": plan_type,
    r"runs/[^/]+/(eval|harness)\.json|evaluations/.*": Result,
    r"runs/[^/]+/(checkpoint-(last|best)|epochs/.*)": Pointing,
    r"runs/[^/]+/lease\.json": Holder,
    r"runs/[^/]+/environment\.json": Environment,
    r"runs/[^/]+/lineage\.json": Lineage,
    r"models/[^/]+/champion": History,
    r"cache/seen-.*\.json": Seen,
    r"cache/packed-.*\.json": PackedCounts,
}


def require_shape(key: str, values: dict[str, Any]) -> None:
    """Raise `ValueError` with what is wrong if a record under a key is not what later work takes it for."""
    shape = next((shape for pattern, shape in SHAPES.items() if re.fullmatch(pattern, key)), None)
    if shape is None:
        return
    _check(shape if isinstance(shape, type) else shape(values), values)


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
