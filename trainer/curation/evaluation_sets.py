"""Evaluation sets that are kept out of training: their files, also those of lm-eval's tasks, and their texts.

A job's files are read as that job reads them: records that it skips are not searched for, and records that it refuses
raise here too.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from jinja2 import Environment, TemplateError
from jinja2.meta import find_undeclared_variables

from trainer.common.errors import ChangedFile, ConfigError, CorpusError
from trainer.common.temporary import temporary_folder
from trainer.config.corpora import CorpusConfig
from trainer.config.curation import DecontaminateConfig, EvaluationText, TransformConfig
from trainer.config.files import read_values, validate_job
from trainer.config.harness_files import FunctionName, LocalTask, data_files, leaves, task_of_file, tasks_below
from trainer.config.kinds import KINDS, load, marked
from trainer.config.labelled import LOCATION, SplitsConfig, TuningJob
from trainer.config.schema import TableFormat
from trainer.data.decisions import transformed
from trainer.data.pieces import Piece, RawFile
from trainer.data.readers import Document, read_documents, refuse
from trainer.data.sources import find_pieces, warn_of_records_as_text
from trainer.data.splits import TEST, TRAIN, VALIDATION, Part, SplitTexts, fetch_part
from trainer.store.storage import Store

FORMAT_OF_DATASET: dict[str, Literal[TableFormat, "lines"]] = {
    "json": "jsonl", "csv": "csv", "parquet": "parquet", "text": "lines",
}  # fmt: skip
"""The `dataset_path` of tasks whose files can be read like those of a corpus."""

QUERIES = ("doc_to_decontamination_query", "doc_to_text")
"""A task's settings for the text to search for: its own setting for that, else its question."""

FILE_OPTIONS = {"data_files", "data_dir"}
"""The `dataset_kwargs` that locate files; others change how they are read."""

INSTEAD = "list its files and fields in decontaminate.files"


def of_task(path: str) -> list[EvaluationText]:
    """The questions of the tasks in a YAML file. Raises `ConfigError` unless they are in fields of local files."""
    where = f"data.curation.decontaminate.tasks: {path}"
    task = task_of_file(Path(path), where)
    tasks = {task.name: task}
    if task.members:
        found = leaves(task.name, {**tasks_below(Path(path).parent, where), **tasks})
        tasks = {name: _there(name, each, where) for name, each in found}
    return [_text_of(each, where) for each in tasks.values()]


def _there(name: str, task: LocalTask | None, where: str) -> LocalTask:
    if task is None:
        raise ConfigError(
            f"{where}: it lists the task {name!r}, which no file beside it defines; list the tasks one by one"
        )
    return task


def _text_of(task: LocalTask, where: str) -> EvaluationText:
    source, how = str(task.settings.get("dataset_path")), task.settings.get("dataset_kwargs") or {}
    if source not in FORMAT_OF_DATASET:
        raise ConfigError(
            f"{where}: task {task.name!r} reads {source!r}, expected one of {', '.join(FORMAT_OF_DATASET)}; write its "
            "questions to a file, and list that in decontaminate.files"
        )
    if further := sorted(how.keys() - FILE_OPTIONS):
        raise ConfigError(f"{where}: task {task.name!r} reads its files with {', '.join(further)}; {INSTEAD}")
    paths = [pattern for pattern, is_asked in data_files(task, where) if is_asked]
    if not paths:
        raise ConfigError(
            f"{where}: task {task.name!r} asks the split {task.evaluated_split!r}, which has no file; {INSTEAD}"
        )
    return EvaluationText(paths=paths, format=FORMAT_OF_DATASET[source], fields=question_fields(task, where))


def question_fields(task: LocalTask, where: str) -> list[str]:
    """The fields of the text to search for: the one that the task specifies, or those of its template.

    Raises `ConfigError` if a function or a prompt builds the questions, or if the task specifies none.
    """
    queries = QUERIES[:1] if task.settings.get("use_prompt") else QUERIES  # lm-eval asks the prompt's question instead
    asked: Any = next((task.settings[query] for query in queries if task.settings.get(query)), None)
    if not isinstance(asked, str) or isinstance(asked, FunctionName):
        raise ConfigError(
            f"{where}: task {task.name!r} builds its questions by a function or a prompt, or has none; {INSTEAD}"
        )
    try:
        named = find_undeclared_variables(Environment().parse(asked))
    except (TemplateError, RecursionError) as error:
        raise ConfigError(f"{where}: the question of task {task.name!r} is not a jinja2 template: {error}") from error
    return sorted(named) or [asked]


MADE = {"max_length", "validation_fraction", "chat_template", "context", "packing"}
"""Settings that apply to its texts after reading. All other settings change how records are read."""


@dataclass(frozen=True)
class OfJob:
    """Files of a tuning job, by split, and the data settings of its configuration, with which they are read."""

    data: SplitsConfig
    texts: SplitTexts
    splits: dict[str, list[Piece]]

    def reading(self) -> dict[str, Any]:
        """How the job reads records differently from every other reader of such files; {} if it does not."""
        if self.texts.plain(self.data):
            return {}
        order = {split: [piece.sha256 for piece in pieces] for split, pieces in self.splits.items()}
        matters = self.texts.in_order(self.data) and any(len(files) > 1 for files in order.values())
        how = self.data.model_dump(mode="json", exclude={*LOCATION, *MADE})
        return {**how, "files": order} if matters else how


class EvaluationFiles(CorpusConfig):
    """Files of an evaluation set, read like those of a corpus."""

    named_by: ClassVar[str] = "; specify the fields that hold its text"


