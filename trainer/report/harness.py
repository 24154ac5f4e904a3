"""What a report and a model card say of lm-eval's figures."""

from typing import Any

from trainer.common.formats import count, number
from trainer.records.basis import HarnessResult, HarnessScores
from trainer.report.account import Block, Section
from trainer.report.card_metadata import index_entry
from trainer.report.tables import Table
from trainer.runs.facts import RunFacts

COLUMNS = ["Task", "Figure", "Value", "Standard error", "Examples", "Solved before", "Kept out of training"]


def describe_harness(facts: RunFacts) -> list[Section]:
    """The figures of the finished model on tasks of lm-eval, if it was measured on some."""
    result = _read(facts)
    if result is None:
        return []
    of = f", on at most {count(result.limit)} examples a task" if result.limit else ""
    note = (
        f"Measured by lm-eval {result.lm_eval}{of}. A task's questions are said to be kept out of training if the decisions "
        "about all text that the model was trained on name the fields that they are made of, in each file that is asked; "
        "shorter ones than is said were not looked for. Of data of the hub it is not known."
    )
    doubts = [Block(f"Doubtful: {doubt}") for doubt in result.doubts]
    rows = [row for name, scores in result.tasks.items() for row in _rows(name, scores)]
    return [Section("Results of lm-eval", [Block(note, Table(COLUMNS, rows, words=2)), *doubts])]


def index_harness(facts: RunFacts) -> list[dict[str, Any]]:
    """The same as the hub's model-index has it: an entry a task."""
    result = _read(facts)
    tasks = result.tasks if result else {}
    return [
        index_entry(
            "text-generation", {"name": name, "type": name},
            {figure: (f"{figure} (lm-eval, {scores.few_shot}-shot)", each.value) for figure, each in scores.figures.items()},
        )
        for name, scores in tasks.items()
    ]  # fmt: skip


def _read(facts: RunFacts) -> HarnessResult | None:
    told = (facts.evaluation or {}).get("harness")
    return HarnessResult(**told) if told else None


def _rows(name: str, scores: HarnessScores) -> list[list[str]]:
    end = [count(scores.examples), count(scores.few_shot), scores.tell_kept_out()]
    return [[name, figure, number(each.value), number(each.error), *end] for figure, each in scores.figures.items()]
