"""How a model that answers is measured: on which held-out conversations. Free of heavy imports."""

from collections.abc import Sequence

from trainer.config.chat import ChatJob
from trainer.evaluation.measurement import Measurement
from trainer.kinds import tuning
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
    return tuning.identify_own(store, job, run, data, other, packing=job.data.packing)
