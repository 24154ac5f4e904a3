"""Which scoring an evaluation job asks for, if its checkpoint is of a fine-tuned run; free of heavy imports."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainer.common.errors import ConfigError
from trainer.config.evaluation import EvaluationConfig
from trainer.config.files import validate_job
from trainer.config.jobs import EvaluateJob
from trainer.config.labelled import FinetuneJob, LabelledDataConfig
from trainer.data.csv_files import FORMATS, format_by_name
from trainer.data.splits import TRAIN, SplitSource, find_splits
from trainer.evaluation.cache import Scoring, identify_scoring, scoring_fingerprint
from trainer.models.pretrained import Checkpoint, classifies, find_model, read_object
from trainer.records.run_kinds import FINE_TUNING, run_kind
from trainer.records.sealed import read_sealed
from trainer.store.manifest import fingerprint
from trainer.store.names import CONFIG, FINAL
from trainer.store.storage import Store

log = logging.getLogger(__name__)


class CheckpointScoring(NamedTuple):
    """The run that made a checkpoint, its job with the precision, device and batch of the evaluation, and what is
    scored.

    `files` are new ones to measure it on, which the job's data then names; None for the run's own splits.
    """

    run: str
    job: FinetuneJob
    wanted: Scoring
    files: SplitSource | None = None


def identify_checkpoint(store: Store, job: EvaluateJob) -> CheckpointScoring | None:
    """The scoring of a fine-tuned run's checkpoint on that run's own data; None for what is no classifier.

    Raises `ArtifactError` if the checkpoint is missing or damaged, `ConfigError` for a classifier of no run in this
    store, and for settings that only a language model has.
    """
    found = find_model(store, job.checkpoint)
    run = "/".join(found.key.split("/")[:2]) if found.key is not None and found.key.startswith("runs/") else None
    config: Any = read_sealed(store, f"{run}/{CONFIG}") if run else None
    if (run is None or config is None) and _classifies(found):
        raise ConfigError(
            f"{job.checkpoint} is a classifier of no run in this store, so that it is not known on which labelled data "
            "to measure it; name a fine-tuned run's checkpoint, or let it predict new texts with `predict`"
        )
    if run is None or config is None or run_kind(config) is not FINE_TUNING:
        if job.labelled is not None:
            raise ConfigError(f"labelled goes with classifiers, but {job.checkpoint} is none; leave labelled out")
        return None
    for setting in ("shards", "context"):
        if getattr(job, setting) is not None:
            raise ConfigError(
                f"{setting} goes with language models, but {job.checkpoint} is a classifier, which is measured on the "
                f"labelled splits of its own run; leave {setting} out"
            )
    values = {**config["job"], "store": job.store}
    divided = {"sharding": job.sharding, "cpu_offload": job.cpu_offload, "sum_each_micro_batch": False}
    values["training"] = {**values["training"], "precision": job.precision, "device": job.device, **divided}
    values["evaluation"] = {**values["evaluation"], "batch": job.evaluation.batch}
    own = validate_job(FinetuneJob, values, store.path(f"{run}/{CONFIG}"))
    if job.labelled is not None:
        return _on_files(store, job, own, run, found, config["data"]["key"])
    if found.key == f"{run}/{FINAL}" and config["job"]["training"]["precision"] == job.precision:
        return CheckpointScoring(run, own, identify_scoring(store, own, run))
    encoded: str = config["data"]["key"]
    name = scoring_fingerprint(own, found, encoded)
    return CheckpointScoring(
        run, own, Scoring(found, encoded, name, f"evaluations/{Path(job.checkpoint).name}-{name}.json")
    )


def _on_files(
    store: Store, job: EvaluateJob, own: FinetuneJob, run: str, found: Checkpoint, encoded: str
) -> CheckpointScoring:
    """The scoring of a checkpoint on new files, which are read as those of its run; of another format by their
    names.
    """
    assert job.labelled is not None
    classes = own.data.label_columns or classes_in(read_object(Path(found.folder, "config.json")), own.data.task)
    values = own.data.model_dump(
        exclude={"train", "validation", "test", "path", "subset", "classes"}, exclude_unset=True
    )
    source = format_by_name(job.labelled[0]) or own.data.source
    if source != own.data.source:
        values = {name: value for name, value in values.items() if name not in ("delimiter", "quoting", "columns")}
    if source in ("hub", "disk"):
        raise ConfigError(
            f"labelled: the format of {job.labelled[0]!r} is not known; give files whose names end in "
            f".{', .'.join(FORMATS)}"
        )
    named = {} if own.data.label_columns else {"classes": classes}
    data = validate_job(LabelledDataConfig, {**values, "source": source, "train": job.labelled, **named}, "labelled")
    files = find_splits(store, data)
    read = data.model_dump(include={"source", "quoting", "columns", "text_columns", "label_column", "label_columns"})
    name = fingerprint([scoring_fingerprint(own, found, encoded), files.identity[TRAIN], read])
    wanted = Scoring(found, encoded, name, f"evaluations/{Path(job.checkpoint).name}-{name}.json")
    return CheckpointScoring(run, own.model_copy(update={"data": data}), wanted, files)


def classes_in(config: Mapping[str, Any], task: str) -> list[str] | None:
    """The names of a finished model's classes, by its configuration; None if it predicts a number."""
    if task == "regression":
        return None
    names: dict[str, str] = config.get("id2label") or {}
    return [names[number] for number in sorted(names, key=int)]


def tell_unused(job: EvaluateJob) -> None:
    """Say which settings of an evaluation a classifier has no use for."""
    given = job.evaluation.model_dump()
    usual = EvaluationConfig().model_dump()
    if unused := [name for name, value in given.items() if name != "batch" and value != usual.get(name)]:
        log.info(
            "%s is a classifier: evaluation.%s has no meaning for it", job.checkpoint, ", evaluation.".join(unused)
        )


def _classifies(found: Checkpoint) -> bool:
    """Whether a folder's configuration names an architecture that classifies."""
    return classifies(read_object(Path(found.folder, "config.json")).get("architectures"))
