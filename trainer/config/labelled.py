"""The schemas of fine-tuning: labelled data, what all tuning of a pretrained model shares, the job, and that of
predicting: new texts and a finished classifier.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, Strict, model_validator

from trainer.config.evaluation import SelectionConfig
from trainer.config.files import validate_job
from trainer.config.models import TunedModelConfig
from trainer.config.runs import RunJob
from trainer.config.schema import (
    Delimiter,
    Device,
    JobName,
    Name,
    Place,
    Precision,
    Quoting,
    Schema,
    TableFormat,
    require_csv,
)
from trainer.config.training import OptimizationConfig, Schedule


class SplitsConfig(Schema):
    """Data in splits: where it is, and which files or splits of it are for training, validation and testing."""

    name: Name = Field(default="labelled", description="name of the data set, used in directory names and reports")
    source: Literal[TableFormat, "hub", "disk"] = Field(
        description="csv (also TSV), jsonl, parquet: files; hub: a data set of the Hugging Face hub; disk: a folder "
        "that `save_to_disk` wrote"
    )
    path: str | None = Field(
        default=None, description="hub: the data set's name, such as nyu-mll/glue; disk: the folder"
    )
    subset: str | None = Field(default=None, description="hub: the data set's configuration, such as mrpc")
    train: list[str] = Field(
        default=["train"],
        min_length=1,
        description="files: paths or globs, local or any fsspec URL; hub, disk: split names",
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
    group_by_length: bool = Field(
        default=True, description="batches of texts of about the same length, in a fixed order"
    )


class BatchConfig(SelectionConfig):
    """How a tuned model is measured."""

    batch: int = Field(default=16, ge=1, description="examples a forward pass")


class TuningJob(RunJob):
    """Data in splits and a pretrained model to a tuned, evaluated model."""

    data: SplitsConfig = Field(description="data in splits")
    model: TunedModelConfig = Field(description="the model to tune")
    training: FinetuneTrainingConfig = Field(description="optimisation")
    evaluation: BatchConfig = Field(default=BatchConfig(), description="measurement")

    @property
    def holds_out(self) -> bool:
        """There is always a validation split."""
        return True

    @property
    def corpora(self) -> list[str]:
        """It makes no shards."""
        return []


LABEL = "label"
"""The usual name of the column with the label."""


class LabelledDataConfig(SplitsConfig):
    """A labelled data set: where it is, and which of its columns are text, label and id."""

    delimiter: Delimiter = None
    quoting: Quoting = None
    columns: list[str] | None = Field(
        default=None, min_length=1, description="csv: names of the columns, for files without a header; a file whose "
        "first line names the text columns has one, and one without the columns of labels is without labels"
    )  # fmt: skip
    text_columns: list[str] = Field(
        min_length=1, max_length=2, description="the column with the text, or the two of a pair; task tokens: with the "
        "list of words"
    )  # fmt: skip
    label_column: str = Field(
        default=LABEL, description="the column with the label; task multi-label: with the list of labels, in csv "
        "divided by label_separator; task tokens: with the list of labels, one for each word"
    )  # fmt: skip
    label_columns: list[str] | None = Field(
        default=None, min_length=2, description="task multi-label: columns of 0 and 1, one for each class, in place of "
        "label_column"
    )  # fmt: skip
    label_separator: str | None = Field(
        default=None, min_length=1, max_length=1, description="task multi-label, csv: what divides the labels of an "
        "example; default: a comma"
    )  # fmt: skip
    id_column: str | None = Field(
        default=None,
        description="the column that names an example, in the splits that have it; default: its row number",
    )
    task: Literal["classification", "multi-label", "regression", "tokens"] = Field(
        default="classification", description="multi-label: each class applies or not; regression: one number is "
        "predicted; tokens: each word has a label"
    )  # fmt: skip
    classes: list[str] | None = Field(
        default=None, min_length=2, description="names of the classes in the order of their ids; default: as the data "
        "set names them, else the labels found in train, sorted. Integer labels are ids, unless all classes are "
        "integers; true and 1.0 are classes that are so spelt, if there are such"
    )  # fmt: skip
    max_length: int | None = Field(
        default=None,
        ge=2,
        description="tokens an example at most; default: what the tokenizer says, within the model's positions",
    )
    validation_fraction: float = Field(
        default=0.1,
        gt=0.0,
        lt=1.0,
        description="where no validation is given: share held out, chosen by a hash of the text",
    )
    max_bad_records: int = Field(default=0, ge=0, description="records of a split that may be skipped, counted")

    @model_validator(mode="after")
    def _columns_differ(self) -> Self:
        columns = [*self.text_columns, *self.columns_of_labels, *([self.id_column] if self.id_column else [])]
        if doubles := sorted({column for column in columns if columns.count(column) > 1}):
            labels = "label_columns" if self.label_columns else "label_column"
            raise ValueError(f"the column {doubles[0]!r} is named twice among text_columns, {labels} and id_column")
        return self

    @property
    def columns_of_labels(self) -> list[str]:
        """The column with the label, or those of the classes."""
        return self.label_columns or [self.label_column]

    @model_validator(mode="after")
    def _several_labels_an_example(self) -> Self:
        for name in ("label_columns", "label_separator"):
            if getattr(self, name) is not None and self.task != "multi-label":
                raise ValueError(f"{name} goes with task multi-label, not {self.task!r}")
        if self.label_separator is not None and self.source != "csv":
            raise ValueError(f"label_separator goes with source csv: {self.source!r} holds lists of labels")
        if self.label_columns is None:
            return self
        given = {
            "label_column": self.label_column != LABEL,
            "classes": self.classes,
            "label_separator": self.label_separator,
        }
        if doubled := [name for name, value in given.items() if value]:
            raise ValueError(f"label_columns name the classes themselves: leave {doubled[0]} out")
        return self

    @model_validator(mode="after")
    def _words_are_lists(self) -> Self:
        if self.task == "tokens" and self.source == "csv":
            raise ValueError(
                "task tokens needs lists of words, which source csv does not hold: take jsonl, parquet, hub or disk"
            )
        if self.task == "tokens" and len(self.text_columns) > 1:
            raise ValueError("task tokens reads one column with lists of words: name one in text_columns")
        return self

    @model_validator(mode="after")
    def _columns_hold_the_texts(self) -> Self:
        require_csv(self, "source", self.source)
        if self.columns is None:
            return self
        if doubles := sorted({column for column in self.columns if self.columns.count(column) > 1}):
            raise ValueError(f"columns names {doubles[0]!r} twice")
        if missing := [column for column in self.text_columns if column not in self.columns]:
            raise ValueError(f"columns does not name {missing[0]!r}, which is one of text_columns")
        return self

    @model_validator(mode="after")
    def _classes_classify(self) -> Self:
        if self.classes is not None and self.task == "regression":
            raise ValueError("classes do not go with task regression")
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            raise ValueError("two classes have the same name")
        return self


BALANCED: Literal["balanced"] = "balanced"


def _names_of_classes(weights: Any) -> Any:
    """Weights by the names of classes, of which YAML reads some as whole numbers."""
    if not isinstance(weights, dict):
        return weights
    return {str(name) if type(name) is int else name: weight for name, weight in weights.items()}


ClassWeights = Literal["balanced"] | dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
"""What each class counts in the loss: by its name, or so that all classes count alike."""


class ClassifierConfig(TunedModelConfig):
    """The model that is fine-tuned."""


class ClassifierTrainingConfig(FinetuneTrainingConfig):
    """The same with what is said of the classes of labelled data."""

    class_weights: Annotated[ClassWeights | None, BeforeValidator(_names_of_classes)] = Field(
        default=None,
        description="what an example, or a word, of each class counts in the loss: a weight by the class's name, 1 if "
        "not named; balanced: examples / (classes * examples of the class), or words; default: all count alike",
    )
    label_smoothing: float = Field(
        default=0.0, ge=0, lt=1, description="share of the target that is spread evenly over all classes"
    )


class MeasurementConfig(BatchConfig):
    """What a fine-tuned model is measured by."""

    batch: int = Field(default=32, ge=1, description="examples a forward pass")
    metrics: list[str] | None = Field(
        default=None,
        description="metrics by name (accuracy, f1, glue/mrpc, …), by path of an `evaluate` module, or hub:NAME for "
        "the hub's; default: those of the GLUE task where the data set is one, else accuracy and f1; subset_accuracy, "
        "f1_micro and f1_macro where several labels may apply; pearsonr and spearmanr of numbers; seqeval of labels of "
        "words that mark entities, word_accuracy of others",
    )
    positive_class: Annotated[str, Strict()] | Annotated[int, Strict()] | None = Field(
        default=None,
        description="of two classes the one that precision, recall and F1 are of, by name or id; default: 1",
    )


class FinetuneJob(TuningJob):
    """A labelled data set and a model to a fine-tuned, evaluated model."""

    name: JobName = "finetune"
    data: LabelledDataConfig = Field(description="the labelled data set")
    model: ClassifierConfig = Field(description="the model to fine-tune")
    training: ClassifierTrainingConfig = Field(description="optimisation")
    evaluation: MeasurementConfig = Field(default=MeasurementConfig(), description="measurement")

    @model_validator(mode="after")
    def _classes_to_weigh(self) -> Self:
        if self.data.task not in ("classification", "tokens"):
            for name in ("class_weights", "label_smoothing"):
                if getattr(self.training, name):
                    raise ValueError(
                        f"training.{name} goes with data.task classification or tokens, not {self.data.task}"
                    )
        return self


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
        description="what predicts: a run's name (its final model), models/NAME for a champion, a folder in the store "
        "such as runs/NAME/checkpoint-best, or any pretrained folder or name of a model that classifies texts or tokens"
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
