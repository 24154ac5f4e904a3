"""The table of job kinds. It refers to modules by name, and they are imported only when needed."""

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple


class JobKind(NamedTuple):
    """One kind of training job. A run has the kind of the job recorded in its config.json."""

    name: str
    """Name in messages and reports."""
    folder: str
    """The package whose `kind` module defines `KIND`."""
    job: str
    """The class of its jobs."""
    command: str
    """The `headrace` command that runs its jobs. A command's help begins with its first kind."""
    mark: str
    """The key in a job's `data` that identifies the kind."""
    value: str | None = None
    """The value that `data` must have under that key; None: any. Kinds with a value take precedence."""
    trained_on: str = "key"
    """The field in the `data` of its runs' config.json: the key of an encoded set, or shards."""
    texts: str | None = None
    """Its `trainer.data.splits.SplitTexts`, with which curation keeps evaluation texts of its jobs out of corpora."""

    @property
    def schema(self) -> Any:
        """The class of its jobs, which validates YAML files, command lines and the forms of deployments."""
        return load(self.job)

    @property
    def kind(self) -> Any:
        """Its `trainer.kinds.kind.Kind`."""
        return load(f"{self.folder}.kind.KIND")

    def is_of(self, values: Any) -> bool:
        """Whether the values of a job are of this kind."""
        data = values.get("data") if isinstance(values, Mapping) else None
        return isinstance(data, Mapping) and self.mark in data and self.value in (None, data[self.mark])


KINDS = (
    JobKind(
        "pretraining", "trainer.kinds.pretraining", "trainer.config.jobs.PipelineJob", "run", "corpora", None, "shards"
    ),
    JobKind(
        "fine-tuning",
        "trainer.kinds.labelled",
        "trainer.config.labelled.FinetuneJob",
        "finetune",
        "source",
        texts="trainer.data.labelled.examples.TEXTS",
    ),
    JobKind(
        "instruction tuning",
        "trainer.kinds.chat",
        "trainer.config.chat.ChatJob",
        "finetune",
        "task",
        "chat",
        texts="trainer.data.chat.messages.TEXTS",
    ),
    JobKind(
        "preference tuning",
        "trainer.kinds.preference",
        "trainer.kinds.preference.job.PreferenceJob",
        "finetune",
        "task",
        "preference",
        texts="trainer.data.chat.messages.PAIR_TEXTS",
    ),
)


def marked(values: Any) -> list[JobKind]:
    """The kinds that match the values of a job; the first is the job's kind."""
    return sorted((kind for kind in KINDS if kind.is_of(values)), key=lambda kind: kind.value is None)


def kind_of_run(config: Mapping[str, Any]) -> JobKind:
    """The kind of a run, from its config.json. Raises `ValueError` if the job has no kind, or the run's data does not
    match it.
    """
    found = marked(config.get("job"))
    if not found:
        marks = " nor ".join(f"`{kind.mark}` ({kind.name})" for kind in KINDS if kind.value is None)
        raise ValueError(f"job.data has neither {marks}")
    kind, data = found[0], config.get("data")
    if not isinstance(data, Mapping) or not data.get(kind.trained_on):
        raise ValueError(f"data has no `{kind.trained_on}`, which a run of {kind.name} needs")
    return kind


def kinds_read_by(command: str) -> list[JobKind]:
    """The kinds whose jobs a command runs."""
    return [kind for kind in KINDS if kind.command == command]


def load(path: str) -> Any:
    """Import `module.name` and return the attribute."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
