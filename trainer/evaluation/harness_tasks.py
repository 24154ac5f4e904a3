"""Load lm-eval tasks, evaluate a model on them, and collect lm-eval's warnings and figures."""

import logging
import math
import numbers
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import datasets
import numpy as np
import torch
from datasets import DatasetBuilder
from lm_eval import evaluator
from lm_eval.api import task as asking
from lm_eval.api.metrics import perplexity, weighted_perplexity
from lm_eval.api.model import LM
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from lm_eval.tasks import TaskManager

from trainer.common.errors import ConfigError, brief, shortened
from trainer.config.evaluation import HarnessConfig
from trainer.config.harness_files import LocalTask, leaves, local_tasks
from trainer.evaluation.harness_identity import identify, installed_version
from trainer.models.hub import cause_of, hub_reason, may_pass
from trainer.records.basis import TaskIdentity
from trainer.store.manifest import fingerprint

Results = Mapping[str, Any]

NAMED = 3
"""How many similar names an error lists."""


def load_tasks(options: HarnessConfig) -> dict[str, dict[str, Any]]:
    """Load every task with its data, as lm-eval itself does, by requested name; data of the hub is downloaded once.

    Raises `ConfigError` if lm-eval is not installed, and for an unknown task name, missing or invalid files, data that
    the hub does not provide or that lacks a field, a task requested under two names, and too few solved examples.
    """
    set_seeds()
    # Reports missing local files in a shorter message than lm-eval.
    identities = identify(options, installed_version())
    local = local_tasks(options)
    wanted = {name: dict(leaves(name, local)) for name in options.tasks}
    manager = _manager(options, any(task is None for found in wanted.values() for task in found.values()))
    tasks: dict[str, dict[str, Any]] = {}
    for name, found in wanted.items():
        _check_names(name, found, local, manager)
        try:
            with _cached_by(identities[name]):
                tasks[name] = manager.load([name])
        except Exception as error:  # each task fails in its own way: its settings, its functions, its data, the network
            cause = cause_of(error)
            raise ConfigError(_describe_failure(name, found, manager, cause), may_pass(cause)) from error
    _check_each_once(tasks)
    single = {name: task for loaded in tasks.values() for name, task in loaded["tasks"].items()}
    for name, task in single.items():
        _check_fields(name, task)
        _set_few_shot(name, task, options.few_shot)
        _let_overflow(task)
    return tasks


@contextmanager
def _cached_by(identity: TaskIdentity) -> Iterator[None]:
    """Have `datasets` cache apart what it loads and maps for tasks of other content.

    It knows local files by their time only, and functions of a module by their names only.
    """
    usual, of_split = datasets.config.HF_DATASETS_CACHE, DatasetBuilder._get_dataset_fingerprint
    content = [identity.definition, identity.lm_eval]
    if identity.data:
        digests = fingerprint([each.sha256 for each in identity.data])
        datasets.config.HF_DATASETS_CACHE = Path(usual, f"headrace-{digests}")
    DatasetBuilder._get_dataset_fingerprint = lambda self, split: fingerprint([of_split(self, split), *content])
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE, DatasetBuilder._get_dataset_fingerprint = usual, of_split


def set_seeds(tasks: Iterable[Any] = ()) -> None:
    """Seed as lm-eval does: the global generators, which order some questions, and the solved examples of `tasks`."""
    for task in tasks:
        task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)
    torch.manual_seed(DEFAULT_OTHER_SEED)


def evaluate_tasks(
    model: LM, tasks: dict[str, Any], options: HarnessConfig, limit: int | None, resamples: int
) -> Results:
    """lm-eval's results for a model; `resamples` is the number of bootstrap resamples for standard errors."""
    with np.errstate(over="ignore", invalid="ignore"):  # standard errors of infinite figures
        found: Results = evaluator.evaluate(
            model, tasks, limit=limit, bootstrap_iters=resamples, log_samples=False,
            apply_chat_template=options.chat_template, fewshot_as_multiturn=options.chat_template,
        )  # fmt: skip
    return found


UNFILTERED = "none"
"""lm-eval's name for unfiltered answers."""


class TaskFigure(NamedTuple):
    """A figure with its standard error, and whether greater is better; None if lm-eval does not say."""

    value: float
    error: float | None
    greater: bool | None


