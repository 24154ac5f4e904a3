"""The identity and measurement of runs that tune a pretrained model on an encoded set, and facts about that model."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from trainer.common.errors import RunError
from trainer.config.chat import ChatJob, ConversationsJob
from trainer.config.evaluation import SelectionConfig
from trainer.config.labelled import TuningJob
from trainer.config.runs import CardConfig
from trainer.data.order import FORMAT as EPOCH_ORDER
from trainer.evaluation.measurement import Measurement, encoded_of
from trainer.evaluation.metrics import describe_selection
from trainer.kinds.kind import Planned
from trainer.models.pretrained import Checkpoint, find_model
from trainer.records.fields import tell_changes
from trainer.store.manifest import ArtifactRef
from trainer.store.names import CARD, CONFIG, EVALUATION, FINAL
from trainer.store.storage import Store
from trainer.training.identity import Run, lora_identity, make_run

NOTHING: Mapping[str, ArtifactRef] = {}

SPLITS = "labelled-data"
"""The name of the table of splits."""


def plan_splits(
    job: TuningJob,
    data: ArtifactRef,
    ranks: int,
    tell: Callable[[dict[str, Any]], str] | None = None,
    unit: str = "example",
) -> Planned:
    """The plan of a run on the examples of an encoded set. `unit` is the word for one example; `tell` describes the
    set from the details of its manifest.
    """
    from trainer.data.encoded import encoded_details, split_sizes
    from trainer.data.step_plan import make_tuning_plan

    details = encoded_details(Store(job.store), data.key)
    planned = make_tuning_plan(job, split_sizes(details), ranks, unit)
    told = tell(details) if tell else f"{data.key}: {planned.examples:,} {unit}s to train on"
    return Planned(planned, told, SPLITS, split_rows(details))


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


MOST_BYTES = 2**20
"""Characters of a model card that are read."""

CACHED = re.compile(r"models--([\w.-]+?)(?:--([\w.-]+))?/snapshots/[0-9a-f]+")
"""The path of a model in the hub's local cache."""


def describe_base(name: str, folder: Path, origin: Literal["store", "folder", "hub"]) -> dict[str, Any]:
    """A base model's name as the job gives it, its name on the hub or None, and license and language from its card."""
    hub = name if origin == "hub" else None
    if origin == "folder" and (cached := CACHED.search(str(folder.resolve()))):
        hub = "/".join(part for part in cached.groups() if part)
    return {"name": name, "origin": origin, "hub": hub, **read_card(folder).model_dump()}


def read_card(folder: Path) -> CardConfig:
    """License and language from the front matter of a folder's model card, as far as they are there."""
    try:
        with open(folder / CARD, encoding="utf-8") as file:
            text = file.read(MOST_BYTES)
        matter = yaml.safe_load(text.split("---\n", 2)[1]) if text.startswith("---\n") else {}
    except (OSError, ValueError, IndexError, yaml.YAMLError):
        return CardConfig()  # a card is optional, so an unreadable one is ignored
    said = matter if isinstance(matter, dict) else {}
    language = said.get("language")
    return CardConfig(
        **_accepted("license", said.get("license")),
        **_accepted("language", [language] if isinstance(language, str) else language),
    )


def _accepted(field: str, value: Any) -> dict[str, Any]:
    """The field with its value, or nothing if the value is invalid."""
    try:
        CardConfig.model_validate({field: value})
    except ValidationError:
        return {}
    return {field: value}


def identify_tuning(
    job: TuningJob,
    data: ArtifactRef,
    beside: Mapping[str, Any],
    selection: Mapping[str, Any],
    reads: Mapping[str, ArtifactRef] = NOTHING,
) -> Run:
    """The run that a job and its encoded set identify. `beside` is what else of its kind determines the outcome,
    `selection` what determines the best checkpoint, and `reads` other artifacts that it reads, by role."""
    found = find_model(Store(job.store), job.model.pretrained, hub=True)
    base = describe_base(job.model.pretrained, Path(found.folder), found.origin)
    made_from = {"data": {job.data.name: data.fingerprint}, "model": found.files, "order": EPOCH_ORDER, **beside}
    if job.model.lora is not None:
        made_from["lora"] = lora_identity(job.model.lora)
    if isinstance(job, ConversationsJob) and job.model.quantize is not None:
        made_from["quantize"] = job.model.quantize
    start = {"origin": found.origin, "key": found.key}
    if isinstance(job, ConversationsJob):
        selection = {**selection, **describe_selection(job.evaluation, job.evaluation.harness)}
    effective = {}
    if isinstance(job, ChatJob) and job.data.packing:  # packing ignores the order by length
        effective["group_by_length"] = type(job.training).model_fields["group_by_length"].default
    run = make_run(
        job, made_from, selection, {"encoded set": data, **reads}, start, base, effective=effective, renews_data=True
    )
    _require_same_labels(Store(job.store), run, data)
    return run


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
            f"{store.path(run.origin)} cannot be forked for other labels: {'; '.join(tell_changes(before, now))}; to "
            "begin with its model, name it in model.pretrained"
        )
