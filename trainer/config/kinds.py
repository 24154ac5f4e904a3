"""The kinds of job, a line each, by names: what is named here is loaded when it is asked for."""

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple


class JobKind(NamedTuple):
    """One kind of job that trains. Runs record their job, so a run is of the kind that its job is of."""

    name: str
    """As people read it."""
    folder: str
    """The package whose `kind` module has the `KIND`."""
    job: str
    """The class of its jobs."""
    command: str
    """The command of `headrace` that reads its jobs; the first of a command is the one that its help begins with."""
    mark: str
    """The key of a job's `data` by which the kind is seen."""
    value: str | None = None
    """What `data` has under that key, if that tells the kind; such a mark goes before those of keys alone."""
    trained_on: str = "key"
    """The field of config.json's `data` that its runs have: the key of an encoded set, or shards."""
    texts: str | None = None
    """Its `trainer.data.splits.SplitTexts`: curation keeps out of a corpus what its jobs measure a model on."""

    @property
    def schema(self) -> Any:
        """The class of its jobs: it validates the YAML file, the command line and a deployment's form."""
        return load(self.job)

    @property
    def kind(self) -> Any:
        """Its `trainer.kinds.kind.Kind`."""
        return load(f"{self.folder}.kind.KIND")

    def is_of(self, values: Any) -> bool:
        """Whether the values of a job have its mark."""
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
"""The table of kinds."""


def marked(values: Any) -> list[JobKind]:
    """The kinds whose mark the values of a job have; it is of the first."""
    return sorted((kind for kind in KINDS if kind.is_of(values)), key=lambda kind: kind.value is None)


def kind_of_run(config: Mapping[str, Any]) -> JobKind:
    """The kind of the run whose config.json this is. Raises `ValueError` if its job is that of none, or its data is not
    what a run of that kind is trained on.
    """
    found = marked(config.get("job"))
    if not found:
        marks = " nor ".join(f"`{kind.mark}` ({kind.name})" for kind in KINDS if kind.value is None)
        raise ValueError(f"job.data names neither {marks}")
    kind, data = found[0], config.get("data")
    if not isinstance(data, Mapping) or not data.get(kind.trained_on):
        raise ValueError(f"data names no `{kind.trained_on}`, which a run of {kind.name} has")
    return kind


def kinds_read_by(command: str) -> list[JobKind]:
    """The kinds whose jobs a command reads."""
    return [kind for kind in KINDS if kind.command == command]


def load(path: str) -> Any:
    """What a module has under a name, of `module.name`."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
