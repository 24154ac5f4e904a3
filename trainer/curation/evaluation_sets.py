"""Evaluation sets that must not be trained on: which files they are of, lm-eval's tasks too, and their texts.

Those of a job are read as that job reads them: what it passes over is not looked for, and what it refuses is refused
here.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

from jinja2 import Environment, TemplateError
from jinja2.meta import find_undeclared_variables

from trainer.common.errors import ChangedFile, ConfigError, CorpusError
from trainer.config.corpora import CorpusConfig
from trainer.config.curation import DecontaminateConfig, EvaluationText, TransformConfig
from trainer.config.files import read_values, validate_job
from trainer.config.harness_files import FunctionName, LocalTask, data_files, leaves, task_of_file, tasks_below
from trainer.config.kinds import KINDS, load, marked
from trainer.config.labelled import SplitsConfig, TuningJob
from trainer.config.schema import TableFormat
from trainer.data.decisions import transformed
from trainer.data.pieces import Piece, RawFile
from trainer.data.readers import Document, read_documents, refuse
from trainer.data.sources import find_pieces, tell_records_as_text
from trainer.data.splits import TEST, TRAIN, VALIDATION, Part, SplitTexts, fetch_part
from trainer.store.storage import Store

FORMAT_OF_DATASET: dict[str, Literal[TableFormat, "lines"]] = {
    "json": "jsonl", "csv": "csv", "parquet": "parquet", "text": "lines",
}  # fmt: skip
"""The `dataset_path` of tasks whose files can be read as those of a corpus."""

QUERIES = ("doc_to_decontamination_query", "doc_to_text")
"""What a task says of the text to look for: its own word for that, or else its question."""

FILE_OPTIONS = {"data_files", "data_dir"}
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
        raise ConfigError(
            f"{where}: it names the task {name!r}, which no file beside it tells; name the tasks one by one"
        )
    return task


def _text_of(task: LocalTask, where: str) -> EvaluationText:
    source, how = str(task.settings.get("dataset_path")), task.settings.get("dataset_kwargs") or {}
    if source not in FORMAT_OF_DATASET:
        raise ConfigError(
            f"{where}: task {task.name!r} reads {source!r}, which is no file of {', '.join(FORMAT_OF_DATASET)}; write "
            "its questions to a file, and name that in decontaminate.files"
        )
    if further := sorted(how.keys() - FILE_OPTIONS):
        raise ConfigError(f"{where}: task {task.name!r} reads its files by {', '.join(further)}; {INSTEAD}")
    paths = [pattern for pattern, asked in data_files(task, where) if asked]
    if not paths:
        raise ConfigError(
            f"{where}: no file of task {task.name!r} is of the split {task.asked!r}, which it asks; {INSTEAD}"
        )
    return EvaluationText(paths=paths, format=FORMAT_OF_DATASET[source], fields=question_fields(task, where))


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


PLACES = {"name", "path", "subset", "train", "validation", "test"}
"""Of a job's data what says where it is, not how it is read."""

MADE = {"max_length", "validation_fraction", "chat_template", "context", "packing"}
"""What says what is made of its texts."""


@dataclass(frozen=True)
class OfJob:
    """Files of a job that tunes a model: by split, of the data that it reads them as, which the configuration `path`
    holds.
    """

    path: str
    data: SplitsConfig
    texts: SplitTexts
    splits: dict[str, list[Piece]]

    def reading(self) -> dict[str, Any]:
        """How records are read besides what every reader of such files does; nothing where each must have a text."""
        return {} if self.texts.plain(self.data) else self.data.model_dump(mode="json", exclude=PLACES | MADE)


class EvaluationSet(NamedTuple):
    """Files of an evaluation set and one field of them that holds text."""

    corpus: CorpusConfig
    pieces: list[Piece]
    job: OfJob | None = None


class Example(NamedTuple):
    """A text of an evaluation set, in UTF-8, and its record: of which of the set's files, and its number there, from
    0.
    """

    text: bytes
    file: int
    number: int


