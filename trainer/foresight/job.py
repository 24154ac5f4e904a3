"""What would become of each stage of a job if it were started now, and why. Nothing is made, and the store is only read.

Every fingerprint comes from the function that the stage itself takes it from. Raw files that changed since they were last
digested are read.
"""

from collections.abc import Callable
from typing import Any

from trainer.config.jobs import EvaluateJob
from trainer.foresight.foreseen import Foreseen
from trainer.foresight.looking import Looking
from trainer.records.named_steps import Do
from trainer.store.storage import Store
from trainer.training.identity import Run, TrainingData, TrainingJob


class LookedAt(Store):
    """A store that is only looked at: what would be remembered in it is dropped."""

    def write_bytes(self, key: str, data: bytes | memoryview) -> None:
        """Nothing is written."""


def foresee(
    job: TrainingJob,
    prepare: Callable[[Any, Do], TrainingData],
    identify: Callable[[Any, Any], Run],
    foresee_evaluation: Callable[[Store, Any, Any, str], Foreseen],
    harness: Callable[[Any, str], EvaluateJob | None],
) -> list[Foreseen]:
    """Every stage of a job, in order, given what its kind foresees. Raises the `PipelineError` of bad or missing input."""
    from trainer.foresight.harness import foresee_harness
    from trainer.foresight.training import foresee_report, foresee_run

    store = LookedAt(job.store)
    looking = Looking(store)
    data, stages = prepare(job, looking), looking.stages
    run = foresee_run(store, job, data if looking.is_known else None, stages, identify)
    measured: list[Foreseen] = []
    if not job.holds_out:
        evaluation = Foreseen("evaluation", "left out", reasons=("nothing is held out",))
    elif run.verdict != "reused" or run.key is None:
        evaluation = Foreseen("evaluation", "depends", reasons=(run.later,))
    else:
        evaluation = foresee_evaluation(store, job, data, run.key)
        if (asked := harness(job, run.key)) is not None:
            measured.append(foresee_harness(store, asked))
    measured.insert(0, evaluation)
    return [*stages, run, *measured, foresee_report(store, stages, run, measured)]
