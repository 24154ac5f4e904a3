"""Which configuration each command reads. Loads the schemas, and nothing more."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, get_origin

if TYPE_CHECKING:
    from pydantic import BaseModel

TITLE = "fields of the configuration"


def schema_of(command: str) -> "dict[str, type[BaseModel]]":
    """What a command reads: its schema, under a title; those of both kinds of training for `explain`."""
    from trainer.config.finetuning import FinetuneJob
    from trainer.config.jobs import EvaluateJob, PipelineJob, PrepareJob, PromoteJob, RollbackJob
    from trainer.config.predicting import PredictJob

    read: dict[str, dict[str, type[BaseModel]]] = {
        "run": {TITLE: PipelineJob},
        "train": {TITLE: PipelineJob},
        "prepare": {TITLE: PrepareJob},
        "finetune": {TITLE: FinetuneJob},
        "evaluate": {TITLE: EvaluateJob},
        "predict": {TITLE: PredictJob},
        "promote": {TITLE: PromoteJob},
        "rollback": {TITLE: RollbackJob},
        "explain": {"fields for corpora": PipelineJob, "fields for labelled data": FinetuneJob},
    }
    return read[command]


def fields_of(command: str) -> list[str]:
    """The paths of all settings that a command's configuration may hold."""
    return sorted({path for schema in schema_of(command).values() for path in _paths(schema, "")})


def _paths(schema: "type[BaseModel]", prefix: str) -> Iterator[str]:
    """Those of one schema; of a list of settings, its first entry's."""
    from trainer.config.problems import schemas_in

    for name, field in schema.model_fields.items():
        path = f"{prefix}{name}"
        for nested in (inside := schemas_in(field.annotation)):
            yield from _paths(nested, f"{path}.0." if get_origin(field.annotation) is list else f"{path}.")
        if not inside:
            yield path
