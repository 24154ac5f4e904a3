"""Tasks of lm-eval as their YAML files tell them, and the local files of their examples.

lm-eval takes the files below include_path the same way; here they are read without it, in a moment.
"""

from collections.abc import Iterable, Iterator
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from trainer.common.errors import ConfigError, brief
from trainer.common.imports import with_imports
from trainer.config.evaluation import HarnessConfig

LOCAL_FORMATS = ("json", "csv", "parquet", "text", "arrow")
"""The `dataset_path` of tasks whose examples are in files."""

Settings = dict[str, Any]


class FunctionName(str):
    """The name of a function in a task's file, in the place of what it gives."""


class LocalTask(NamedTuple):
    """A task or a group that a file below include_path tells: its settings, and the files that they are in, with
    functions.
    """

    name: str
    settings: Settings
    files: list[Path]

    @property
    def members(self) -> list[str]:
        """The tasks of a group; none of a task."""
        listed = self.settings.get("task")
        return (
            [str(each["task"] if isinstance(each, dict) else each) for each in listed]
            if isinstance(listed, list)
            else []
        )

    @property
    def reads_files(self) -> bool:
        """Whether its examples are in local files."""
        return self.settings.get("dataset_path") in LOCAL_FORMATS

    @property
    def asked(self) -> str | None:
        """The split whose examples are asked."""
        split: str | None = self.settings.get("test_split") or self.settings.get("validation_split")
        return split


def local_tasks(options: HarnessConfig) -> dict[str, LocalTask]:
    """The tasks, groups and tags below include_path, by name. Raises `ConfigError` if it is no folder, or holds
    none.
    """
    if options.include_path is None:
        return {}
    folder = Path(options.include_path)
    if not folder.is_dir():
        raise ConfigError(
            f"evaluation.harness.include_path: there is no folder {options.include_path!r}; correct the path"
        )
    found = tasks_below(folder, "evaluation.harness")
    if not found:
        raise ConfigError(
            f"evaluation.harness.include_path: no .yaml file below {options.include_path!r} tells a task; one has the "
            "key `task` or `group`"
        )
    return found


def tasks_below(folder: Path, where: str) -> dict[str, LocalTask]:
    """The same of a folder, which a setting names. Raises `ConfigError` for a file that is no YAML file of keys and
    values.
    """
    found: dict[str, LocalTask] = {}
    for path in sorted(folder.rglob("*.yaml")):
        if (task := _read_task(path, where)) is not None:
            found[task.name] = task
    return {**_tags(found.values()), **found}


def task_of_file(path: Path, where: str) -> LocalTask:
    """The task or the group of one file. Raises `ConfigError` if it tells none."""
    if (task := _read_task(path, where)) is None:
        raise ConfigError(f"{where}: {path} tells no task of lm-eval; one has the key `task` or `group`")
    return task


def data_files(task: LocalTask, where: str) -> list[tuple[str, bool]]:
    """The patterns of a task's local files, and whether what they hold is asked; each leads to some.

    Raises `ConfigError` if a path leads to none.
    """
    if not task.reads_files:
        return []
    options = task.settings.get("dataset_kwargs") or {}
    folder, named = options.get("data_dir"), options.get("data_files")
    if folder and not named:
        return [(str(Path(folder, "**", "*.*")), False)]  # their own names tell what is asked
    by_split = named if isinstance(named, dict) else {None: named}
    found = []
    for split, paths in by_split.items():
        for path in [paths] if isinstance(paths, str) else paths or []:
            whole = str(Path(folder or "", path))
            if not glob(whole, recursive=True):
                raise ConfigError(
                    f"{where}: task {task.name!r} reads {whole!r}, which is not there; relative paths begin where "
                    f"the command is started. {task.files[0]} names it"
                )
            found.append((whole, split is None or split == task.asked))
    return found


def leaves(
    name: str, local: dict[str, LocalTask], above: tuple[str, ...] = ()
) -> Iterator[tuple[str, LocalTask | None]]:
    """The tasks that a name stands for: itself, or those of a group. Of one that comes with lm-eval no more is
    known.
    """
    task = local.get(name)
    if task is None or not task.members or name in above:
        yield name, task
        return
    for member in task.members:
        yield from leaves(member, local, (*above, name))


def _tags(tasks: Iterable[LocalTask]) -> dict[str, LocalTask]:
    """The tags of tasks, each as a group of those that have it."""
    members: dict[str, list[LocalTask]] = {}
    for task in tasks:
        tags = task.settings.get("tag") or []
        for tag in [tags] if isinstance(tags, str) else tags:
            members.setdefault(tag, []).append(task)
    return {
        tag: LocalTask(
            tag, {"task": [task.name for task in those]}, sorted({file for task in those for file in task.files})
        )
        for tag, those in members.items()
    }


def _read_task(path: Path, where: str) -> LocalTask | None:
    """The task or group of a file; None of one that tells none."""
    files: list[Path] = []
    settings = _read(path, files, where)
    name = settings.get("group") or settings.get("task")
    return LocalTask(name, settings, sorted(set(files))) if isinstance(name, str) else None


def _read(path: Path, files: list[Path], where: str, after: tuple[Path, ...] = ()) -> Settings:
    """A YAML file with those that it includes; notes the files that it is told in."""

    def function(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> FunctionName:
        said = FunctionName(loader.construct_scalar(node))
        source = path.parent / f"{said.rpartition('.')[0].replace('.', '/')}.py"
        if source.is_file():
            files.extend(with_imports(source))
        return said

    class Loader(yaml.SafeLoader):
        """Takes functions as their names."""

    Loader.add_constructor("!function", function)
    files.append(path)
    try:
        settings = yaml.load(path.read_bytes(), Loader)
        if not isinstance(settings, dict):
            raise ValueError("it holds no keys and values")
        if path in after:
            raise ValueError("it includes itself")
        included = settings.pop("include", None) or []
        told: Settings = {}
        for each in [included] if isinstance(included, str) else included:
            told |= _read(path.parent / each, files, where, (*after, path))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{where}: {path} is no task of lm-eval: {brief(error)}") from error
    return {**told, **settings}
