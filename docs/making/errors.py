"""The page about errors: their classes and messages."""

import ast
from collections.abc import Iterator
from inspect import getdoc
from pathlib import Path

from docs.making.text import cell, paragraphs
from trainer.common import errors
from trainer.common.errors import PipelineError
from trainer.records.shapes import SEALED

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "trainer" / "config"
ELLIPSIS = "…"


def page() -> Iterator[str]:
    """Each class of errors with its cause, remedy and messages."""
    yield from (
        "# Errors",
        "",
        "An error that you can correct is shown as one message, without a traceback. The message says what was found,",
        "what was expected, where, and what to do. This page lists the kinds of errors with their causes, remedies and",
        f"messages. `{ELLIPSIS}` stands for an inserted value, such as a path or a number. Messages from libraries, or",
        "from other parts of the code, are not listed. [Exit codes](exit-codes.md) lists the exit statuses.",
        "",
    )
    messages = _messages()
    for kind in _tree(PipelineError):
        cause, *rest = paragraphs(getdoc(kind))
        yield from (f"## {kind.__name__}", "", cause, *rest)
        if kind.__base__ is not Exception and kind.__base__ is not PipelineError:
            yield from (f"It is a kind of {kind.__base__.__name__}.", "")
        if found := messages.get(kind.__name__):
            yield from ("| Message | Raised in |", "|---|---|")
            yield from (
                f"| {cell(text)} | `{where}` |" for text, where in sorted(found, key=lambda each: (each[1], each[0]))
            )
            yield ""
    yield from (
        "## What to do about a damaged file",
        "",
        "A store has checksums of its files. The message about a file that does not match its checksum ends with what",
        "to do, which depends on the file's path in the store. The paths below are regular expressions.",
        "",
        "| Path | What to do |",
        "|---|---|",
    )
    for each in SEALED:
        place = each.keys.replace("|", r"\|")
        yield f"| `{place}` | {cell(each.remedy)} |"


def _tree(kind: type[Exception]) -> Iterator[type[Exception]]:
    """A class of errors and its subclasses, in the order of the file."""
    yield kind
    for other in vars(errors).values():
        if isinstance(other, type) and other.__base__ is kind:
            yield from _tree(other)


def _messages() -> dict[str, set[tuple[str, str]]]:
    """The messages of each class of errors, each with the file that raises it."""
    found: dict[str, set[tuple[str, str]]] = {}
    kinds = {kind.__name__ for kind in _tree(PipelineError)}
    for path in sorted(path for room in ("trainer", "tasks", "flows") for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name, text = _raised(node) or ("", "")
            kind = "ConfigError" if name == "ValueError" and path.parent == SCHEMAS else name
            if kind in kinds and len(text.replace(ELLIPSIS, "").strip(" :;,.()")) > 3:
                found.setdefault(kind, set()).add((text, path.relative_to(ROOT).as_posix()))
    return found


def _raised(node: ast.AST) -> tuple[str, str] | None:
    """The class and the message of a `raise`, or of the error that `require_manifest` raises; None for another node."""
    match node:
        case ast.Raise(exc=ast.Call(func=ast.Name(id=name), args=[message, *_])):
            return name, _template(message)
        case ast.Call(func=ast.Name(id="require_manifest"), args=[_, _, _, otherwise, *error]):
            name = error[0].id if error and isinstance(error[0], ast.Name) else "ArtifactError"
            return name, f"{ELLIPSIS} {_template(otherwise)}"
    return None


def _template(node: ast.expr) -> str:
    """A message with an ellipsis for each inserted value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left) + _template(node.right)
    return ELLIPSIS