def figures_of(found: Results, task: str) -> dict[str, TaskFigure]:
    """The figures of a task or group by name: `acc` for lm-eval's `acc,none`; `exact_match,strict` if filtered."""
    figures, results = {}, found["results"][task]
    for key, value in results.items():
        figure, comma, filtered = key.partition(",")
        if not comma or figure.endswith("_stderr") or not _is_number(value):
            continue
        error = results.get(f"{figure}_stderr,{filtered}")
        figures[figure if filtered == UNFILTERED else key] = TaskFigure(
            float(value), float(error) if _is_number(error) else None, _greater(found, task, figure)
        )
    return figures


def _greater(found: Results, task: str, figure: str) -> bool | None:
    """Whether greater is better, if the task says so, or all tasks of a group with this figure agree; else None."""
    directions = [found["higher_is_better"].get(each, {}) for each in tasks_in(found, task)]
    values = {better[figure] for better in directions if figure in better}
    return values.pop() if len(values) == 1 else None


def tasks_in(found: Results, name: str) -> list[str]:
    """The tasks of a group and its subgroups, or the task itself.

    lm-eval reports some values only per task, and incompletely for groups of groups.
    """
    members = found["group_subtasks"].get(name)
    return [task for each in members for task in tasks_in(found, each)] if members else [name]


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and math.isfinite(value)


def _check_each_once(tasks: dict[str, dict[str, Any]]) -> None:
    """Raise `ConfigError` for a task that two names request, because lm-eval would mix their figures."""
    asked_by: dict[str, str] = {}
    for name, found in tasks.items():
        for task in found["tasks"]:
            if (other := asked_by.setdefault(task, name)) != name:
                raise ConfigError(
                    f"evaluation.harness.tasks: {name!r} and {other!r} both include {task!r}; list only one of them"
                )


def _manager(options: HarnessConfig, with_defaults: bool) -> TaskManager:
    """The task manager. lm-eval's own tasks are thousands of files, read only if one of them is requested."""
    datasets.disable_progress_bars()
    return TaskManager(include_path=options.include_path, include_defaults=with_defaults)


def _check_fields(name: str, task: Any) -> None:
    """Raise `ConfigError` for a field name that the data lacks: lm-eval would use the name itself as the text."""
    for setting in ("doc_to_text", "doc_to_target"):
        field = task.get_config(setting)
        if isinstance(field, str) and field.isidentifier() and field not in task.features:
            hint = "".join(f"; there is {like}" for like in get_close_matches(field, task.features, 1))
            raise ConfigError(
                f"evaluation.harness: {setting} of task {name!r} is {field!r}, which is not a field of its data "
                f"({', '.join(task.features)}){hint}"
            )


def _set_few_shot(name: str, task: Any, few_shot: int | None) -> None:
    """Set the number of solved examples before a question, as lm-eval does; raises `ConfigError` if there are fewer."""
    of_task = task.get_config("num_fewshot")
    count = (of_task or 0) if few_shot is None or of_task == 0 else few_shot
    task.set_config(key="num_fewshot", value=count)
    # From the same split, lm-eval excludes the question from the examples before it.
    if count and (found := len(task.fewshot_docs()) - (task.fewshot_cfg.split == task.config.test_split)) < count:
        raise ConfigError(
            f"evaluation.harness: {count} solved examples are requested before each question of task {name!r}, which "
            f"has {found}; set evaluation.harness.few_shot to {found} or less"
        )


def _let_overflow(task: Any) -> None:
    """Let a perplexity that is beyond the range of floats be infinite, as that per word of text without spaces, whose
    words are whole documents. lm-eval fails on it, after the work is done.
    """
    overflow = {perplexity, weighted_perplexity}
    found = {name: OrInfinite(each) if each in overflow else each for name, each in task.aggregation().items()}
    task.aggregation = lambda: found


class OrInfinite:
    """A perplexity, infinite if it overflows; equal to lm-eval's function, which decides the standard error.

    The type of NumPy has an infinite square where `float` raises an error, for the standard error of a large figure.
    """

    def __init__(self, exact: Callable[[Any], float]) -> None:
        self.exact, self.__name__ = exact, exact.__name__

    def __call__(self, items: Any) -> np.float64:
        try:
            return np.float64(self.exact(items))
        except OverflowError:
            return np.float64(math.inf)

    def __eq__(self, other: object) -> bool:
        return other is self.exact

    def __hash__(self) -> int:
        return hash(self.exact)


