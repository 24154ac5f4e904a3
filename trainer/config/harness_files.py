"""Tasks of lm-eval as defined in YAML files, and the local files of their examples.

lm-eval reads the files below include_path in the same way. This module avoids the slow import of lm-eval.
"""

from collections.abc import Iterable, Iterator
from glob import escape, glob
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from trainer.common.errors import ConfigError, brief
from trainer.common.imports import with_imports
from trainer.config.evaluation import HarnessConfig

LOCAL_FORMATS = (
    "json", "csv", "parquet", "text", "arrow", "audiofolder", "conll", "eval", "fasta", "fastq", "genbank", "hdf5",
    "imagefolder", "meshfolder", "mmcif", "niftifolder", "pdb", "pdffolder", "tsfile", "videofolder", "vortex",
    "webdataset", "xml",
)  # fmt: skip
"""Values of `dataset_path` of tasks whose examples are in local files: the formats of `datasets`."""

OF_GROUPS = {"group", "group_alias", "task", "tag", "aggregate_metric_list", "metadata", "version"}
"""Keys of a group's file; lm-eval passes any other to the group's tasks."""

IGNORED = {"__pycache__", ".ipynb_checkpoints"}
"""Folders in which lm-eval looks for no tasks."""

OF_MEMBERS = {"task", "task_alias"}
"""Keys of a group's entry for a task that leave the task as it is."""

Settings = dict[str, Any]


class FunctionName(str):
    """The name of a function in a task's file; the function is not called."""


class LocalTask(NamedTuple):
    """A task or group defined in a YAML file: its settings, and the files with its settings, functions and prompts."""

    name: str
    settings: Settings
    files: list[Path]

    @property
    def members(self) -> list[str]:
        """The tasks of a group; empty for a task.

        Raises `ConfigError` if the group changes settings of its tasks: the files that they read, and so the questions
        to keep out of training and the identity of the figures, would be others than those of the tasks.
        """
        listed = self.settings.get("task")
        if not isinstance(listed, list):
            return []
        own = [each if isinstance(each, dict) else {"task": each} for each in listed]
        members: list[Any] = [each.get("task") for each in own]
        changed = {*self.settings.keys() - OF_GROUPS, *(key for each in own for key in each.keys() - OF_MEMBERS)}
        if changed or not all(isinstance(member, str) for member in members):
            what = f"changes {', '.join(sorted(map(str, changed)))} of its tasks" if changed else "lists no names"
            raise ConfigError(
                f"{self.files[0]}: the group {self.name!r} {what}; define each changed task, and each group in it, in "
                "a file of its own, which may `include` the original, and list it by its name"
            )
        return members

    @property
    def reads_files(self) -> bool:
        """Whether its examples are in local files."""
        return self.settings.get("dataset_path") in LOCAL_FORMATS

    @property
    def evaluated_split(self) -> str | None:
        """The split that the model is evaluated on."""
        split: str | None = self.settings.get("test_split") or self.settings.get("validation_split")
        return split


def local_tasks(options: HarnessConfig) -> dict[str, LocalTask]:
    """Tasks, groups and tags below include_path, by name; raises `ConfigError` if it is not a folder or has none."""
    if options.include_path is None:
        return {}
    folder = Path(options.include_path)
    if not folder.is_dir():
        raise ConfigError(f"evaluation.harness.include_path: no folder {options.include_path!r}; correct the path")
    found = tasks_below(folder, "evaluation.harness")
    if not found:
        raise ConfigError(
            f"evaluation.harness.include_path: no .yaml file below {options.include_path!r} defines a task (with the "
            "key `task` or `group`)"
        )
    return found


def tasks_below(folder: Path, where: str) -> dict[str, LocalTask]:
    """Tasks, groups and tags below a folder, by name; raises `ConfigError` for a file that is not a YAML mapping, and
    for a name in two files, of which lm-eval would take the one that it happens to list first.
    """
    found: dict[str, LocalTask] = {}
    places: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.yaml")):
        if not IGNORED.isdisjoint(path.parts) or (task := _read_task(path, where)) is None:
            continue
        if (other := places.setdefault(task.name, path)) != path:
            raise ConfigError(
                f"{where}: {other} and {path} both define {task.name!r}; rename one, or move it elsewhere"
            )
        found[task.name] = task
    return {**_tags(found.values()), **found}


