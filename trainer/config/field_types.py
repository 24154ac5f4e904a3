"""What may stand in a field, as its type says."""

from collections.abc import Iterable, Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel


def schemas_in(annotation: Any) -> list[type[BaseModel]]:
    """The schemas that a field's type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in schemas_in(part)]


def wants_text(schemas: Iterable[type[BaseModel]], keys: Iterable[str]) -> bool:
    """Whether nothing but text can stand under these keys, by each schema that knows them."""
    options = _options_at(schemas, keys)
    return bool(options) and all(option is str for option in options)


def allows_text(schemas: Iterable[type[BaseModel]], keys: Iterable[str]) -> bool:
    """Whether text can stand under these keys, by one of the schemas, or as none of them knows the field."""
    options = _options_at(schemas, keys)
    return not options or any(option in (str, Any) for option in options)


def allows_list_of_text(schemas: Iterable[type[BaseModel]], keys: Iterable[str]) -> bool:
    """Whether a list that holds text can stand under these keys."""
    lists = [option for option in _options_at(schemas, keys) if get_origin(option) is list]
    return any(option in (str, Any) for each in lists for option in options_of(get_args(each)[0]))


def options_of(annotation: Any) -> list[Any]:
    """The types that a value may have, other than none at all."""
    if get_origin(annotation) is Annotated:
        return options_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [option for part in get_args(annotation) if part is not NoneType for option in options_of(part)]
    return [annotation]


def _options_at(schemas: Iterable[type[BaseModel]], keys: Iterable[str]) -> list[Any]:
    """The types that a value under these keys may have, by each schema that knows them."""
    types: list[Any] = list(schemas)
    for key in keys:
        types = [found for each in types for option in options_of(each) for found in inside(option, key)]
    return [option for each in types for option in options_of(each)]


def inside(annotation: Any, key: Any) -> Iterator[Any]:
    """The type of what is under a key of a value of some type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if key in annotation.model_fields:
            yield annotation.model_fields[key].annotation
    elif get_origin(annotation) in (list, dict):
        yield get_args(annotation)[-1]


def of_kind(annotations: Iterable[Any], kind: Any) -> list[Any]:
    """Of several schemas that a `kind` tells apart, the one of that kind."""
    return [each for each in annotations if schemas_in(each) and kind in get_args(next(inside(each, "kind"), None))]
