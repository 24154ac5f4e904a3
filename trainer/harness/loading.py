"""Loading tasks as lm-eval does: before training, so that what is wrong with them is told then, and before measuring."""

import logging
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from trainer.common.errors import ConfigError, brief
from trainer.config.harness import HarnessConfig
from trainer.config.task_files import LocalTask, leaves, local_tasks
from trainer.harness.measured import installed_version
from trainer.harness.tasks import identify
from trainer.pretrained.hub import hub_reason

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

NAMED = 3
"""Names that are told where one is looked for that no task has."""


def load_tasks(options: HarnessConfig) -> "TaskManager":
    """Load every task with its data, as lm-eval itself does, and return what it loads them by.

    Data of the hub is downloaded by this, once. Raises `ConfigError` if lm-eval is not installed, for a name that no task has,
    for files that are not there or tell no task, and for data that the hub does not give.
    """
    identify(options, installed_version())  # whether all local files are there, which is told in fewer words
    local = local_tasks(options)
    wanted = {name: dict(leaves(name, local)) for name in options.tasks}
    manager = _manager(options, any(task is None for found in wanted.values() for task in found.values()))
    for name, found in wanted.items():
        _check_names(name, found, local, manager)
        try:
            manager.load([name])
        except Exception as error:  # each task fails in its own way: its settings, its functions, its data, the network
            raise ConfigError(_tell_failure(name, found, manager, error)) from error
    return manager


def _manager(options: HarnessConfig, with_defaults: bool) -> "TaskManager":
    """What loads tasks. Those that come with lm-eval are thousands of files, which are read only if one of them is asked."""
    import datasets
    from lm_eval.tasks import TaskManager

    datasets.disable_progress_bars()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of what was asked for
    return TaskManager(include_path=options.include_path, include_defaults=with_defaults)


def _check_names(name: str, found: dict[str, LocalTask | None], local: dict[str, LocalTask], manager: "TaskManager") -> None:
    """Raise `ConfigError` for a name that no task has, here or in lm-eval, with those that are like it."""
    for each in found:
        if each in manager.task_index:
            continue
        known = [*local, *(key for key in manager.all_tasks if key not in local)]
        like = get_close_matches(each, known, NAMED) or list(local)[:NAMED]
        where = f"below {manager.include_path} or in lm-eval" if manager.include_path else "in lm-eval"
        of = "" if each == name else f", which {name!r} names,"
        hint = f"; there is {', '.join(like)}" if like else ""
        raise ConfigError(f"evaluation.harness.tasks: no task {each!r}{of} is {where}{hint}")


def _tell_failure(name: str, found: dict[str, LocalTask | None], manager: "TaskManager", error: Exception) -> str:
    """Why a task cannot be loaded, and what to do."""
    remote = sorted({data for each, task in found.items() if (data := _hub_data(each, task, manager))})
    if remote:
        return (
            f"evaluation.harness: task {name!r} reads {', '.join(remote)} of the Hugging Face hub, which cannot be loaded "
            f"({hub_reason(error)}): see to the network and to HF_ENDPOINT, load it once where there is one, or take tasks "
            "whose data is in local files"
        )
    files = ", ".join(dict.fromkeys(str(task.files[0]) for task in found.values() if task))
    return f"evaluation.harness: lm-eval cannot load the task {name!r} of {files}: {type(error).__name__}: {brief(error)}"


def _hub_data(name: str, task: LocalTask | None, manager: "TaskManager") -> str | None:
    """The data set of the hub that a task reads; None of one that reads local files, or says none."""
    if task is not None and task.reads_files:
        return None
    entry = manager.task_index.get(name)
    settings: dict[str, Any] = task.settings if task is not None else (entry and entry.cfg) or {}
    path = settings.get("dataset_path")
    return repr(path) if path else repr(name) if task is None else None
