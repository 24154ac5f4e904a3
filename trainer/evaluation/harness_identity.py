"""The identity of lm-eval tasks: everything that determines a task's figures. Imports no heavy libraries."""

import hashlib
from glob import glob
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any

from trainer.common.errors import ConfigError
from trainer.config.evaluation import HarnessConfig
from trainer.config.harness_files import LocalTask, data_files, definitions, leaves, local_tasks
from trainer.config.jobs import EvaluateJob
from trainer.curation.evaluation_sets import question_fields
from trainer.evaluation.measurement import Measurement
from trainer.models.pretrained import find_model
from trainer.records.basis import TaskData, TaskIdentity
from trainer.store.manifest import digest_file, fingerprint
from trainer.store.names import FINAL, HARNESS
from trainer.store.storage import Store


def identify(options: HarnessConfig, lm_eval: str) -> dict[str, TaskIdentity]:
    """The identity of each requested task; raises `ConfigError` for missing files."""
    local = local_tasks(options)
    how: dict[str, Any] = {**options.model_dump(include={"limit", "few_shot", "chat_template"}), "lm_eval": lm_eval}
    found = {}
    for name in options.tasks:
        if name not in local:
            found[name] = TaskIdentity(**how)
            continue
        of_it = list(definitions(name, local))
        files = sorted({file.resolve() for task in of_it for file in task.files})
        definition = hashlib.sha256("\n".join(digest_file(file).sha256 for file in files).encode()).hexdigest()
        data = {(each.path, each.asked): each for task in of_it for each in task_data(task)}
        found[name] = TaskIdentity(definition=definition, data=[data[key] for key in sorted(data)], **how)
    return found


def task_data(task: LocalTask) -> list[TaskData]:
    """The local files with a task's examples; raises `ConfigError` for a path that matches no file."""
    return [
        TaskData(path=file, sha256=digest_file(Path(file)).sha256, asked=is_asked)
        for pattern, is_asked in data_files(task, "evaluation.harness")
        for file in sorted(glob(pattern, recursive=True))
        if Path(file).is_file()
    ]


def questions_of(name: str, local: dict[str, LocalTask]) -> set[tuple[str, str]] | None:
    """(SHA-256 of a file, field) pairs of the texts in a task's questions; None if they are not known."""
    found: set[tuple[str, str]] = set()
    for _, task in leaves(name, local):
        digests = [each.sha256 for each in task_data(task) if each.asked] if task is not None else []
        if task is None or not digests:
            return None
        try:
            fields = question_fields(task, "evaluation.harness")
        except ConfigError:  # a function builds its questions
            return None
        found |= set(product(digests, fields))
    return found


def name_of(identity: TaskIdentity) -> str:
    """Fingerprint of a task, from the content of its files in the order of their paths."""
    settings = identity.model_dump()
    return fingerprint({**settings, "data": [[each.sha256, each.asked] for each in identity.data]})


def describe_task(identity: TaskIdentity) -> dict[str, Any]:
    """Everything that determines a task's figures, with one fingerprint for its definition and data."""
    settings = identity.model_dump(mode="json", exclude={"definition", "data"})
    return {**settings, "content": name_of(identity)}


INSTALL = "pip install 'headrace[harness]'"


def installed_version() -> str:
    """The installed version of lm-eval; raises `ConfigError` if there is none."""
    try:
        return version("lm_eval")
    except PackageNotFoundError as error:
        raise ConfigError(f"evaluation.harness needs lm-eval, which is not installed: {INSTALL}") from error


def asked_for(job: EvaluateJob) -> HarnessConfig:
    """The job's lm-eval options; raises `ConfigError` if they are missing."""
    if job.evaluation.harness is None:
        raise ConfigError("evaluation.harness lists no tasks: set the tasks on which lm-eval measures the model")
    return job.evaluation.harness


def identify_harness(store: Store, job: EvaluateJob, own: bool) -> Measurement:
    """The measurement by lm-eval that a job requests. `own`: the model is the final one of the job's own run.

    Raises `ArtifactError` if the model is missing or damaged, `ConfigError` for tasks with missing files.
    """
    tasks = identify(asked_for(job), installed_version())
    found = find_model(store, job.checkpoint)
    is_final = found.key is not None and found.key.endswith(f"/{FINAL}")
    of_run = f"{(found.key or '').removesuffix(FINAL)}{HARNESS}" if is_final else None
    recipe: dict[str, Any] = {"tasks": {name: describe_task(identity) for name, identity in tasks.items()}}
    if found.beside is not None:
        recipe["generation"] = "adapter"  # earlier versions generated with the settings of the base model's folder
    return Measurement(
        model=found,
        checkpoint=job.checkpoint,
        recipe=recipe,
        settings=job,
        place=of_run if own else None,
        elsewhere=None if own else of_run,
        suffix="-harness",
        precision=job.precision,
        device=job.device,
    )