def task_of_file(path: Path, where: str) -> LocalTask:
    """The task or group defined in one file; raises `ConfigError` if it defines none."""
    if (task := _read_task(path, where)) is None:
        raise ConfigError(f"{where}: {path} defines no lm-eval task (with the key `task` or `group`)")
    return task


def data_files(task: LocalTask, where: str) -> list[tuple[str, bool]]:
    """The patterns of a task's local files, each with whether the file is of the evaluated split.

    Raises `ConfigError` if a pattern matches no file.
    """
    if not task.reads_files:
        return _files_at(task.settings.get("dataset_path"))
    options = task.settings.get("dataset_kwargs") or {}
    folder, named = Path(options.get("data_dir") or "").expanduser(), options.get("data_files")
    if options.get("data_dir") and not named:
        return _files_at(str(folder))  # the file names decide the split
    by_split = named if isinstance(named, dict) else {None: named}
    found = []
    for split, paths in by_split.items():
        for path in [paths] if isinstance(paths, str) else paths or []:
            whole = str(Path(folder, path))
            if not glob(whole, recursive=True):
                raise ConfigError(
                    f"{where}: task {task.name!r} ({task.files[0]}) reads {whole!r}, which does not exist; relative "
                    "paths start at the working directory of the command"
                )
            found.append((whole, split is None or split == task.evaluated_split))
    return found


def _files_at(place: Any) -> list[tuple[str, bool]]:
    """The files of a data set in a local folder, or a local file; none for a name of the hub."""
    if not isinstance(place, str) or not Path(place).exists():
        return []
    return [(str(Path(escape(place), "**")) if Path(place).is_dir() else escape(place), False)]


def leaves(
    name: str, local: dict[str, LocalTask], above: tuple[str, ...] = ()
) -> Iterator[tuple[str, LocalTask | None]]:
    """Yield the tasks that a name refers to: one task, or those of a group; None for names not defined locally."""
    task = local.get(name)
    if task is None or not task.members or name in above:
        yield name, task
        return
    for member in task.members:
        yield from leaves(member, local, (*above, name))


def definitions(name: str, local: dict[str, LocalTask], above: tuple[str, ...] = ()) -> Iterator[LocalTask]:
    """Yield the task or group of a name, and of a group all tasks and groups in it, as far as they are local."""
    task = local.get(name)
    if task is None or name in above:
        return
    yield task
    for member in task.members:
        yield from definitions(member, local, (*above, name))


def _tags(tasks: Iterable[LocalTask]) -> dict[str, LocalTask]:
    """The tags of tasks, each as a group of the tasks that have it."""
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
    """The task or group that a file defines, or None."""
    files: list[Path] = []
    settings = _read(path, files, where)
    name = settings.get("group") or settings.get("task")
    files += _prompts_of(settings)
    return LocalTask(name, settings, sorted(set(files))) if isinstance(name, str) else None


def _prompts_of(settings: Settings) -> list[Path]:
    """The file of the prompt that `use_prompt` names as FILE.yaml:PROMPT, relative to the working directory."""
    file = str(settings.get("use_prompt")).partition(":")[0]
    return [Path(file)] if ".yaml" in file and Path(file).is_file() else []


def _read(path: Path, files: list[Path], where: str, after: tuple[Path, ...] = ()) -> Settings:
    """The settings of a YAML file and of the files that it includes; adds all files that were read to `files`."""

    # lm-eval looks beside the file that a link leads to.
    beside = path.resolve().parent if path.is_symlink() else path.parent

    def function(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> FunctionName:
        name = FunctionName(loader.construct_scalar(node))
        source = beside / f"{name.rpartition('.')[0].replace('.', '/')}.py"
        if source.is_file():
            files.extend(with_imports(source))
        return name

    class Loader(yaml.SafeLoader):
        """Reads functions as their names."""

    Loader.add_constructor("!function", function)
    files.append(path)
    try:
        settings = yaml.load(path.read_bytes(), Loader)
        if not isinstance(settings, dict):
            raise ValueError("it is not a mapping of keys to values")
        if path in after:
            raise ValueError("it includes itself")
        included = settings.pop("include", None) or []
        inherited: Settings = {}
        for each in [included] if isinstance(included, str) else included:
            inherited |= _read(beside / each, files, where, (*after, path))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{where}: {path} is not an lm-eval task: {brief(error)}") from error
    return {**inherited, **settings}
