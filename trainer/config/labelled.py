"""Schemas of fine-tuning on labelled data, of prediction, and base schemas of all tuning of a pretrained model."""

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, Strict, model_validator

from trainer.config.evaluation import SelectionConfig
from trainer.config.files import validate_job
from trainer.config.kinds import KINDS
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
    """Data in splits: its location, and the files or splits for training, validation and testing."""

    name: Name = Field(default="labelled", description="name of the data set, used in directory names and reports")
    source: Literal[TableFormat, "hub", "disk"] = Field(
        description="csv (also TSV), jsonl, parquet: files; hub: a data set of the Hugging Face hub; disk: a folder "
        "written by `save_to_disk`"
    )
    path: str | None = Field(
        default=None, description="source hub: the data set's name, such as nyu-mll/glue; source disk: the folder"
    )
    subset: str | None = Field(default=None, description="source hub: the data set's configuration, such as mrpc")
    train: list[str] = Field(
        default=["train"],
        min_length=1,
        description="files: paths or globs, local or any fsspec URL; hub, disk: split names",
    )
    validation: list[str] | None = Field(
        default=None,
        min_length=1,
        description="the same for validation; default: the split named validation, else a share of train chosen by "
        "content",
    )
    test: list[str] | None = Field(
        default=None,
        min_length=1,
        description="the same for the test split, which is never trained on: it is predicted and, if it has labels, "
        "evaluated; default: the split named test",
    )

    @model_validator(mode="after")
    def _source_has_its_fields(self) -> Self:
        remote = self.source in ("hub", "disk")
        if remote and self.path is None:
            raise ValueError(f"source {self.source!r} needs path")
        if not remote and self.path is not None:
            raise ValueError(f"path requires source hub or disk; set the files of source {self.source!r} in train")
        if not remote and "train" not in self.model_fields_set:
            raise ValueError(f"source {self.source!r} needs train: its files")
        if self.subset is not None and self.source != "hub":
            raise ValueError("subset requires source hub")
        return self


LOCATION = {"name", "path", "subset", "train", "validation", "test"}
"""Settings of data in splits that name and locate it, but do not change how it is read."""


class FinetuneTrainingConfig(OptimizationConfig):
    """Fine-tuning, with its usual defaults."""

    learning_rate: float = Field(default=5e-5, gt=0, description="peak learning rate")
    weight_decay: float = Field(
        default=0.01, ge=0, description="decay of weight matrices; not applied to biases and norms"
    )
    beta2: float = Field(default=0.999, ge=0, lt=1, description="AdamW's decay of the gradient's square")
    max_grad_norm: float | None = Field(default=None, gt=0, description="clip the gradient's norm; null: no clipping")
    schedule: Schedule = Field(
        default="linear", description="learning-rate schedule, by its name in transformers.get_scheduler"
    )
    group_by_length: bool = Field(default=True, description="batch texts of similar length, in a fixed order")


class BatchConfig(SelectionConfig):
    """Evaluation of a tuned model."""

    batch: int = Field(default=16, ge=1, description="examples per forward pass")


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
        """Empty: the job builds no shards."""
        return []


LABEL = "label"
"""Default name of the label column."""


