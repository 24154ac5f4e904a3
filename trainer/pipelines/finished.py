"""Whether all is there already that a job needs a model for: then nothing has to be tried, and no library that computes
to be loaded, before it is found again.
"""

from contextlib import suppress

from trainer.common.errors import PipelineError
from trainer.config.runs import RunJob
from trainer.evaluation.harness_identity import identify_harness
from trainer.evaluation.measurement import find_result, harness_job
from trainer.kinds.kind import Kind, kind_of
from trainer.records.named_steps import NotMade, only_look
from trainer.records.plans import read_plan
from trainer.records.results import Finished
from trainer.records.sealed import require_sealed
from trainer.store.manifest import MANIFEST
from trainer.store.names import FINAL, PLAN
from trainer.store.storage import Store
from trainer.training.identity import data_keys, finished_run, is_whole


def has_finished(store: Store, job: RunJob) -> bool:
    """Whether a run of a job's name has a final model: without one, nothing else need be looked for."""
    named = [f"runs/{run}" for run in store.names("runs") if run.startswith(job.run or job.name)]
    return any(store.exists(f"{run}/{FINAL}/{MANIFEST}") for run in named)


def find_finished(job: RunJob) -> Finished | None:
    """The run of a job whose data, final model and figures are all published; None if anything of that is to be made,
    or wrong: the stages tell what. None as well for a kind of job that takes the libraries which compute to be named.
    """
    kind = kind_of(job)
    with suppress(NotMade, PipelineError):
        return _find(kind, job) if kind.is_light else None
    return None


def _find(kind: Kind, job: RunJob) -> Finished:
    store = Store(job.store)
    if not has_finished(store, job):
        raise NotMade
    data = kind.prepare(job, only_look)
    run = kind.identify(job, data)
    if finished_run(store, run, anew=False) is None or not is_whole(store, run, job, data):
        raise NotMade
    plan = read_plan(require_sealed(store, f"{run.key}/{PLAN}"))
    measured = [kind.measurement(store, job, run.key, data_keys(data), None)] if plan.holds_out else []
    if plan.holds_out and (asked := harness_job(job, run.key)) is not None:
        measured.append(identify_harness(store, asked, own=True))
    if any(find_result(store, each) is None for each in measured):
        raise NotMade
    return Finished(run=run.key, ranks=plan.ranks)
