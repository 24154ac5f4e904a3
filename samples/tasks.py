"""An lm-eval task from the standard library: which of four lines comes next in this function?

    python -m samples.tasks data/tasks

next_line.yaml defines the task for lm-eval. questions.jsonl holds {"id", "beginning", "choices", "answer"}: the first
line of a function's docstring with the first half of the function, and four lines, one of which comes next.
solved.jsonl holds further questions for few-shot examples. Neither uses functions that `python -m samples.pairs` writes
to functions.jsonl.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from samples.corpora import write
from samples.pairs import Function, documented_functions
from trainer.data.order import stable_key

CHOICES = 4
MOST = 400
"""The most questions; a small model answers them in a second on a CPU."""

MIN_LINE = 12
"""The fewest characters of a meaningful line."""


def main(arguments: list[str]) -> int:
    """Write the task into a folder; files with the same content are not rewritten."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m samples.tasks FOLDER", file=sys.stderr)
        return 2
    functions = list(documented_functions())
    for name, split in (("questions", "test"), ("solved", "validation")):
        questions = list(questions_of([function for function in functions if function.split == split]))[:MOST]
        lines = [json.dumps(question, ensure_ascii=False) + "\n" for question in questions]
        write(Path(arguments[0], f"{name}.jsonl"), "".join(lines))
        print(f"{arguments[0]}/{name}.jsonl: {len(lines)} lines")
    write(Path(arguments[0], "next_line.yaml"), yaml.safe_dump(settings(arguments[0]), sort_keys=False))
    return 0


def settings(folder: str) -> dict[str, Any]:
    """The task for lm-eval; a relative `folder` makes its paths relative to the current folder."""
    files = {"test": f"{folder}/questions.jsonl", "solved": f"{folder}/solved.jsonl"}
    return {
        "task": "next_line",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": files},
        "test_split": "test",
        "fewshot_split": "solved",
        "output_type": "multiple_choice",
        "doc_to_text": "beginning",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "target_delimiter": "\n",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        "metadata": {"version": 1},
    }


def questions_of(functions: Sequence[Function]) -> Iterator[dict[str, Any]]:
    """A question for each function with a meaningful next line; wrong choices come from other functions."""
    halves = [half for function in functions if (half := _halved(function)) is not None]
    for function, beginning, line in halves:
        others = [halves[stable_key("choice", function.name, n) % len(halves)][2] for n in range(10 * CHOICES)]
        wrong = [other for other in dict.fromkeys(others) if other != line][: CHOICES - 1]
        answer = stable_key("answer", function.name) % CHOICES
        choices = [*wrong[:answer], line, *wrong[answer:]]
        yield {"id": function.name, "beginning": beginning, "choices": choices, "answer": answer}


def _halved(function: Function) -> tuple[Function, str, str] | None:
    """The first half of a function and the next line; None if that line is too short."""
    lines = function.code.split("\n")
    line = lines[len(lines) // 2]
    if len(line.strip()) < MIN_LINE:
        return None
    return function, "\n".join([function.summary, *lines[: len(lines) // 2]]), line


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
