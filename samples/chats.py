"""Conversations from the standard library: the parameters of functions, and the first lines of their docstrings.

    python -m samples.chats data/chats

train.jsonl, validation.jsonl and test.jsonl hold conversations: {"prompt", "completion"}, or {"messages"} with two
questions. All functions of a module are in the same file. functions.jsonl holds the functions of train.jsonl as plain
text, {"text"}, for pretraining.
"""

import ast
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from samples.corpora import write
from samples.pairs import Function, documented_functions
from trainer.data.order import stable_key

SPLITS = ("train",) * 8 + ("validation", "test")

MOST_CHARACTERS = 160
"""The longest signature; a longer one would leave too little of a small model's window for the answer."""


def main(arguments: list[str]) -> int:
    """Write the conversations into a folder; files with the same content are not rewritten."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m samples.chats FOLDER", file=sys.stderr)
        return 2
    files: dict[str, list[str]] = {name: [] for name in ("functions", "train", "validation", "test")}
    for function in documented_functions():
        split = split_of(function)
        if split == "train":
            files["functions"].append(_line({"text": f"{function.code}\n{function.summary}"}))
        files[split] += [_line(chat) for chat in chats_of(function)]
    for name, lines in files.items():
        write(Path(arguments[0], f"{name}.jsonl"), "".join(lines))
        print(f"{arguments[0]}/{name}.jsonl: {len(lines)} lines")
    return 0


def split_of(function: Function) -> str:
    """The split of a function's module."""
    return SPLITS[stable_key("module", function.name.partition(":")[0]) % len(SPLITS)]


def chats_of(function: Function) -> Iterator[dict[str, Any]]:
    """A question about the function's documentation, and a conversation that first asks for its parameters."""
    signature = signature_of(function)
    if signature is None:
        return
    name = function.name.rpartition(":")[2]
    first = f"Write the first line of the docstring of {name}.\n{signature}"
    yield {"prompt": first, "completion": function.summary}
    messages = [
        {"role": "user", "content": f"Which parameters does {name} take?\n{signature}"},
        {"role": "assistant", "content": ", ".join(parameters_of(signature)) or "none"},
        {"role": "user", "content": "Write the first line of its docstring."},
        {"role": "assistant", "content": function.summary},
    ]
    yield {"messages": messages}


def signature_of(function: Function) -> str | None:
    """The function's signature in one line; None if it is too long."""
    head = " ".join(line.strip() for line in function.code.split("\n"))
    for end in (place for place, mark in enumerate(head) if mark == ":"):
        with suppress(SyntaxError):
            (node,) = ast.parse(f"{head[:end]}: pass").body
            assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            signature = f"def {node.name}({ast.unparse(node.args)}):"
            return signature if len(signature) <= MOST_CHARACTERS else None
    return None  # it is longer than the stored lines, or contains comments


def parameters_of(signature: str) -> list[str]:
    """The names of a signature's parameters."""
    (node,) = ast.parse(f"{signature} pass").body
    assert isinstance(node, ast.FunctionDef)
    named = node.args
    found = [*named.posonlyargs, *named.args, named.vararg, *named.kwonlyargs, named.kwarg]
    return [each.arg for each in found if each is not None]


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
