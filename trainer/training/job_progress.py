"""A job's progress as recorded in its store, which decides whether a run that died is started again."""

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from trainer.common.errors import ArtifactError
from trainer.config.jobs import EvaluateJob, PipelineJob, PrepareJob
from trainer.config.labelled import PredictJob, TuningJob
from trainer.records.lease import is_held
from trainer.records.sealed import read_pointer, read_sealed
from trainer.store.manifest import name_in
from trainer.store.names import CONFIG, LAST
from trainer.store.storage import Store
from trainer.training.identity import OPERATIONAL, recorded

log = logging.getLogger(__name__)


WatchedJob = PipelineJob | PrepareJob | TuningJob | EvaluateJob | PredictJob


class Standing(NamedTuple):
    """The number of files of the job's data, and the step of its run's last checkpoint; both only grow with progress.

    The files are shards, measurements of curation, and log-probabilities of a reference. Those of references and of
    curation's pairs may also belong to other jobs on the store.
    """

    files: int
    step: int

    def is_beyond(self, other: "Standing") -> bool:
        """Whether the job has progressed since the other standing."""
        return self.step > other.step or self.files > other.files


def find_standing(job: WatchedJob) -> Standing:
    """The job's progress; constant for a job that neither makes data nor trains. Raises `StorageError` if the store
    cannot be read.
    """
    store = Store(job.store)
    if isinstance(job, EvaluateJob | PredictJob):
        return Standing(0, 0)
    begun = {*job.corpora, "reference", *(["pairs"] if job.corpora else [])}
    folders = [
        f"{kind}/{name}" for kind in ("shards", "measures", "cache") for name in store.names(kind)
        if (name_in(name) or name) in begun
    ]  # fmt: skip
    files = sum(1 for folder in folders for _ in store.walk(folder))
    return Standing(files, max((last_step(store, run) for run in _runs_of(store, job)), default=0))


def is_alive(job: WatchedJob) -> bool:
    """Whether some process still trains the job, whatever the orchestrator reports."""
    store = Store(job.store)
    return not isinstance(job, EvaluateJob | PredictJob) and any(is_held(store, run) for run in _runs_of(store, job))


def last_step(store: Store, run: str) -> int:
    """The step of the run's last checkpoint; 0 if it has none or its pointer is damaged (the next start repairs it)."""
    try:
        pointer = read_pointer(store, f"{run}/{LAST}")
    except ArtifactError:
        return 0
    return pointer.step if pointer else 0


def _runs_of(store: Store, job: PipelineJob | PrepareJob | TuningJob) -> list[str]:
    """The runs of exactly this job, except for settings that another start of them may have changed.

    Raises `ArtifactError` for a damaged run whose name fits the job; skips other damaged ones.
    """
    wanted = _named_by(recorded(job))
    found = []
    for name in store.names("runs"):
        try:
            config = read_sealed(store, f"runs/{name}/{CONFIG}")
        except ArtifactError as error:
            if job.runs_begin_with is not None and name.startswith(job.runs_begin_with):
                raise
            log.warning("%s", error)
            continue
        if config is not None and _named_by(config["job"]) == wanted:
            found.append(f"runs/{name}")
    return found


def _named_by(job: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded job without its settings of execution and publishing.

    `evaluate_every` stays, because it may decide the result.
    """
    kept = {part: value for part, value in job.items() if part not in ("card", "promotion", "tracking")}
    if "training" in job:
        others = OPERATIONAL - {"evaluate_every"}
        kept["training"] = {name: value for name, value in job["training"].items() if name not in others}
    return kept
