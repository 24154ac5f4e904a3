"""The questions of lm-eval's tasks as evaluation sets: the files that are asked, and which of their fields hold text."""

from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, TemplateError
from jinja2.meta import find_undeclared_variables

from trainer.common.errors import ConfigError
from trainer.config.curation import EvaluationText
from trainer.config.task_files import FunctionName, LocalTask, data_files, leaves, task_of_file, tasks_below

FORMATS: dict[str, Literal["jsonl", "csv", "parquet", "lines"]] = {
    "json": "jsonl", "csv": "csv", "parquet": "parquet", "text": "lines",
}  # fmt: skip
"""The `dataset_path` of tasks whose files can be read as those of a corpus."""

QUERIES = ("doc_to_decontamination_query", "doc_to_text")
"""What a task says of the text to look for: its own word for that, or else its question."""

PLACES = {"data_files", "data_dir"}
"""The `dataset_kwargs` that say where files are, not how they are read."""

INSTEAD = "name its files and fields in decontaminate.files"


def of_task(path: str) -> list[EvaluationText]:
    """What the tasks of a YAML file ask. Raises `ConfigError` for one whose text is not in fields of local files."""
    where = f"data.curation.decontaminate.tasks: {path}"
    task = task_of_file(Path(path), where)
    tasks = {task.name: task}
    if task.members:
        found = leaves(task.name, {**tasks_below(Path(path).parent, where), **tasks})
        tasks = {name: _there(name, each, where) for name, each in found}
    return [_text_of(each, where) for each in tasks.values()]


def _there(name: str, task: LocalTask | None, where: str) -> LocalTask:
    if task is None:
        raise ConfigError(f"{where}: it names the task {name!r}, which no file beside it tells; name the tasks one by one")
    return task


def _text_of(task: LocalTask, where: str) -> EvaluationText:
    source, how = str(task.settings.get("dataset_path")), task.settings.get("dataset_kwargs") or {}
    if source not in FORMATS:
        raise ConfigError(
            f"{where}: task {task.name!r} reads {source!r}, which is no file of {', '.join(FORMATS)}; write its questions "
            "to a file, and name that in decontaminate.files"
        )
    if further := sorted(how.keys() - PLACES):
        raise ConfigError(f"{where}: task {task.name!r} reads its files by {', '.join(further)}; {INSTEAD}")
    paths = [pattern for pattern, asked in data_files(task, where) if asked]
    if not paths:
        raise ConfigError(f"{where}: no file of task {task.name!r} is of the split {task.asked!r}, which it asks; {INSTEAD}")
    return EvaluationText(paths=paths, format=FORMATS[source], fields=question_fields(task, where))


def question_fields(task: LocalTask, where: str) -> list[str]:
    """The fields that the task's text to look for is made of: one that it names, or those of a template.

    Raises `ConfigError` if it makes its questions by a function, or tells none.
    """
    said: Any = next((task.settings[query] for query in QUERIES if task.settings.get(query)), None)
    if not isinstance(said, str) or isinstance(said, FunctionName):
        raise ConfigError(f"{where}: task {task.name!r} makes its questions by a function, or tells none; {INSTEAD}")
    try:
        named = find_undeclared_variables(Environment().parse(said))
    except (TemplateError, RecursionError) as error:
        raise ConfigError(f"{where}: the question of task {task.name!r} is no template of jinja2: {error}") from error
    return sorted(named) or [said]
