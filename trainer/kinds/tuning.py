"""The identity and measurement of runs that tune a pretrained model on an encoded set, and facts about that model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainer.common.errors import RunError
from trainer.config.chat import ConversationsJob
from trainer.config.evaluation import SelectionConfig
from trainer.config.labelled import TuningJob
from trainer.data.order import FORMAT as EPOCH_ORDER
from trainer.evaluation.measurement import Measurement, encoded_of
from trainer.evaluation.metrics import describe_selection
from trainer.kinds.kind import Planned
from trainer.models.pretrained import Checkpoint, find_model, find_pretrained
from trainer.records.fields import list_changes
from trainer.store.manifest import ArtifactRef
from trainer.store.names import CONFIG, EVALUATION, FINAL
from trainer.store.storage import Store
from trainer.training.identity import Run, lora_identity, make_run

NOTHING: Mapping[str, Any] = {}

SPLITS = "labelled-data"
"""The name of the table of splits."""


def plan_splits(
    job: TuningJob,
    data: ArtifactRef,
    ranks: int,
    describe: Callable[[dict[str, Any]], str] | None = None,
    unit: str = "example",
) -> Planned:
    """The plan of a run on the examples of an encoded set. `unit` is the word for one example; `describe` describes the
    set from the details of its manifest.
    """
    from trainer.data.encoded import encoded_details, split_sizes
    from trainer.data.step_plan import make_tuning_plan

    details = encoded_details(Store(job.store), data.key)
    planned = make_tuning_plan(job, split_sizes(details), ranks, unit)
    description = describe(details) if describe else f"{data.key}: {planned.examples:,} {unit}s to train on"
    return Planned(planned, description, SPLITS, split_rows(details))


def identify_own(
    store: Store, job: Any, run: str, data: Sequence[str] | None, other: str | None = None, **recipe: Any
) -> Measurement:
    """The measurement of the final model of a job's run, or of an `other` run on this run's data.

    `data` holds the key of the encoded set; by default it is the one that the run was last requested with. Raises
    `ArtifactError` if the model is missing or damaged, or if the run's data is unknown.
    """
    (encoded,) = data or [encoded_of(store, run)]
    checkpoint = f"{other or run}/{FINAL}"
    evaluation = job.evaluation.model_dump(mode="json", exclude={"batch", "harness", *SelectionConfig.model_fields})
    recipe = {"evaluation": evaluation, **recipe}
    measured = on_splits(job, run, find_model(store, checkpoint), checkpoint, encoded, **recipe)
    return measured if other else replace(measured, place=f"{run}/{EVALUATION}")


def on_splits(job: TuningJob, run: str, found: Checkpoint, checkpoint: str, encoded: str, **recipe: Any) -> Measurement:
    """The measurement of a checkpoint on a run's own splits; `recipe` is what determines the figures."""
    training = job.training
    return Measurement(
        model=found,
        checkpoint=checkpoint,
        recipe={"precision": training.precision, **recipe},
        settings=job,
        data=(encoded,),
        run=run,
        precision=training.precision,
        device=training.device,
        deterministic=training.deterministic,
    )


def split_rows(details: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each split of an encoded set with these manifest details."""
    figures = ("examples", "tokens", "answer_tokens", "longest", "truncated", "unanswered", "bad_records")
    return [
        {"split": name, **{figure.replace("_", " "): split[figure] for figure in figures if figure in split}}
        for name, split in details["splits"].items()
    ]


def identify_tuning(
    job: TuningJob,
    data: ArtifactRef,
    beside: Mapping[str, Any],
    selection: Mapping[str, Any],
    reads: Mapping[str, ArtifactRef] = NOTHING,
    effective: Mapping[str, Any] = NOTHING,
) -> Run:
    """The run that a job and its encoded set identify. `beside` is what else of its kind determines the outcome,
    `selection` what determines the best checkpoint, `reads` other artifacts that it reads, by role, and `effective` the
    effective values of settings that depend on others."""
    found = find_pretrained(Store(job.store), job.model.pretrained)
    made_from = {"data": {job.data.name: data.fingerprint}, "model": found.files, "order": EPOCH_ORDER, **beside}
    if job.model.lora is not None:
        made_from["lora"] = lora_identity(job.model.lora)
    run = make_run(
        job, made_from, selection, {"encoded set": data, **reads}, found, renews_data=True, effective=effective
    )
    _require_same_labels(Store(job.store), run, data)
    return run


def identify_conversations(
    job: ConversationsJob,
    data: ArtifactRef,
    beside: Mapping[str, Any] = NOTHING,
    reads: Mapping[str, ArtifactRef] = NOTHING,
    effective: Mapping[str, Any] = NOTHING,
) -> Run:
    """`identify_tuning` for a causal language model, which may be quantised and selected by an lm-eval task."""
    quantized = {} if job.model.quantize is None else {"quantize": job.model.quantize}
    selection = describe_selection(job.evaluation, job.evaluation.harness)
    return identify_tuning(job, data, {**beside, **quantized}, selection, reads, effective)


def _require_same_labels(store: Store, run: Run, data: ArtifactRef) -> None:
    """Raise `RunError` if a fork that has not begun is for another task or for other classes than the run whose weights
    it starts with: each row of a head is for one class.
    """
    if run.origin is None or store.exists(f"{run.key}/{CONFIG}"):
        return
    from trainer.data.encoded import encoded_details

    details = (encoded_details(store, key) for key in (encoded_of(store, run.origin), data.key))
    before, now = ({part: each[part] for part in ("task", "classes") if "classes" in each} for each in details)
    if before != now:
        raise RunError(
            f"{store.path(run.origin)} cannot be forked for other labels: {'; '.join(list_changes(before, now))}; to "
            "begin with its model, name it in model.pretrained"
        )