def find_evaluation(store: Store, options: DecontaminateConfig) -> list[EvaluationSet]:
    """The files of the evaluation sets, once for each field that holds text.

    Raises `ConfigError` for data in no file, and `CorpusError` if files are missing.
    """
    found: list[EvaluationSet] = []
    try:
        for text in options.files:
            found += _of_files(store, text, f"evaluation-{len(found)}")
        for path in options.jobs:
            found += _of_job(store, path, f"evaluation-{len(found)}")
        for text in (text for path in options.tasks for text in of_task(path)):
            found += _of_files(store, text, f"evaluation-{len(found)}")
    except CorpusError as error:
        raise CorpusError(f"data.curation.decontaminate: {error}") from error
    return found


def read_examples(found: EvaluationSet, transform: TransformConfig | None) -> Iterator[Example]:
    """The texts of a set, transformed as documents are; empty ones are left out. Raises as readers, or the job's own,
    do.
    """
    for file, number, document in _read_files(found) if found.job is None else _read_job(found, found.job):
        if document.text:
            yield Example((transformed(transform, document) if transform else document).text, file, number)


def _of_files(store: Store, text: EvaluationText, name: str) -> Iterator[EvaluationSet]:
    tell_records_as_text("data.curation.decontaminate.files", text.format, text.paths)
    for field in text.fields:
        corpus = _corpus(name, text, field)
        yield EvaluationSet(corpus, find_pieces(store, corpus, sys.maxsize))


def _of_job(store: Store, path: str, name: str) -> Iterator[EvaluationSet]:
    """What a job measures its model on: validation and test; all of train if validation is cut from it."""
    data, texts = _data_of(path)
    where = f"data.curation.decontaminate.jobs: {path}"
    if data.source in ("hub", "disk"):
        raise ConfigError(f"{where}: its data is of source {data.source}; name files of it in decontaminate.files")
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
        yield EvaluationSet(_corpus(name, text, field), pieces, OfJob(path, data, texts, splits))


def _data_of(path: str) -> tuple[SplitsConfig, SplitTexts]:
    """The data of the job that a file holds, and how its texts are read."""
    kinds = [kind for kind in KINDS if kind.texts is not None]
    values = read_values(path, (), [kind.schema for kind in kinds])
    kind = next(iter(marked(values)), kinds[0])
    if kind.texts is None:
        raise ConfigError(
            f"data.curation.decontaminate.jobs: {path}: it is of the kind {kind.name}; expected is one of "
            f"{', '.join(each.name for each in kinds)}; name its files and fields in decontaminate.files"
        )
    job: TuningJob = validate_job(kind.schema, values, path)
    return job.data, load(kind.texts)


def _corpus(name: str, text: EvaluationText, field: str) -> CorpusConfig:
    return CorpusConfig(name=name, text_field=field, **text.model_dump(exclude={"fields"}))


def _read_files(found: EvaluationSet) -> Iterator[tuple[int, int, Document]]:
    """The texts of a set, each with the numbers of its file and of its record there, of which empty ones are some
    too.
    """
    for file, piece in enumerate(found.pieces):
        for number, document in enumerate(_whole(read_documents(piece, found.corpus, refuse, with_empty=True))):
            yield file, number, document


def _read_job(found: EvaluationSet, job: OfJob) -> Iterator[tuple[int, int, Document]]:
    """The same of a job's set; those of a file that is of several splits once."""
    files = {piece.path: file for file, piece in enumerate(found.pieces)}
    known: set[str] = set()
    with TemporaryDirectory(prefix="headrace-") as folder:
        try:
            for split, pieces in job.splits.items():
                # Whole files; of Parquet, the digest stands before the numbers of row groups.
                raw = [RawFile(piece.path, piece.path, piece.sha256.partition(":")[0]) for piece in pieces]
                parts = [fetch_part(Part(file.path, file.path, files=(file,)), Path(folder)) for file in raw]
                for part, number, text in job.texts.read(job.data, split, parts, found.corpus.text_field):
                    if (path := parts[part].name) not in known:
                        yield files[path], number, Document(text.encode(), ends=True)
                known |= {part.name for part in parts}
        except ChangedFile:
            raise
        except CorpusError as error:
            raise type(error)(f"data.curation.decontaminate.jobs: {job.path}: {error}", error.transient) from error


def _whole(documents: Iterable[Document]) -> Iterator[Document]:
    """Documents whose parts are put together again."""
    parts: list[bytes] = []
    for document in documents:
        parts.append(document.text)
        if document.ends:
            yield document._replace(text=b"".join(parts))
            parts.clear()
