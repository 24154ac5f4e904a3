"""The schema of labelled data: texts, and what is told of each."""

from typing import Literal, Self

from pydantic import Field, model_validator

from trainer.config.corpora import QUOTING
from trainer.config.tuning import SplitsConfig

LABEL = "label"
"""The usual name of the column with the label."""


class LabelledDataConfig(SplitsConfig):
    """A labelled data set: where it is, and which of its columns are text, label and id."""

    delimiter: str | None = Field(
        default=None, min_length=1, max_length=1, description="csv: default is a tab for .tsv files, else a comma"
    )
    quoting: bool | None = Field(default=None, description=QUOTING)
    columns: list[str] | None = Field(
        default=None, min_length=1, description="csv: names of the columns, for files without a header; a file whose first "
        "line names the text columns has one, and one without the columns of labels is without labels"
    )  # fmt: skip
    text_columns: list[str] = Field(
        min_length=1, max_length=2, description="the column with the text, or the two of a pair; task tokens: with the list of "
        "words"
    )  # fmt: skip
    label_column: str = Field(
        default=LABEL, description="the column with the label; task multi-label: with the list of labels, in csv divided by "
        "label_separator; task tokens: with the list of labels, one for each word"
    )  # fmt: skip
    label_columns: list[str] | None = Field(
        default=None, min_length=2, description="task multi-label: columns of 0 and 1, one for each class, in place of "
        "label_column"
    )  # fmt: skip
    label_separator: str | None = Field(
        default=None, min_length=1, max_length=1, description="task multi-label, csv: what divides the labels of an example; "
        "default: a comma"
    )  # fmt: skip
    id_column: str | None = Field(
        default=None, description="the column that names an example, in the splits that have it; default: its row number"
    )
    task: Literal["classification", "multi-label", "regression", "tokens"] = Field(
        default="classification", description="multi-label: each class applies or not; regression: one number is predicted; "
        "tokens: each word has a label"
    )  # fmt: skip
    classes: list[str] | None = Field(
        default=None, min_length=2, description="names of the classes in the order of their ids; default: as the data set "
        "names them, else the labels found in train, sorted. Integer labels are ids, unless all classes are integers"
    )  # fmt: skip
    max_length: int | None = Field(
        default=None,
        ge=2,
        description="tokens an example at most; default: what the tokenizer says, within the model's positions",
    )
    validation_fraction: float = Field(
        default=0.1, gt=0.0, lt=1.0, description="where no validation is given: share held out, chosen by a hash of the text"
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
        given = {"label_column": self.label_column != LABEL, "classes": self.classes, "label_separator": self.label_separator}
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
        if self.columns is None:
            return self
        if self.source != "csv":
            raise ValueError("columns goes with source csv")
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
