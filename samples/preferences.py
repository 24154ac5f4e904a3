"""Preference pairs from the standard library: a short and a long description of the same function.

    python -m samples.preferences data/preferences

train.jsonl, validation.jsonl and test.jsonl hold {"prompt", "chosen", "rejected"}: a question of samples.chats about a
function, the first words of its docstring's first line, and the whole line. All functions of a module are in the same
file.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samples.chats import chats_of, split_of
from samples.corpora import write
from samples.pairs import Function, documented_functions

FIRST_WORDS = re.compile(
    r"(\w+ [\w -]+?),? (?:and|as|at|by|for|from|if|in|into|of|on|or|that|to|using|when|whether|which|with)\b"
)
"""Two or more words, up to a preposition or conjunction that begins a further part."""


def main(arguments: list[str]) -> int:
    """Write the pairs into a folder; files with the same content are not rewritten."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m samples.preferences FOLDER", file=sys.stderr)
        return 2
    files: dict[str, list[str]] = {name: [] for name in ("train", "validation", "test")}
    for function in documented_functions():
        files[split_of(function)] += [json.dumps(pair, ensure_ascii=False) + "\n" for pair in preferences_of(function)]
    for name, lines in files.items():
        write(Path(arguments[0], f"{name}.jsonl"), "".join(lines))
        print(f"{arguments[0]}/{name}.jsonl: {len(lines)} lines")
    return 0


def preferences_of(function: Function) -> Iterator[dict[str, Any]]:
    """The question about a function's documentation with a short and a long answer; none if the line is short."""
    short = FIRST_WORDS.match(function.summary)
    for chat in chats_of(function):
        if short and "prompt" in chat:
            yield {"prompt": chat["prompt"], "chosen": f"{short[1]}.", "rejected": chat["completion"]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
