"""The page about the commands."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from typer.main import get_command

from docs.making.text import cell, paragraphs
from flows.commands import app


def page() -> Iterator[str]:
    """Each command's description, arguments and options."""
    yield from (
        "# Commands",
        "",
        "`headrace COMMAND --help` prints the same in a terminal, with the common settings of a command that reads a",
        "configuration; `--all` prints [every setting](settings.md). [Exit codes](exit-codes.md) explains a command's",
        "exit status.",
        "",
    )
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        yield from (f"## headrace {name}", "", *paragraphs(command.help))
        words = [_usage(parameter) for parameter in command.params]
        yield from ("```text", " ".join(["headrace", name, *words]), "```", "")
        yield from ("| | |", "|---|---|")
        yield from (f"| {_spelling(each)} | {cell(_meaning(each))} |" for each in command.params)
        yield ""


def _usage(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        many = " ..." if parameter.nargs == -1 else ""
        return f"{_name(parameter)}{many}" if parameter.required else f"[{_name(parameter).strip('[]')}{many}]"
    return f"[{parameter.opts[0]}{'' if parameter.is_flag else f' {_name(parameter)}'}]"


def _spelling(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_name(parameter).strip('[]')}`"
    return f"`{parameter.opts[0]}{'' if parameter.is_flag else f' {_name(parameter)}'}`"


def _name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _meaning(parameter: Any) -> str:
    """A parameter's values, help and default; raises `ValueError` if it has no help."""
    if not parameter.help:
        raise ValueError(f"the parameter {_name(parameter)} of a command has no help: give it one in flows/commands")
    kind = parameter.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return f"{', '.join(kind)}: {parameter.help}"
    shown = parameter.param_type_name == "option" and not parameter.is_flag and parameter.default is not None
    return f"{parameter.help}; default: {parameter.default:g}" if shown else parameter.help