class EvaluationSet(NamedTuple):
    """Files of an evaluation set, and one of their fields that holds text; `where` and `remedy` are for messages."""

    corpus: CorpusConfig
    pieces: list[Piece]
    where: str
    remedy: str = ""
    job: OfJob | None = None


class Example(NamedTuple):
    """A text of an evaluation set, in UTF-8, the index of its file in the set, and of its record there; from 0."""

    text: bytes
    file: int
    number: int


def find_evaluation(store: Store, options: DecontaminateConfig) -> list[EvaluationSet]:
    """The files of the evaluation sets, once for each field that holds text.

    Raises `ConfigError` for data that is not in files, and `CorpusError` for missing files.
    """
    found: list[EvaluationSet] = []
    try:
        for text in options.files:
            found += _of_files(store, text, f"evaluation-{len(found)}", "data.curation.decontaminate.files")
        for path in options.jobs:
            found += _of_job(store, path, f"evaluation-{len(found)}")
        for path in options.tasks:
            for text in of_task(path):
                found += _of_files(
                    store,
                    text,
                    f"evaluation-{len(found)}",
                    f"data.curation.decontaminate.tasks: {path}",
                    f"; {INSTEAD}",
                )
    except CorpusError as error:
        raise CorpusError(f"data.curation.decontaminate: {error}") from error
    return found


def read_examples(found: EvaluationSet, transform: TransformConfig | None) -> Iterator[Example]:
    """The nonempty texts of a set, transformed like documents; raises what the readers, or the job's own, raise."""
    try:
        for file, number, document in _read_files(found) if found.job is None else _read_job(found, found.job):
            if document.text:
                yield Example((transformed(transform, document) if transform else document).text, file, number)
    except ChangedFile:
        raise
    except CorpusError as error:
        raise type(error)(f"{found.where}: {error}{found.remedy}", error.transient) from error


def _of_files(store: Store, text: EvaluationText, name: str, where: str, remedy: str = "") -> Iterator[EvaluationSet]:
    warn_of_records_as_text("data.curation.decontaminate.files", text.format, text.paths)
    for field in text.fields:
        corpus = _corpus(name, text, field)
        yield EvaluationSet(corpus, find_pieces(store, corpus, sys.maxsize), where, remedy)


def _of_job(store: Store, path: str, name: str) -> Iterator[EvaluationSet]:
    """A job's validation and test data; all of train if validation is cut from it."""
    data, texts = _data_of(path)
    where = f"data.curation.decontaminate.jobs: {path}"
    if data.source in ("hub", "disk"):
        raise ConfigError(f"{where}: its data has source {data.source}; list its files in decontaminate.files")
    of_split = {VALIDATION if data.validation else TRAIN: data.validation or data.train, TEST: data.test or []}
    how = data.model_dump(include={"delimiter", "quoting"})
    options: dict[str, Any] = {"format": data.source, "fields": texts.fields(data), **how}
    splits: dict[str, list[Piece]] = {}
    for split, paths in of_split.items():
        if paths:
            corpus = _corpus(f"{name}-{split}", EvaluationText(paths=paths, **options), options["fields"][0])
            splits[split] = find_pieces(store, corpus, sys.maxsize)
    text = EvaluationText(paths=[each for paths in of_split.values() for each in paths], **options)
    pieces = list({piece.path: piece for each in splits.values() for piece in each}.values())
    for field in text.fields:
        yield EvaluationSet(_corpus(name, text, field), pieces, where, job=OfJob(data, texts, splits))


def _data_of(path: str) -> tuple[SplitsConfig, SplitTexts]:
    """The data of the job in a configuration file, and how its texts are read."""
    kinds = [kind for kind in KINDS if kind.texts is not None]
    values = read_values(path, (), [kind.schema for kind in kinds])
    kind = next(iter(marked(values)), kinds[0])
    if kind.texts is None:
        raise ConfigError(
            f"data.curation.decontaminate.jobs: {path}: its kind is {kind.name}, expected one of "
            f"{', '.join(each.name for each in kinds)}; list its files and fields in decontaminate.files"
        )
    job: TuningJob = validate_job(kind.schema, values, path)
    return job.data, load(kind.texts)


def _corpus(name: str, text: EvaluationText, field: str) -> CorpusConfig:
    return EvaluationFiles(name=name, text_field=field, **text.model_dump(exclude={"fields"}))


def _read_files(found: EvaluationSet) -> Iterator[tuple[int, int, Document]]:
    """The texts of a set, also empty ones, each with the index of its file and of its record there."""
    for file, piece in enumerate(found.pieces):
        for number, document in enumerate(_whole(read_documents(piece, found.corpus, refuse, with_empty=True))):
            yield file, number, document


def _read_job(found: EvaluationSet, job: OfJob) -> Iterator[tuple[int, int, Document]]:
    """The same for a job's set; a file in several splits is read once."""
    files = {piece.path: file for file, piece in enumerate(found.pieces)}
    known: set[str] = set()
    with temporary_folder() as folder:
        for split, pieces in job.splits.items():
            # Whole files; for Parquet, the digest comes before the numbers of row groups.
            raw = [RawFile(piece.path, piece.path, piece.sha256.partition(":")[0]) for piece in pieces]
            parts = [fetch_part(Part(file.path, file.path, files=(file,)), Path(folder)) for file in raw]
            for part, number, text in job.texts.read(job.data, split, parts, found.corpus.text_field):
                if (path := parts[part].name) not in known:
                    yield files[path], number, Document(text.encode(), ends=True)
            known |= {part.name for part in parts}


def _whole(documents: Iterable[Document]) -> Iterator[Document]:
    """Documents, each joined from its parts."""
    parts: list[bytes] = []
    for document in documents:
        parts.append(document.text)
        if document.ends:
            yield document._replace(text=b"".join(parts))
            parts.clear()
