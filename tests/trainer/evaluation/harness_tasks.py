"""Tasks of lm-eval for tests: a folder with their YAML files and questions."""

import json
from pathlib import Path
from typing import Any

import yaml

from trainer.config.evaluation import HarnessConfig

QUESTIONS = [
    {"question": "def f(", "choices": ["self):", "!!!"], "answer": 0},
    {"question": "import ", "choices": ["{{{", "os"], "answer": 1},
    {"question": "return ", "choices": ["None", "def"], "answer": 0},
]
TASK: dict[str, Any] = {
    "task": "tiny",
    "dataset_path": "json",
    "test_split": "test",
    "fewshot_split": "solved",
    "output_type": "multiple_choice",
    "doc_to_text": "question",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
    "target_delimiter": "",
    "metric_list": [{"metric": "acc"}],
    "metadata": {"version": 3},
}


def write_task(folder: Path, **changes: Any) -> HarnessConfig:
    """A task `tiny` of three questions, and what asks for it; changes are of its YAML file."""
    folder.mkdir(parents=True, exist_ok=True)
    write_questions(folder / "questions.jsonl", QUESTIONS)
    write_questions(folder / "solved.jsonl", QUESTIONS[:1])
    files = {"test": str(folder / "questions.jsonl"), "solved": str(folder / "solved.jsonl")}
    write_yaml(folder / "tiny.yaml", {**TASK, "dataset_kwargs": {"data_files": files}, **changes})
    return asking(folder, ["tiny"])


def asking(folder: Path, tasks: list[str], **changes: Any) -> HarnessConfig:
    return HarnessConfig(tasks=tasks, include_path=str(folder), **changes)


def write_questions(path: Path, questions: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in questions), encoding="utf-8")


def write_yaml(path: Path, values: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
