"""Pairs of answers that every Python installation carries: a short answer is chosen before a long one.

    python -m samples.preferences data/preferences

train.jsonl, validation.jsonl and test.jsonl hold {"prompt", "chosen", "rejected"}: a question of samples.chats about a
function, the first line of its documentation, and the same wrapped in phrases that say no more. All functions of a
module are in the same file.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samples.chats import chats_of, split_of
from samples.corpora import write
from samples.pairs import Function, documented_functions
from trainer.data.order import stable_key

BEGINNINGS = ("Well, let me see: ", "The first line of the docstring would be the following: ", "Here it is: ", "")
ENDS = (
    " That is what the first line of the docstring says, as far as this function is concerned.",
    " I hope that this helps, and please do ask again if anything is not clear.",
    " In other words, that is what the function does, and what its documentation says of it.",
)


def main(arguments: list[str]) -> int:
    """Write the pairs below a folder; files that are already there and the same are left alone."""
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
    """The question about a function's documentation, with a short and a wordy answer."""
    for chat in chats_of(function):
        if "prompt" in chat:
            key = stable_key("preference", function.name)
            before, after = BEGINNINGS[key % len(BEGINNINGS)], ENDS[key // len(BEGINNINGS) % len(ENDS)]
            short = chat["completion"]
            yield {"prompt": chat["prompt"], "chosen": short, "rejected": f"{before}{short}{after}"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
