"""Labelled pairs from the standard library: does this line of documentation belong to this function?

    python -m samples.pairs data/pairs

train.jsonl, validation.jsonl and test.jsonl hold {"id", "summary", "code", "label"}: each function with the first line
of its own docstring, and with that of another function. test.jsonl has no labels. functions.jsonl holds the functions
of train.jsonl as plain text, {"text"}, for pretraining.
"""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from samples.corpora import standard_modules, write
from trainer.data.order import stable_key

MAX_LINES = 12
"""The most lines of a function, enough to show its purpose."""

MIN_SUMMARY = 10
SPLITS = ("train",) * 8 + ("validation", "test")


class Function(NamedTuple):
    """A function's full name, the first line of its documentation, and its source."""

    name: str
    summary: str
    code: str

    @property
    def split(self) -> str:
        return SPLITS[stable_key("split", self.name) % len(SPLITS)]


def main(arguments: list[str]) -> int:
    """Write the pairs into a folder; files with the same content are not rewritten."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m samples.pairs FOLDER", file=sys.stderr)
        return 2
    functions = list(documented_functions())
    files: dict[str, list[str]] = {name: [] for name in ("functions", "train", "validation", "test")}
    for function in functions:
        files[function.split] += [_line(pair) for pair in pairs_of(function, functions)]
        if function.split == "train":
            files["functions"].append(_line({"text": f"{function.summary}\n{function.code}"}))
    for name, lines in files.items():
        write(Path(arguments[0], f"{name}.jsonl"), "".join(lines))
        print(f"{arguments[0]}/{name}.jsonl: {len(lines)} lines")
    return 0


def pairs_of(function: Function, functions: list[Function]) -> Iterator[dict[str, str]]:
    """The function with its own summary and with another's, so that neither text alone reveals the label."""
    others = (functions[stable_key("other", function.name, n) % len(functions)].summary for n in range(len(functions)))
    other = next(summary for summary in others if summary != function.summary)
    for label, summary in (("match", function.summary), ("other", other)):
        pair = {"id": f"{function.name}:{label}", "summary": summary, "code": function.code, "label": label}
        if function.split == "test":
            pair = {
                "id": f"{function.name}:{stable_key('pair', summary):016x}",
                "summary": summary,
                "code": function.code,
            }
        yield pair


def documented_functions() -> Iterator[Function]:
    """The standard library's documented functions; of several with the same source, the first."""
    seen: set[str] = set()
    for path, source in standard_modules():
        lines = source.split("\n")
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or len(node.body) < 2:
                continue
            summary = (ast.get_docstring(node) or "").partition("\n")[0].strip()
            code = "\n".join(lines[node.lineno - 1 : node.end_lineno][:MAX_LINES])
            if len(summary) > MIN_SUMMARY and code not in seen:
                seen.add(code)
                yield Function(f"{path}:{node.lineno}:{node.name}", summary, code)


def _line(record: dict[str, str]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
