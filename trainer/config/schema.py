"""Base class of all schemas, shared field types, and inspection of the types of fields."""

from collections.abc import Iterable, Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from trainer.common.addresses import check_address

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
LICENSE = r"^[a-z0-9][a-z0-9.+-]*$"
LANGUAGE = r"^([a-z]{2,3}(-[A-Za-z0-9]+)*|code|multilingual)$"
SHARD_SET = r"^shards/[^/]+$"
DELIMITER = r'^[^"\r\n]$'

SPELLINGS = {
    NAME: "letters, digits and _ . - only, a letter or digit first",
    LICENSE: "a license's identifier on the Hugging Face hub, such as apache-2.0",
    LANGUAGE: "an ISO 639 code, such as en, or code, or multilingual",
    SHARD_SET: "a shard set of the store, such as shards/code-0123456789abcdef",
    DELIMITER: 'one character, no quote or line end (a tab is "\\t" in double quotes)',
}
"""The patterns in words, for messages."""

Name = Annotated[str, Field(pattern=NAME, max_length=64)]
JobName = Annotated[Name, Field(description="name of the job")]
Place = Annotated[str, Field(description="where artifacts are stored: a folder or any fsspec URL")]
Precision = Annotated[Literal["fp32", "bf16", "fp16"], Field(description="arithmetic of the forward pass")]
TableFormat = Literal["csv", "jsonl", "parquet"]
"""Formats of trainer/data/tables.py whose records have columns; accepted for all data except conversations."""
Device = Annotated[Literal["auto", "cpu", "gpu"], Field(description="auto: GPUs if available, else the CPU")]
Delimiter = Annotated[
    str | None,
    Field(pattern=DELIMITER, description="csv: column separator; default: a tab for .tsv files, else a comma"),
]
Quoting = Annotated[
    bool | None,
    Field(
        description="csv: whether quote characters enclose values; false: they are plain text; default: false if the "
        "delimiter is a tab, else true"
    ),
]


def require_records(setting: str, form: str) -> None:
    """Raise `ValueError` for a setting about fields of records if the file format has none."""
    if form not in get_args(TableFormat):
        raise ValueError(f"{setting} requires format {' or '.join(get_args(TableFormat))}, not {form!r}")


OF_CSV = ("delimiter", "quoting", "columns")
"""Settings that apply to csv files only."""


def require_csv(data: BaseModel, setting: str, form: str) -> None:
    """Raise `ValueError` if settings for csv files are set for another format."""
    for name in OF_CSV:
        if form != "csv" and getattr(data, name, None) is not None:
            raise ValueError(f"{name} requires {setting} csv, not {form!r}")


TEXTS = {
    "prompts",
    "reason",
    "pattern",
    "classes",
    "positive_class",
    "separator",
    "label_separator",
    "eos_token",
    "mask_token",
}
"""Fields of free text: they are not searched for credentials in addresses."""


class Schema(BaseModel):
    """Base schema: frozen; unknown keys, texts that are not valid Unicode and credentials in addresses are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    @field_validator("*")
    @classmethod
    def _holds_no_credentials(cls, value: Any, info: ValidationInfo) -> Any:
        for text in _texts_in(value) if info.field_name not in TEXTS else ():
            check_address(text)
        return value

    @field_validator("*")
    @classmethod
    def _is_unicode(cls, value: Any) -> Any:
        for text in _texts_in(value):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                near = text[max(0, error.start - 30) : error.start + 30]
                raise ValueError(
                    f"{near!a} contains half of a surrogate pair, or a byte that is not UTF-8, at character "
                    f"{error.start + 1} of the text; correct it"
                ) from error
        return value


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts_in(each)


def schemas_in(annotation: Any) -> list[type[BaseModel]]:
    """The schemas contained in a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in schemas_in(part)]


def wants_text(schemas: Iterable[type[BaseModel]], keys: Iterable[str]) -> bool:
    """Whether each schema that has a field at these keys accepts only text there."""
    options = _options_at(schemas, keys)
    return bool(options) and all(option is str for option in options)


def allows_text(schemas: Iterable[type[BaseModel]], keys: Iterable[str]) -> bool:
    """Whether a schema accepts text at these keys, or none has the field."""
    options = _options_at(schemas, keys)
    return not options or any(option in (str, Any) for option in options)


def allows_list_of_text(schemas: Iterable[type[BaseModel]], keys: Iterable[str]) -> bool:
    """Whether a schema accepts a list of texts at these keys."""
    lists = [option for option in _options_at(schemas, keys) if get_origin(option) is list]
    return any(option in (str, Any) for each in lists for option in options_of(get_args(each)[0]))


def options_of(annotation: Any) -> list[Any]:
    """The possible types of a value, without None."""
    if get_origin(annotation) is Annotated:
        return options_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [option for part in get_args(annotation) if part is not NoneType for option in options_of(part)]
    return [annotation]


def _options_at(schemas: Iterable[type[BaseModel]], keys: Iterable[str]) -> list[Any]:
    """The possible types of a value at these keys, over the schemas that have the field."""
    types: list[Any] = list(schemas)
    for key in keys:
        types = [found for each in types for option in options_of(each) for found in inside(option, key)]
    return [option for each in types for option in options_of(each)]


def inside(annotation: Any, key: Any) -> Iterator[Any]:
    """Yield the type of the value at `key` inside a value of type `annotation`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if key in annotation.model_fields:
            yield annotation.model_fields[key].annotation
    elif get_origin(annotation) in (list, dict):
        yield get_args(annotation)[-1]


def of_kind(annotations: Iterable[Any], kind: Any) -> list[Any]:
    """Of schemas that differ by `kind`, the one of the given kind."""
    return [each for each in annotations if schemas_in(each) and kind in get_args(next(inside(each, "kind"), None))]
