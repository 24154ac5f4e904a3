"""What would become of each stage of a job if it were started now, and why. Nothing is made, and nothing written.

Every fingerprint comes from the function that the stage itself takes it from. Raw files that changed since they were
last digested are read.
"""

from typing import Any

from trainer.common.formats import show, show_json
from trainer.common.progress import silent
from trainer.kinds.table import kind_of
from trainer.preflight.step_status import StepStatus, status
from trainer.records.named_steps import STEPS, open_step, title_of
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.training.identity import TrainingJob

UNKNOWN = "unknown"


class Looking:
    """A `Do` that makes nothing, and notes in `stages` what would become of each step.

    It refers to what is not there as if it were, so that what follows can be named as far as names are known.
    """

    def __init__(self, store: Store) -> None:
        self.stages: list[StepStatus] = []
        self._store = store
        self._missing: dict[str, StepStatus] = {}

    def __call__(self, name: str, job: Any, **made: Any) -> ArtifactRef:
        title = title_of(name, job, **made)
        for each in (made[needed] for needed in STEPS[name].needs):
            if each is not None and (missing := self._missing.get(each.key)):
                self.stages.append(StepStatus(title, "depends", reasons=(missing.later,)))
                ref = ArtifactRef(key=f"{UNKNOWN}/{len(self.stages)}", fingerprint="", size=0)
                self._missing[ref.key] = missing
                return ref
        step = open_step(name, self._store, silent(), job=job, **made)
        try:
            found, manifest = status(step, title)
            self.stages.append(found)
            ref = step.refer(manifest, reused=manifest is not None)
        finally:
            step.release()
        if found.verdict != "reused":
            self._missing[ref.key] = found
        return ref

    @property
    def is_known(self) -> bool:
        """Whether what every step makes has a name already."""
        return all(stage.key is not None for stage in self.stages)


class ReadOnlyStore(Store):
    """A store that is only looked at: what would be remembered in it is dropped."""

    def write_bytes(self, key: str, data: bytes | memoryview) -> None:
        """Nothing is written."""


def explain_job(job: TrainingJob) -> list[StepStatus]:
    """Every stage of a job of any kind, in order. Raises the `PipelineError` of bad or missing input."""
    from trainer.preflight.run_status import explain_harness, explain_report, explain_run

    kind, store = kind_of(job), ReadOnlyStore(job.store)
    looking = Looking(store)
    data, stages = kind.prepare(job, looking), looking.stages
    run = explain_run(store, job, data if looking.is_known else None, stages, kind.identify)
    measured: list[StepStatus] = []
    if not job.holds_out:
        evaluation = StepStatus("evaluation", "left out", reasons=("nothing is held out",))
    elif run.verdict != "reused" or run.key is None:
        evaluation = StepStatus("evaluation", "depends", reasons=(run.later,))
    else:
        evaluation = kind.explain_evaluation(store, job, data, run.key)
        if (asked := kind.harness(job, run.key)) is not None:
            measured.append(explain_harness(store, asked))
    measured.insert(0, evaluation)
    return [*stages, run, *measured, explain_report(store, stages, run, measured)]


def describe(stage: StepStatus) -> str:
    """A stage in a line, and a line for each reason."""
    made = f", made {stage.created.replace('T', ' ').replace('+00:00', ' UTC')}" if stage.created else ""
    first = f"{stage.verdict:<11}{stage.stage:<23} {stage.key or ''}{made}".rstrip()
    return "\n".join([first, *(f"{'':<11}{line}" for line in (*stage.reasons, stage.work) if line)])


def tell(job: TrainingJob, as_json: bool = False) -> None:
    """Print what becomes of every stage of a job."""
    stages = explain_job(job)
    if as_json:
        show_json(stages)
    else:
        show("\n".join([*map(describe, stages), ""]))
