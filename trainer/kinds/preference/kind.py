"""Preference tuning: a causal language model learns from pairs of answers to give the better one; no heavy imports."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from trainer.common.errors import RunError
from trainer.common.progress import Progress, silent
from trainer.data.chat.messages import PAIR
from trainer.evaluation.measurement import Measurement
from trainer.kinds import tuning
from trainer.kinds.kind import Kind, LazyFunction
from trainer.kinds.preference.job import LOSS_SETTINGS, PreferenceJob
from trainer.models.pretrained import find_pretrained
from trainer.records.basis import ExamplesBasis, encoded_basis
from trainer.records.sealed import read_sealed, require_sealed
from trainer.records.steps import CONTENTS, Do, Explains, Step
from trainer.store.manifest import ArtifactRef, Manifest, recall_manifest
from trainer.store.names import CONFIG, REFERENCE_KIND
from trainer.store.storage import Store
from trainer.training.identity import Run, inputs_at, starting_with

FORMAT = 1

BATCH = 4
"""Pairs per forward pass of the reference model: rounding depends on the padding, and so on the batch."""


def prepare(job: PreferenceJob, do: Do) -> ArtifactRef:
    """The encoded pairs; also computes the reference log-probabilities of them if the loss needs a reference."""
    check_fork(Store(job.store), job)
    data = do("encode", job)
    if job.training.needs_reference:
        do("reference", job, data=data)
    return data


def check_fork(store: Store, job: PreferenceJob) -> None:
    """Raise `RunError` if a job whose loss needs a reference forks a run without one: training would start from that
    run's model, but compare it with the model that the run was tuned from.
    """
    if job.resume != "fork" or not job.training.needs_reference:
        return
    origin = f"runs/{job.run}"
    config = read_sealed(store, f"{origin}/{CONFIG}")  # a fork that has begun no longer needs the original run
    if config is not None and "reference" not in config["inputs"]:
        raise RunError(
            f"{store.path(origin)} cannot be forked with training.loss {job.training.loss}: the reference would be "
            f"{job.model.pretrained}, not the model of {origin}, which training starts from; to tune that model, set "
            f"model.pretrained to {origin}, and remove `run` and `resume`"
        )


def reference_step(store: Store, job: PreferenceJob, progress: Progress, data: ArtifactRef) -> Step:
    """The step that computes the log-probabilities of an encoded set's answers by the model that training starts with.

    All ranks run it together: `trainer.kinds.preference.reference.make_reference`.
    """
    found = find_pretrained(store, job.model.pretrained)
    recipe = {
        "format": FORMAT,
        "training.precision": job.training.precision,
        "batch": BATCH,
        CONTENTS: {"model": found.files},
        **_quantized(job),
    }
    model = inputs_at(store, {"model": found.key})
    return Step(
        store, REFERENCE_KIND, "references", job.data.name, recipe, inputs={"encoded set": data.as_input(), **model},
        recorded_only=frozenset(model),
        explains=Explains(remarks=lambda manifest: [describe_reference(manifest)]),
    )  # fmt: skip


def describe_reference(manifest: Manifest) -> str:
    """A sentence: how often the reference model prefers the chosen answer."""
    splits = manifest.details["splits"].items()
    shares = ", ".join(f"{each['accuracy']:.1%} of {each['pairs']:,} pairs of {split}" for split, each in splits)
    return f"the reference prefers the chosen answer, by its mean log-probability a token, in {shares}"


def find_reference(store: Store, job: PreferenceJob, data: ArtifactRef) -> ArtifactRef | None:
    """The reference log-probabilities that a job reads, which may not exist yet; None if its loss needs none."""
    if not job.training.needs_reference:
        return None
    step = reference_step(store, job, silent(), data)
    return step.refer(recall_manifest(store, step.key, REFERENCE_KIND))


def identify(job: PreferenceJob, data: ArtifactRef) -> Run:
    """The run that a job and its encoded pairs identify. The reference's log-probabilities follow from both."""
    found = find_reference(Store(job.store), job, data)
    return tuning.identify_conversations(job, data, reads={"reference": found} if found else {})


def identify_own(
    store: Store, job: PreferenceJob, run: str, data: Sequence[str] | None, other: str | None = None
) -> Measurement:
    """The measurement of the final model of a job's run, or of an `other` run on this run's pairs, with this run's
    rewards. Raises as `trainer.kinds.tuning.identify_own`.
    """
    job = starting_with(job, require_sealed(store, f"{run}/{CONFIG}").get("start"))
    return tuning.identify_own(store, job, run, data, other, rewards=describe_rewards(job))


def pairs_basis(details: Mapping[str, Any], job: PreferenceJob, split: str) -> ExamplesBasis:
    """The basis of figures on the pairs of a split: their answers as tokens, and a job's rewards."""
    found = details["splits"][split]
    facts = (details["context"], found["examples"], found["answer_tokens"], describe_rewards(job))
    return encoded_basis(details, job.data.model_dump(), split, job.training.precision, *facts)


def describe_rewards(job: PreferenceJob) -> dict[str, Any]:
    """The settings and files that determine the rewards of a final model's answers, besides the model and the pairs."""
    training = job.training
    rewards: dict[str, Any] = training.model_dump(include={"loss", *LOSS_SETTINGS})
    if training.needs_reference:
        rewards["reference"] = find_pretrained(Store(job.store), job.model.pretrained).files
        rewards |= {} if stands_beside_plain_base(job) else _quantized(job)
    return rewards


def stands_beside_plain_base(job: PreferenceJob) -> bool:
    """Whether the final model is an adapter for the unquantised base model; if so, that base is also its reference."""
    lora = job.model.lora
    return job.model.quantize is not None and lora is not None and lora.publish == "adapter"


def _quantized(job: PreferenceJob) -> dict[str, Any]:
    """The quantisation of the reference, if any: the reference is the model that training starts from."""
    return {"model.quantize": job.model.quantize} if job.model.quantize else {}


KIND = Kind(
    preflight=LazyFunction("trainer.kinds.preference.preflight.look_at_pairs"),
    prepare=prepare,
    encode=partial(LazyFunction("trainer.data.chat.encoded.encode_conversations"), form=PAIR),
    identify=identify,
    open=LazyFunction("trainer.kinds.preference.workload.Preference"),
    plan=partial(tuning.plan_splits, unit="pair"),
    measurement=identify_own,
    measure=LazyFunction("trainer.kinds.preference.workload.measure_preferences"),
    report_content=LazyFunction("trainer.kinds.preference.page.describe_preferences"),
    compared="trainer.kinds.preference.page.COMPARED",
)
