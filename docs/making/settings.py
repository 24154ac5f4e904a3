"""The page about settings: all fields of all schemas."""

from collections.abc import Iterator
from inspect import getdoc
from typing import get_origin

from pydantic import BaseModel

from docs.making.text import cell, paragraphs, slug
from flows import FLOW_COMMANDS
from flows.schemas import TITLE, schema_of
from trainer.config.files import bounds_of, default_of, type_name
from trainer.config.jobs import GarbageJob
from trainer.config.problems import schemas_in


def page() -> Iterator[str]:
    """All fields of all schemas, by the command that reads them."""
    yield from (
        "# Settings",
        "",
        "A configuration is a YAML file with these keys. `headrace new` writes one to start from. On the command line,",
        "`key=value` overrides a setting, given by its full path, such as `training.max_steps=9`; list entries are",
        "numbered from 0, such as `data.corpora.0.format=jsonl`. Keys that are not listed here are refused.",
        "",
    )
    shown: dict[type[BaseModel], str] = {}
    for schema, names in _schemas().items():
        title = " and ".join(names)
        yield from (f"## {title}", "", *paragraphs(getdoc(schema)))
        yield from _table_of(schema, "", title, shown)


def _schemas() -> dict[type[BaseModel], list[str]]:
    """Each schema, with the names of its readers."""
    found: dict[type[BaseModel], list[str]] = {}
    for command in FLOW_COMMANDS:
        for title, schema in schema_of(command).items():
            found.setdefault(schema, []).append(command + title.removeprefix(TITLE))
    return {**found, GarbageJob: ["the flow gc"]}


def _table_of(schema: type[BaseModel], prefix: str, title: str, shown: dict[type[BaseModel], str]) -> Iterator[str]:
    """A table of a schema's fields, and of each nested schema; a link to one that was shown before."""
    nested: list[tuple[str, type[BaseModel]]] = []
    yield from ("| Setting | Takes | Default | Meaning |", "|---|---|---|---|")
    for name, field in schema.model_fields.items():
        inside = schemas_in(field.annotation)
        if not inside:
            # spaces, so that a long list can wrap
            takes = f"{type_name(field.annotation).replace('|', ' | ')}{bounds_of(field)}"
            default = cell(_default(default_of(field)))
            yield f"| `{prefix}{name}` | {cell(takes)} | {default} | {cell(field.description)} |"
            continue
        many = get_origin(field.annotation) is list
        needed = "required" if field.is_required() else "optional"
        links = []
        for part in inside:  # several if a `kind` distinguishes them
            of_kind = f" of kind {type_name(part.model_fields['kind'].annotation)}" if len(inside) > 1 else ""
            heading = shown.get(part, f"{title}: {prefix}{name}{of_kind}")
            links.append(f"[{'a list of keys' if many else 'keys'}{of_kind}](#{slug(heading)})")
            if part not in shown:
                shown[part] = heading
                nested.append((f"{prefix}{name}{'.N' if many else ''}", part))
        yield f"| `{prefix}{name}` | {' or '.join(links)} | {needed} | {cell(field.description)} |"
    yield ""
    for path, part in nested:
        yield from (f"### {shown[part]}", "", *paragraphs(getdoc(part)))
        yield from _table_of(part, f"{path}.", title, shown)


def _default(said: str) -> str:
    value = said.removeprefix("default ").strip()
    return value.lower() if value in ("True", "False") else value or "empty"
