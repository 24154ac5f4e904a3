"""What defines a task of lm-eval, and what its examples are: so figures of one name can be compared, or not."""

import hashlib
from collections.abc import Iterable
from glob import glob
from itertools import product
from pathlib import Path
from typing import Any

from trainer.common.errors import ConfigError
from trainer.config.evaluation import HarnessConfig
from trainer.config.task_files import LocalTask, data_files, leaves, local_tasks
from trainer.curation.evaluation_sets import question_fields
from trainer.records.basis import TaskData, TaskIdentity
from trainer.store.manifest import digest_file, fingerprint


def identify(options: HarnessConfig, lm_eval: str) -> dict[str, TaskIdentity]:
    """What each task that is asked for asks, and how. Raises `ConfigError` for files that are not there."""
    local = local_tasks(options)
    how: dict[str, Any] = {**options.model_dump(include={"limit", "few_shot", "chat_template"}), "lm_eval": lm_eval}
    found = {}
    for name in options.tasks:
        if name not in local:
            found[name] = TaskIdentity(**how)
            continue
        of_it = [local[name], *(task for _, task in leaves(name, local) if task is not None)]
        files = sorted({file for task in of_it for file in task.files})
        definition = digest_of([digest_file(file).sha256 for file in files])
        data = {(each.path, each.asked): each for task in of_it for each in task_data(task)}
        found[name] = TaskIdentity(definition=definition, data=[data[key] for key in sorted(data)], **how)
    return found


def task_data(task: LocalTask) -> list[TaskData]:
    """The local files of a task's examples. Raises `ConfigError` if a path leads to none."""
    return [
        TaskData(path=file, sha256=digest_file(Path(file)).sha256, asked=asked)
        for pattern, asked in data_files(task, "evaluation.harness")
        for file in sorted(glob(pattern, recursive=True))
    ]


def questions_of(name: str, local: dict[str, LocalTask]) -> set[tuple[str, str]] | None:
    """The texts that a task's questions are made of: SHA-256 of a file, and a field of it; None if that is not known."""
    found: set[tuple[str, str]] = set()
    for _, task in leaves(name, local):
        asked = [each.sha256 for each in task_data(task) if each.asked] if task is not None else []
        if task is None or not asked:
            return None
        try:
            fields = question_fields(task, "evaluation.harness")
        except ConfigError:  # a function makes its questions
            return None
        found |= set(product(asked, fields))
    return found


def digest_of(digests: Iterable[str]) -> str:
    """One digest of several."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def name_of(identity: TaskIdentity) -> str:
    """A short name of what a task is, wherever its files are."""
    told = identity.model_dump()
    return fingerprint({**told, "data": sorted([each.sha256, each.asked] for each in identity.data)})
