"""The schema of predicting: new texts and a finished classifier, no training."""

from typing import Self

from pydantic import Field, model_validator

from trainer.config.files import validate_job
from trainer.config.labelled import LabelledDataConfig
from trainer.config.schema import Delimiter, Device, Name, Place, Precision, Quoting, Schema, TableFormat, require_csv

NO_COLUMN = "\0"
"""Stands for the label column where there is none: no file has a column of this name."""


class NewTextsConfig(Schema):
    """Files with texts that have no label, or whose label is not looked at."""

    source: TableFormat = Field(description="what kind of files: csv (also TSV), jsonl or parquet")
    paths: list[str] = Field(min_length=1, description="files or globs (** goes into folders), local or any fsspec URL")
    delimiter: Delimiter = None
    quoting: Quoting = None
    columns: list[str] | None = Field(
        default=None, min_length=1, description="csv: names of the columns, for files without a header; a file whose "
        "first line names the text columns has one"
    )  # fmt: skip
    text_columns: list[str] | None = Field(
        default=None,
        min_length=1,
        max_length=2,
        description="the column with the text, or the two of a pair, or the list of words of a model that classifies "
        "tokens; default: as the run that made the model was trained",
    )
    id_column: str | None = Field(default=None, description="the column that names a text; default: its row number")
    max_length: int | None = Field(
        default=None, ge=2, description="tokens a text or pair at most; default: as the model's tokenizer says"
    )
    max_bad_records: int = Field(
        default=0, ge=0, description="records that may be skipped, counted, before it is an error"
    )

    @model_validator(mode="after")
    def _columns_differ(self) -> Self:
        require_csv(self, "source", self.source)
        columns = [*(self.text_columns or []), *([self.id_column] if self.id_column else [])]
        if doubles := sorted({column for column in columns if columns.count(column) > 1}):
            raise ValueError(f"the column {doubles[0]!r} is named twice among text_columns and id_column")
        return self


class PredictJob(Schema):
    """New texts and a finished classifier to predictions."""

    store: Place
    name: Name = Field(default="texts", description="name of the texts, used in the name of what is written")
    model: str = Field(
        description="what predicts: a run's name (its final model), models/NAME/champion, a folder in the store such "
        "as runs/NAME/checkpoint-best, or any pretrained folder or name of a model that classifies texts or tokens"
    )
    data: NewTextsConfig = Field(description="the new texts")
    batch: int = Field(default=32, ge=1, description="texts a forward pass on one rank")
    precision: Precision = "fp32"
    device: Device = "auto"
    processes: int = Field(default=1, ge=1, description="ranks the pipeline starts on this machine, such as one a GPU")


def as_labelled(job: PredictJob, text_columns: list[str], by_words: bool = False) -> LabelledDataConfig:
    """The texts, or lists of words, as labelled data without a label, which the readers of labelled files read."""
    data = job.data
    values = {
        "name": job.name,
        "train": data.paths,
        "text_columns": text_columns,
        "label_column": NO_COLUMN,
        **({"task": "tokens"} if by_words else {}),
        **data.model_dump(exclude={"paths", "text_columns"}),
    }
    return validate_job(LabelledDataConfig, values, "data")
