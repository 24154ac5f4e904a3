"""Messages about invalid values of a job, in the user's terms, with a suggestion of the intended value."""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trainer.common.addresses import redacted
from trainer.common.display import plural
from trainer.config.schema import SPELLINGS, inside, of_kind, options_of, schemas_in

OTHER_NAMES = {
    "processes": ["ranks", "gpus", "num_gpus", "n_gpus", "devices", "nproc", "num_processes", "world_size"],
    "learning_rate": ["lr", "max_lr", "peak_lr"],
    "global_batch": ["batch", "batch_size", "train_batch_size", "global_batch_size"],
    "micro_batch": ["micro_batch_size", "per_device_batch_size", "per_device_train_batch_size"],
    "max_steps": ["steps", "num_steps", "iterations", "max_iters"],
    "epochs": ["num_epochs", "num_train_epochs", "max_epochs"],
    "warmup_steps": ["warmup"],
    "schedule": ["scheduler", "lr_scheduler", "lr_schedule", "lr_scheduler_type"],
    "max_grad_norm": ["grad_clip", "clip_grad_norm", "gradient_clipping"],
    "precision": ["dtype", "torch_dtype", "bf16", "fp16", "mixed_precision"],
    "context": ["seq_len", "seq_length", "sequence_length", "block_size", "max_seq_len", "max_seq_length"],
    "max_length": ["max_seq_len", "max_seq_length", "seq_len", "sequence_length"],
    "evaluate_every": ["eval_every", "eval_steps", "eval_interval"],
    "save_every": ["save_steps", "checkpoint_every", "save_interval"],
    "log_every": ["logging_steps", "log_interval"],
    "early_stopping": ["patience", "early_stopping_patience"],
    "pretrained": ["model_name", "model_name_or_path", "base_model"],
    "text_columns": ["text_column", "text_field", "text"],
    "text_field": ["text_column", "text_columns", "column", "field"],
    "label_column": ["label", "label_field", "target"],
    "paths": ["path", "file", "files"],
    "validation": ["valid", "val", "dev", "eval"],
    "store": ["output_dir", "out_dir", "output"],
}
"""Names used by other tools, or in everyday speech, for a field."""

MOST_MEANT = 2
"""Maximum number of fields that a message suggests."""

AMOUNT = re.compile(r"\s*(\d[\d_]*(?:,\d{3})*(?:\.\d+)?(?:e\d+)?)\s*([A-Za-z%]*)\s*")
BYTES = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
}  # fmt: skip
SECONDS = {
    "ms": 0.001, "s": 1, "sec": 1, "second": 1, "seconds": 1, "min": 60, "mins": 60, "minute": 60, "minutes": 60,
    "h": 3600,
    "hour": 3600, "hours": 3600, "d": 86400, "day": 86400, "days": 86400,
}  # fmt: skip
COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "%": 0.01}


def meant_by(schemas: Sequence[type[BaseModel]], key: str, near: Sequence[str]) -> list[str]:
    """The fields that an unknown key probably refers to: names in `near` (its siblings), else paths in the schemas."""
    names = [field for field, others in OTHER_NAMES.items() if key in others]
    if here := [name for name in names if name in near] or difflib.get_close_matches(key, near, 1):
        return here[:1]
    paths = dict.fromkeys(path for schema in schemas for path in _paths(schema))
    candidates = [path for name in [key, *names] for path in paths if path.rpartition(".")[2] == name]
    least = min((path.count(".") for path in candidates), default=0)
    return [path for path in candidates if path.count(".") == least][:MOST_MEANT]


def setting_of_option(schemas: Sequence[type[BaseModel]], words: Sequence[str], options: Sequence[str]) -> str | None:
    """The intended `key=value` word if a setting is written as an option, `--key value`; else None."""
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not word.startswith("--") or name in options:
            continue
        key = name.removeprefix("--").replace("-", "_")
        paths = dict.fromkeys(path for schema in schemas for path in _paths(schema))
        found = [path for path in paths if path == re.sub(r"\.\d+(?=\.|$)", ".0", key)]
        if candidates := [key] if found else meant_by(schemas, key, []):
            following = words[number + 1 : number + 2]
            given = value if equals else next((each for each in following if not each.startswith("--")), "…")
            return f"{candidates[0]}={redacted(given)}"
    return None