class LabelledDataConfig(SplitsConfig):
    """A labelled data set: its location, and its columns of text, label and id."""

    delimiter: Delimiter = None
    quoting: Quoting = None
    columns: list[str] | None = Field(
        default=None,
        min_length=1,
        description="csv: column names for files without a header. A file whose first line contains the names of the "
        "text columns has a header. A file without the label columns is unlabelled",
    )
    text_columns: list[str] = Field(
        min_length=1,
        max_length=2,
        description="the column with the text, or two columns with a pair of texts; task tokens: the column with the "
        "list of words",
    )
    label_column: str = Field(
        default=LABEL,
        description="the column with the label; task multi-label: with the list of labels, in csv separated by "
        "label_separator; task tokens: with the list of labels, one per word",
    )
    label_columns: list[str] | None = Field(
        default=None,
        min_length=2,
        description="task multi-label: columns of 0 and 1, one per class, instead of label_column",
    )
    label_separator: str | None = Field(
        default=None,
        min_length=1,
        max_length=1,
        description="task multi-label, csv: the character between the labels of an example; default: a comma",
    )
    id_column: str | None = Field(
        default=None,
        description="the column with an example's id, in the splits that have it; default: the row number",
    )
    task: Literal["classification", "multi-label", "regression", "tokens"] = Field(
        default="classification",
        description="classification: one class per text; multi-label: each class applies or not; regression: the "
        "label is a number; tokens: each word has a label",
    )
    classes: list[str] | None = Field(
        default=None,
        min_length=2,
        description="names of the classes in the order of their ids; default: the data set's own class names, else "
        "the labels found in train, sorted. Integer labels are ids, unless all class names are integers; 01 is a "
        "name; true and 1.0 are class names if classes are spelt so",
    )
    max_length: int | None = Field(
        default=None,
        ge=2,
        description="maximum tokens per example; default: the tokenizer's limit, within the model's maximum positions",
    )
    validation_fraction: float = Field(
        default=0.1,
        gt=0.0,
        lt=1.0,
        description="if validation is not set: share held out, chosen by a hash of the text",
    )
    max_bad_records: int = Field(
        default=0, ge=0, description="invalid records per split that are skipped and counted; one more is an error"
    )

    @model_validator(mode="after")
    def _columns_differ(self) -> Self:
        columns = [*self.text_columns, *self.columns_of_labels, *([self.id_column] if self.id_column else [])]
        if doubles := sorted({column for column in columns if columns.count(column) > 1}):
            labels = "label_columns" if self.label_columns else "label_column"
            raise ValueError(f"the column {doubles[0]!r} occurs twice in text_columns, {labels} and id_column")
        return self

    @property
    def columns_of_labels(self) -> list[str]:
        """The label column, or the columns of the classes."""
        return self.label_columns or [self.label_column]

    @model_validator(mode="after")
    def _several_labels_an_example(self) -> Self:
        for name in ("label_columns", "label_separator"):
            if getattr(self, name) is not None and self.task != "multi-label":
                raise ValueError(f"{name} requires task multi-label, not {self.task!r}")
        if self.label_separator is not None and self.source != "csv":
            raise ValueError(f"label_separator requires source csv: {self.source!r} holds lists of labels")
        if self.label_columns is None:
            return self
        given = {
            "label_column": self.label_column != LABEL,
            "classes": self.classes,
            "label_separator": self.label_separator,
        }
        if doubled := [name for name, value in given.items() if value]:
            raise ValueError(f"label_columns already names the classes: remove {doubled[0]}")
        return self

    @model_validator(mode="after")
    def _words_are_lists(self) -> Self:
        if self.task == "tokens" and self.source == "csv":
            raise ValueError(
                "task tokens needs lists of words, which source csv cannot hold: use jsonl, parquet, hub or disk"
            )
        if self.task == "tokens" and len(self.text_columns) > 1:
            raise ValueError("task tokens reads one column with lists of words: set one in text_columns")
        return self

    @model_validator(mode="after")
    def _columns_hold_the_texts(self) -> Self:
        require_csv(self, "source", self.source)
        if self.columns is None:
            return self
        if doubles := sorted({column for column in self.columns if self.columns.count(column) > 1}):
            raise ValueError(f"columns contains {doubles[0]!r} twice")
        if missing := [column for column in self.text_columns if column not in self.columns]:
            raise ValueError(f"columns lacks {missing[0]!r}, which is one of text_columns")
        return self

    @model_validator(mode="after")
    def _classes_classify(self) -> Self:
        if self.classes is not None and self.task == "regression":
            raise ValueError("task regression has no classes: remove classes")
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            raise ValueError("two classes have the same name")
        return self


BALANCED: Literal["balanced"] = "balanced"


def _names_of_classes(weights: Any) -> Any:
    """Convert class names that YAML read as whole numbers to text; weights for no class are none."""
    if not isinstance(weights, dict):
        return weights
    return (
        None if not weights else {str(name) if type(name) is int else name: weight for name, weight in weights.items()}
    )


ClassWeights = Literal["balanced"] | dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
"""Weight of each class in the loss, by its name, or such that all classes have equal weight."""


class ClassifierConfig(TunedModelConfig):
    """The model to fine-tune."""


class ClassifierTrainingConfig(FinetuneTrainingConfig):
    """Fine-tuning of a classifier."""

    class_weights: Annotated[ClassWeights | None, BeforeValidator(_names_of_classes)] = Field(
        default=None,
        description="weights of the classes in the loss, by class name, 1 for a class not listed; balanced: examples "
        "/ (classes * examples of the class), for task tokens with words instead of examples; default: no weights",
    )
    label_smoothing: float = Field(
        default=0.0, ge=0, lt=1, description="share of the target distributed evenly over all classes"
    )


