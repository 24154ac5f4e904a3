"""Instruction tuning: a pretrained causal language model learns to answer, from conversations."""

from collections.abc import Sequence

from trainer.config.chat import ChatJob
from trainer.data.packing import FORMAT as PACKING
from trainer.evaluation.measurement import Measurement
from trainer.kinds import tuning
from trainer.kinds.kind import Kind, LazyFunction, Planned
from trainer.kinds.tuning import SPLITS, identify_conversations, split_rows
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.training.identity import Run


def identify(job: ChatJob, data: ArtifactRef) -> Run:
    """The run that a job and its encoded conversations identify."""
    if not job.data.packing:
        return identify_conversations(job, data, {"packing": None})
    by_length = type(job.training).model_fields["group_by_length"].default  # packing ignores the order by length
    return identify_conversations(job, data, {"packing": PACKING}, effective={"group_by_length": by_length})


def plan(job: ChatJob, data: ArtifactRef, ranks: int) -> Planned:
    """The plan of a run on packed windows."""
    from trainer.data.chat.encoded import plan_chat

    planned, found = plan_chat(job, data.key, ranks)
    description = f"windows of {found.details['context']} tokens, {planned.fill or 0:.1%} full"
    return Planned(planned, description, SPLITS, split_rows(found.details))


def identify_own(
    store: Store, job: ChatJob, run: str, data: Sequence[str] | None, other: str | None = None
) -> Measurement:
    """The measurement of the final model of a job's run, or of an `other` run on this run's data.

    For an `other` run, whose model this job did not try, each conversation gets its own window: model families that
    carry state, or have no positions, would let conversations that share a window affect each other. `data` holds the
    key of the encoded set; by default it is the one that the run was last requested with. Raises `ArtifactError` if the
    model is missing or damaged.
    """
    if other is not None:
        job = job.model_copy(update={"data": job.data.model_copy(update={"packing": False})})
    return tuning.identify_own(store, job, run, data, other, packing=job.data.packing)


KIND = Kind(
    preflight=LazyFunction("trainer.kinds.tuning_preflight.look_at_conversations"),
    encode=LazyFunction("trainer.data.chat.encoded.encode_conversations"),
    identify=identify,
    open=LazyFunction("trainer.kinds.chat.workload.Chat"),
    plan=plan,
    measurement=identify_own,
    measure=LazyFunction("trainer.kinds.chat.workload.measure_answers"),
    report_content=LazyFunction("trainer.kinds.chat.page.describe_chat"),
    compared="trainer.kinds.chat.page.COMPARED",
)
