"""How a model that answers is measured: on which held-out conversations. Free of heavy imports."""

from collections.abc import Sequence

from trainer.config.chat import ChatJob
from trainer.config.evaluation import EvaluationConfig
from trainer.config.jobs import EvaluateJob
from trainer.evaluation.measurement import Measurement, ask_of_run, encoded_of
from trainer.models.pretrained import find_model
from trainer.store.names import EVALUATION, FINAL
from trainer.store.storage import Store


def identify_own(
    store: Store, job: ChatJob, run: str, data: Sequence[str] | None, other: str | None = None
) -> Measurement:
    """The measurement of the final model of a job's run, or of an `other` run on this one's data.

    One of an `other` run, whose model this job did not try, has each conversation in a window of its own: families that
    carry a state on, or know no positions, would read those that share a window otherwise. `data` names the set that
    the job prepared, by default that which the run was last asked for with. Raises `ArtifactError` if the model is
    missing or damaged.
    """
    if other is not None:
        job = job.model_copy(update={"data": job.data.model_copy(update={"packing": False})})
    return Measurement(
        model=find_model(store, f"{other or run}/{FINAL}"),
        checkpoint=f"{other or run}/{FINAL}",
        recipe={
            "precision": job.training.precision,
            "packing": job.data.packing,
            "evaluation": job.evaluation.model_dump(mode="json", exclude={"batch", "harness"}),
        },
        settings=job,
        data=tuple(data or [encoded_of(store, run)]),
        place=None if other else f"{run}/{EVALUATION}",
        run=run,
        precision=job.training.precision,
        device=job.training.device,
        deterministic=job.training.deterministic,
    )


def ask_harness(job: ChatJob, run: str) -> EvaluateJob | None:
    """How lm-eval measures the final model of a run on conversations, if the job names tasks."""
    asked = job.evaluation
    if asked.harness is None:
        return None
    return ask_of_run(job, run, EvaluationConfig(batch=asked.batch, harness=asked.harness))
