"""Explanation of what each stage of a job would do if it were started now, and why. Nothing is built or written.

Every fingerprint is computed by the stage's own function. Raw files that changed since they were last digested are
read.
"""

from typing import Any

from trainer.common.display import show, show_json
from trainer.common.progress import silent
from trainer.config.jobs import EvaluateJob
from trainer.config.runs import RunJob
from trainer.evaluation.harness_identity import identify_harness
from trainer.evaluation.measurement import intact_result
from trainer.kinds.kind import kind_of
from trainer.pipelines.pipeline import walk
from trainer.preflight.step_status import (
    StepStatus,
    explain_evaluation,
    explain_report,
    explain_run,
    holds_out,
    own_result,
    status,
)
from trainer.records.steps import STEPS, open_step
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.training.identity import TrainingData, data_keys

UNKNOWN = "unknown"


class ReadOnlyStore(Store):
    """A store that drops what finding artifacts would write: caches of what was read."""

    def write_bytes(self, key: str, data: bytes | memoryview) -> None:
        """Write nothing."""


class ExplainStages:
    """`Stages` that build nothing and collect in `stages` what each stage would do.

    Missing artifacts get references as if they existed, so that later stages can be named as far as possible.
    """

    def __init__(self, store: Store) -> None:
        self.stages: list[StepStatus] = []
        self._store = store
        self._missing: dict[str, StepStatus] = {}
        self._steps, self._run = list[StepStatus](), StepStatus("training", "depends")

    def make(self, name: str, job: Any, **made: Any) -> ArtifactRef:
        """Look up the artifact of a step."""
        title = STEPS[name].title.format(job=job, **made)
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

    def preflight(self, job: Any) -> Any:
        """Check nothing: `--dry-run` reports what is wrong with a job."""

    def plan(self, job: Any, data: TrainingData, checked: Any) -> Any:
        """Return the job, because only its `holds_out` is read from the plan."""
        return job

    def train(self, job: Any, data: TrainingData, plan: Any) -> ArtifactRef:
        """Look up the run's final model."""
        self._steps, self._data = list(self.stages), data
        is_known = all(step.key is not None for step in self._steps)
        self._run = explain_run(self._store, job, data if is_known else None, self._steps, kind_of(job).identify)
        self.stages.append(self._run)
        return ArtifactRef(key=self._run.key or UNKNOWN, fingerprint="", size=0)

    def evaluate(self, job: Any, data: TrainingData, plan: Any, run: str) -> Any:
        """Look up the evaluation of a finished run; None if the run is not finished."""
        if self._run.verdict != "reused":
            self.stages.append(StepStatus("evaluation", "depends", reasons=(self._run.later,)))
            return None
        if not holds_out(self._store, run):
            self.stages.append(StepStatus("evaluation", "left out", reasons=("nothing is held out",)))
            return None
        measurement = kind_of(job).measurement(self._store, job, run, data_keys(data), None)
        self.stages.append(explain_evaluation(self._store, measurement, own_result(self._store, run)))
        return self.stages[-1]

    def harness(self, evaluation_job: EvaluateJob, evaluation: Any) -> Any:
        """Look up lm-eval's results."""
        measurement = identify_harness(self._store, evaluation_job, own=True)
        self.stages.append(
            explain_evaluation(self._store, measurement, intact_result(self._store, measurement.key), "harness")
        )
        return evaluation

    def report(self, job: Any, run: str) -> Any:
        """Look up the report."""
        if not job.holds_out:
            self.stages.append(StepStatus("evaluation", "left out", reasons=("nothing is held out",)))
        measured, identify = self.stages[len(self._steps) + 1 :], kind_of(job).identify
        self.stages.append(explain_report(self._store, job, self._data, self._steps, self._run, measured, identify))

    def consider(self, job: Any, data: TrainingData, plan: Any, run: str, evaluation: Any) -> None:
        """Promote nothing."""


def explain_job(job: RunJob) -> list[StepStatus]:
    """Explain every stage of a job of any kind, in order; raise a `PipelineError` for bad or missing input."""
    looking = ExplainStages(ReadOnlyStore(job.store))
    walk(job, looking)
    return looking.stages


def describe(stage: StepStatus) -> str:
    """One line for a stage, and one for each reason."""
    made = f", made {stage.created.replace('T', ' ').replace('+00:00', ' UTC')}" if stage.created else ""
    first = f"{stage.verdict:<11}{stage.stage:<23} {stage.key or ''}{made}".rstrip()
    return "\n".join([first, *(f"{'':<11}{line}" for line in (*stage.reasons, stage.work) if line)])


def print_plan(job: RunJob, as_json: bool = False) -> None:
    """Print what every stage of a job would do."""
    stages = explain_job(job)
    if as_json:
        show_json(stages)
    else:
        show("\n".join([*map(describe, stages), ""]))