def amount_hint(field: str, value: str, whole: bool) -> str:
    """A hint how to write a number with a unit in a field: converted to the unit in the field's name.

    `whole`: the field takes only whole numbers.
    """
    if not (match := AMOUNT.fullmatch(value)):
        return ""
    number, unit = float(match[1].replace(",", "").replace("_", "")), match[2].lower()
    if "bytes" in field and unit in BYTES:
        hint = _amount_hint("in bytes", number * BYTES[unit], whole)
        binary = _plain(number * BYTES[f"{unit[0]}ib"]) if hint and unit[0] in "kmgt" and "ib" not in unit else None
        return f"{hint} ({match[1]} {unit[0].upper()}iB: {binary})" if binary else hint
    for own, seconds in (("seconds", 1), ("minutes", 60), ("hours", 3600), ("days", 86400)):
        if own in field and unit in SECONDS:
            return _amount_hint(f"in {own}", number * SECONDS[unit] / seconds, whole)
    if unit in COUNTS:
        return _amount_hint("written out", number * COUNTS[unit], whole)
    return "; write a plain number without a unit" if unit in SECONDS or unit in BYTES else ""


def _amount_hint(how: str, amount: float, whole: bool) -> str:
    """The hint for an amount; empty if the field does not accept it, or it exceeds what any field accepts."""
    return f"; {how} that is {_plain(amount)}" if amount < 2**53 and (amount.is_integer() or not whole) else ""


def _plain(number: float) -> str:
    return str(int(number)) if number.is_integer() else f"{number:.12g}"


