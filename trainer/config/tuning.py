"""What jobs share that tune a pretrained model: data in splits, the usual optimisation, and what such a job has."""

from typing import Literal, Self

from pydantic import Field, model_validator

from trainer.config.models import TunedModelConfig
from trainer.config.optimization import OptimizationConfig, Schedule
from trainer.config.runs import RunJob
from trainer.config.schema import Name, Schema


class SplitsConfig(Schema):
    """Data in splits: where it is, and which files or splits of it are for training, validation and testing."""

    name: Name = Field(default="labelled", description="name of the data set, used in directory names and reports")
    source: Literal["csv", "jsonl", "parquet", "hub", "disk"] = Field(
        description="csv (also TSV), jsonl, parquet: files; hub: a data set of the Hugging Face hub; disk: a folder that "
        "`save_to_disk` wrote"
    )
    path: str | None = Field(default=None, description="hub: the data set's name, such as nyu-mll/glue; disk: the folder")
    subset: str | None = Field(default=None, description="hub: the data set's configuration, such as mrpc")
    train: list[str] = Field(
        default=["train"], min_length=1, description="files: paths or globs, local or any fsspec URL; hub, disk: split names"
    )
    validation: list[str] | None = Field(
        default=None,
        min_length=1,
        description="the same for validation; default: the split of that name, else cut from train by content",
    )
    test: list[str] | None = Field(
        default=None,
        min_length=1,
        description="the same for what is only predicted, labelled or not; default: the split of that name",
    )

    @model_validator(mode="after")
    def _source_has_its_fields(self) -> Self:
        remote = self.source in ("hub", "disk")
        if remote and self.path is None:
            raise ValueError(f"source {self.source!r} needs path")
        if not remote and self.path is not None:
            raise ValueError(f"path goes with source hub or disk; the files of source {self.source!r} stand in train")
        if not remote and "train" not in self.model_fields_set:
            raise ValueError(f"source {self.source!r} needs train: its files")
        if self.subset is not None and self.source != "hub":
            raise ValueError("subset goes with source hub")
        return self


class FinetuneTrainingConfig(OptimizationConfig):
    """Fine-tuning, with the defaults that are usual for it."""

    learning_rate: float = Field(default=5e-5, gt=0, description="peak learning rate")
    weight_decay: float = Field(default=0.01, ge=0, description="decay of weight matrices; biases and norms are spared")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="AdamW's decay of the gradient's square")
    max_grad_norm: float | None = Field(default=None, gt=0, description="clip the gradient's norm; null: no clipping")
    schedule: Schedule = Field(
        default="linear", description="learning-rate schedule, by its name in transformers.get_scheduler"
    )
    group_by_length: bool = Field(default=True, description="batches of texts of about the same length, in a fixed order")


class TuningJob(RunJob):
    """Data in splits and a pretrained model to a tuned, evaluated model."""

    data: SplitsConfig = Field(description="data in splits")
    model: TunedModelConfig = Field(description="the model to tune")
    training: FinetuneTrainingConfig = Field(description="optimisation")

    @property
    def holds_out(self) -> bool:
        """There is always a validation split."""
        return True

    @property
    def corpora(self) -> list[str]:
        """It makes no shards."""
        return []