class MeasurementConfig(BatchConfig):
    """Evaluation of a fine-tuned model."""

    batch: int = Field(default=32, ge=1, description="examples per forward pass")
    metrics: list[str] | None = Field(
        default=None,
        min_length=1,
        description="metrics: a name (accuracy, f1, glue/mrpc, …), the path of an `evaluate` module, or hub:NAME for "
        "one of the hub. Default for a GLUE data set: those of its task; for classification: accuracy and f1; "
        "multi-label: subset_accuracy, f1_micro and f1_macro; regression: pearsonr and spearmanr; tokens: seqeval if "
        "the labels mark entities, else word_accuracy",
    )
    positive_class: Annotated[str, Strict()] | Annotated[int, Strict()] | None = Field(
        default=None,
        description="with two classes: the class that precision, recall and F1 refer to, by name or id; default: 1",
    )


class FinetuneJob(TuningJob):
    """A labelled data set and a model to a fine-tuned, evaluated model."""

    name: JobName = "finetune"
    data: LabelledDataConfig = Field(description="the labelled data set")
    model: ClassifierConfig = Field(description="the model to fine-tune")
    training: ClassifierTrainingConfig = Field(description="optimisation")
    evaluation: MeasurementConfig = Field(default=MeasurementConfig(), description="measurement")

    @model_validator(mode="before")
    @classmethod
    def _is_labelled(cls, values: Any) -> Any:
        """Raise `ValueError` alone for a job of another kind whose task is missing or misspelt."""
        if isinstance(values, dict) and isinstance(data := values.get("data"), dict):
            known = get_args(LabelledDataConfig.model_fields["task"].annotation)
            others = [kind.value for kind in KINDS if kind.value is not None]
            if isinstance(task := data.get("task"), str) and task not in known:
                raise ValueError(f"data.task is {task!r}; expected one of {', '.join([*known, *others])}")
            if foreign := sorted({"chat_template", "context", "packing"}.intersection(data)):
                raise ValueError(f"data.{foreign[0]} requires data.task {' or '.join(others)}")
        return values

    @model_validator(mode="after")
    def _classes_to_weigh(self) -> Self:
        if self.data.task not in ("classification", "tokens"):
            for name in ("class_weights", "label_smoothing"):
                if getattr(self.training, name):
                    raise ValueError(
                        f"training.{name} requires data.task classification or tokens, not {self.data.task}"
                    )
        return self


NO_COLUMN = "\0"
"""Label column of data without labels; no file has a column of this name."""


class NewTextsConfig(Schema):
    """Files with texts to classify; labels are ignored."""

    source: TableFormat = Field(description="file format: csv (also TSV), jsonl or parquet")
    paths: list[str] = Field(
        min_length=1, description="files or globs (** includes subfolders), local or any fsspec URL"
    )
    delimiter: Delimiter = None
    quoting: Quoting = None
    columns: list[str] | None = Field(
        default=None,
        min_length=1,
        description="csv: column names for files without a header. A file whose first line contains the names of the "
        "text columns has a header",
    )
    text_columns: list[str] | None = Field(
        default=None,
        min_length=1,
        max_length=2,
        description="the column with the text, or two columns with a pair of texts; for a token classifier: the "
        "column with the list of words; default: as in the model's training",
    )
    id_column: str | None = Field(default=None, description="the column with a text's id; default: the row number")
    max_length: int | None = Field(
        default=None,
        ge=2,
        description="maximum tokens per text or pair; default: the tokenizer's limit, within the model's positions",
    )
    max_bad_records: int = Field(
        default=0, ge=0, description="invalid records that are skipped and counted; one more is an error"
    )

    @model_validator(mode="after")
    def _columns_differ(self) -> Self:
        require_csv(self, "source", self.source)
        columns = [*(self.text_columns or []), *([self.id_column] if self.id_column else [])]
        if doubles := sorted({column for column in columns if columns.count(column) > 1}):
            raise ValueError(f"the column {doubles[0]!r} occurs twice in text_columns and id_column")
        return self


class PredictJob(Schema):
    """Predictions of a finished classifier for new texts."""

    store: Place
    name: Name = Field(default="texts", description="name of the texts, used in the names of the results")
    model: str = Field(
        description="the classifier: a run's name (its final model), models/NAME for a champion, a folder in the store "
        "such as runs/NAME/checkpoint-best, or the folder or name of any pretrained classifier of texts or tokens"
    )
    data: NewTextsConfig = Field(description="the new texts")
    batch: int = Field(default=32, ge=1, description="texts per forward pass on one rank")
    precision: Precision = "fp32"
    device: Device = "auto"
    processes: int = Field(default=1, ge=1, description="ranks to start on this machine, such as one per GPU")


def as_labelled(job: PredictJob, text_columns: list[str], by_words: bool = False) -> LabelledDataConfig:
    """The texts, or lists of words, as labelled data without labels, for the readers of labelled files."""
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
