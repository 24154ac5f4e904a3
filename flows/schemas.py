"""Which configuration each command reads. Loads the schemas, and nothing more."""

from typing import TYPE_CHECKING

from flows import RUNNING

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


def reader_of(schema: "type[BaseModel]") -> str:
    """The command that reads a schema's files: the first in the order of the help, where several do."""
    return next(command for command in RUNNING if schema in schema_of(command).values())