def _paths(schema: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the path of every field, with index 0 for list entries."""
    for name, field in schema.model_fields.items():
        yield f"{prefix}{name}"
        many = "0." if get_origin(field.annotation) is list else ""
        for each in schemas_in(field.annotation):
            yield from _paths(each, f"{prefix}{name}.{many}")


TEXT, NUMBER, INTEGER, LIST, KEYS = "text", "a number", "a whole number", "a list", "keys with values"

EXPECTED = {
    "string_type": TEXT,
    "int_type": INTEGER, "int_parsing": INTEGER, "int_parsing_size": INTEGER, "int_from_float": INTEGER,
    "float_type": NUMBER, "float_parsing": NUMBER, "finite_number": "a finite number",
    "bool_type": "true or false", "bool_parsing": "true or false",
    "list_type": LIST,
    "dict_type": KEYS, "model_type": KEYS, "model_attributes_type": KEYS,
}  # fmt: skip
BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
LENGTHS = {
    "string_too_short": ("at least", "min_length", "character", "characters"),
    "string_too_long": ("at most", "max_length", "character", "characters"),
    "too_short": ("at least", "min_length", "entry", "entries"),
    "too_long": ("at most", "max_length", "entry", "entries"),
}
KINDS: dict[type, str] = {list: "list", dict: "mapping"}
SHOWN = 60
"""Maximum number of characters shown of a value."""

Place = tuple[str | int, ...]


def describe_problems(schema: type[BaseModel], error: ValidationError) -> list[str]:
    """A phrase for each invalid value, such as `training.max_steps: expected a whole number, found 1.5`."""
    problems: dict[Place, list[ErrorDetails]] = {}
    tried: set[Place] = set()
    for problem in error.errors():
        place, is_one_of_several = _place(schema, problem["loc"])
        problems.setdefault(place, []).append(problem)
        tried |= {place} if is_one_of_several else set()
    deeper = {place[:depth] for place in tried for depth in range(len(place))}
    return [_describe(schema, place, found) for place, found in problems.items() if place not in tried & deeper]


def find_truths(annotation: Any, value: Any, place: Place = ()) -> Iterator[tuple[str, str]]:
    """Yield the path and message of each true or false in a number field; pydantic would accept them as 1 and 0."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in entries:
        types = [found for option in options_of(annotation) for found in inside(option, key)]
        options = [option for found in types for option in options_of(found)]
        if isinstance(each, bool) and {int, float}.intersection(options) and not {bool, Any}.intersection(options):
            wanted = f"{TEXT} or " * (str in options) + (NUMBER if float in options else INTEGER)
            path = ".".join(map(str, (*place, key)))
            yield path, f"{path}: expected {wanted}, found {shown(each)}"
        for found in types:
            yield from find_truths(found, each, (*place, key))


def shown(value: Any) -> str:
    """A value as written in a file, with its type if this is not obvious."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return repr(_cut(value))
    kind = next((f"the {name} " for types, name in KINDS.items() if isinstance(value, types)), "")
    return kind + _cut(_as_yaml(value))


def _describe(schema: type[BaseModel], place: Place, problems: list[ErrorDetails]) -> str:
    kind, path = problems[0]["type"], ".".join(map(str, place))
    if kind.startswith("union_tag"):
        if strange := [key for key in problems[0]["input"] if key not in _fields_at(schema, place)]:
            return _unknown(schema, (*place, strange[0]))
        kinds = [get_args(each.model_fields["kind"].annotation)[0] for each in _schemas_at(schema, place)]
        return f"{path}.kind: expected {' or '.join(map(repr, kinds))}, found {shown(problems[0]['input'].get('kind'))}"
    if kind == "extra_forbidden":
        known = _fields_at(schema, place[:-1])
        if place[-1] in known:
            return f"{path}: requires another {'.'.join(map(str, place[:-1]))}.kind"
        return _unknown(schema, place)
    if kind == "missing":
        fields = [each.model_fields.get(str(place[-1])) for each in _schemas_at(schema, place[:-1])]
        description = next(field.description for field in fields if field)
        return f"{path}: missing ({description})"
    wanted = list(dict.fromkeys(_expected(problem) for problem in problems))
    if None in wanted:
        message = problems[0]["msg"].removeprefix("Value error, ")
        return f"{path}: {message}" if path else message
    expected = " or ".join(each for each in wanted if each and not (each == INTEGER and NUMBER in wanted))
    return f"{path}: expected {expected}, found {shown(problems[0]['input'])}" + _hint(
        schema, place, wanted, problems[0]
    )


def _unknown(schema: type[BaseModel], place: Place) -> str:
    known = _fields_at(schema, place[:-1])
    candidates = meant_by([schema], str(place[-1]), known)
    hint = f"did you mean {' or '.join(map(repr, candidates))}?" if candidates else f"known keys are {', '.join(known)}"
    return f"{'.'.join(map(str, place))}: unknown key; {hint}"


def _expected(problem: ErrorDetails) -> str | None:
    """The expected value in words; None if the problem's own message contains it."""
    kind, context = problem["type"], problem.get("ctx", {})
    if kind in BOUNDS:
        words, name = BOUNDS[kind]
        return f"{words} {_plain(float(context[name]))}"
    if kind in LENGTHS:
        words, name, one, many = LENGTHS[kind]
        return f"{words} {plural(context[name], one, many)}"
    if kind == "literal_error":
        return str(context["expected"])
    if kind == "string_pattern_mismatch":
        return SPELLINGS.get(context["pattern"], f"text like {context['pattern']}")
    if kind == "string_type" and problem["loc"][-1] == "[key]":
        return "a key that is text"
    return EXPECTED.get(kind)


def _hint(schema: type[BaseModel], place: Place, wanted: list[str | None], problem: ErrorDetails) -> str:
    """A hint how to write the value that was probably intended."""
    value = problem["input"]
    if wanted == [TEXT] and value is not None:
        text, path = _cut(_as_yaml(value)), ".".join(map(str, place))
        return f"""; in quotes it is text: "{text}" in a file, '{path}="{text}"' on the command line"""
    if wanted == [LIST] and isinstance(value, str):
        return f"; a list with one entry is [{_cut(value)}]"
    if isinstance(value, str) and {INTEGER, NUMBER} & set(wanted):
        field = next((key for key in reversed(place) if isinstance(key, str)), "")
        return amount_hint(field, value, whole=NUMBER not in wanted)
    if problem["type"].startswith("model_"):
        return f"; known keys are {', '.join(_fields_at(schema, place))}"
    return ""


def _as_yaml(value: Any) -> str:
    try:
        return (
            yaml.safe_dump(value, default_flow_style=True, width=2**20, allow_unicode=True)
            .removesuffix("...\n")
            .strip()
        )
    except yaml.YAMLError:  # of a job built in Python
        return repr(value)


def _cut(text: str) -> str:
    text = redacted(text)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _place(schema: type[BaseModel], location: tuple[Any, ...]) -> tuple[Place, bool]:
    """The path of a value, and whether the problem is about one of several possible types of the value.

    Pydantic's location also contains, between the keys, the types that were tried.
    """
    kept: list[str | int] = []
    annotation: Any = schema
    one_of_several = False
    for part in location:
        options = options_of(annotation)
        if chosen := of_kind(options, part) if len(options) > 1 else []:
            annotation = chosen[0]
            continue
        if len(options) > 1:
            annotation, one_of_several = Any, True
            continue
        if part != "[key]":
            kept.append(part)
        annotation = next(iter(inside(options[0], part)), Any)
    return tuple(kept), one_of_several


def _schemas_at(schema: type[BaseModel], place: Place) -> list[type[BaseModel]]:
    """The possible schemas of a value: several if they differ by `kind`."""
    found = [schema]
    for key in place:
        within = [part for each in found for annotation in inside(each, key) for part in schemas_in(annotation)]
        found = within or found
    return found


def _fields_at(schema: type[BaseModel], place: Place) -> list[str]:
    return list(dict.fromkeys(name for each in _schemas_at(schema, place) for name in each.model_fields))