def doubts_of(loaded: dict[str, Any]) -> list[str]:
    """Warnings about a loaded task, or about the tasks of a group."""
    return [doubt for name, task in loaded["tasks"].items() if (doubt := _doubt_examples(name, task))]


def _doubt_examples(name: str, task: Any) -> str | None:
    """A warning if lm-eval may use the question itself, with its answer, as a solved example."""
    config, cfg = task.config, task.fewshot_cfg
    if not config.num_fewshot or cfg.split or cfg.samples or config.training_split or config.validation_split:
        return None
    return (
        f"task {name!r} has no fewshot_split, so its solved examples come from the evaluated split, and the question "
        "itself may be one of them, with its answer"
    )


def _check_names(
    name: str, found: dict[str, LocalTask | None], local: dict[str, LocalTask], manager: TaskManager
) -> None:
    """Raise `ConfigError`, with similar names, for a name of no local task and no task of lm-eval."""
    for each in found:
        if each in manager.task_index:
            continue
        known = [*local, *(key for key in manager.all_tasks if key not in local)]
        like = get_close_matches(each, known, NAMED) or list(local)[:NAMED]
        where = f"below {manager.include_path} or in lm-eval" if manager.include_path else "in lm-eval"
        of = "" if each == name else f", which {name!r} includes,"
        hint = f"; there is {', '.join(like)}" if like else ""
        raise ConfigError(f"evaluation.harness.tasks: no task {each!r}{of} is {where}{hint}")


def _describe_failure(name: str, found: dict[str, LocalTask | None], manager: TaskManager, error: Exception) -> str:
    """Describe why a task cannot be loaded, and what to do."""
    remote = sorted({data for each, task in found.items() if (data := _hub_data(each, task, manager))})
    if remote:
        return (
            f"evaluation.harness: task {name!r} reads {', '.join(remote)} of the Hugging Face hub, which cannot be "
            f"loaded ({hub_reason(error)}): check the network and HF_ENDPOINT, load the data once with a network, or "
            "use tasks with data in local files"
        )
    files = ", ".join(dict.fromkeys(str(task.files[0]) for task in found.values() if task))
    return (
        f"evaluation.harness: lm-eval cannot load the task {name!r} of {files}: {type(error).__name__}: {brief(error)}"
    )


def _hub_data(name: str, task: LocalTask | None, manager: TaskManager) -> str | None:
    """The hub data set that a task reads; None if it reads local files or specifies none."""
    if task is not None and task.reads_files:
        return None
    entry = manager.task_index.get(name)
    settings: dict[str, Any] = task.settings if task is not None else (entry and entry.cfg) or {}
    path = settings.get("dataset_path")
    return repr(path) if path else repr(name) if task is None else None


NO_DOUBT = (
    "Overwriting default num_fewshot", "aggregation is not. using default", "higher_is_better is not. using default",
    "fewshot_split is None. using preconfigured rule",
)  # fmt: skip
"""Parts of warnings that only repeat settings, or describe lm-eval's usual choice of a figure."""


@contextmanager
def hearing() -> Iterator[Callable[[], list[str]]]:
    """Collect lm-eval's warnings within the block; the yielded function returns the first of each kind, with counts."""
    logger, heard = logging.getLogger("lm_eval"), _Heard()
    before, bar, commit = (logger.level, logger.propagate), asking.tqdm, evaluator.get_git_commit_hash
    asking.tqdm = partial(bar, disable=True)  # progress is shown like that of other stages
    # The commit of the current folder is irrelevant, and git prints an error if the folder is no repository.
    evaluator.get_git_commit_hash = lambda: None
    logger.addHandler(heard)
    logger.setLevel(logging.WARNING)
    logger.propagate = False  # otherwise each of thousands of warnings is logged too
    try:
        yield heard.messages
    finally:
        logger.removeHandler(heard)
        logger.level, logger.propagate = before
        asking.tqdm, evaluator.get_git_commit_hash = bar, commit


class _Heard(logging.Handler):
    """Collects warnings by the source line that logs them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._messages: dict[tuple[str, int], list[str]] = defaultdict(list)

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if not any(usual in message for usual in NO_DOUBT):
            self._messages[record.pathname, record.lineno].append(shortened(message))

    def messages(self) -> list[str]:
        return [
            f"{message} (and {len(more):,} more like it)" if more else message
            for message, *more in self._messages.values()
        ]
