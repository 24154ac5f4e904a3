"""The few figures that say how a run of any kind went: how far, how fast, at what size."""

import math
from statistics import median
from typing import Any, NamedTuple, Protocol

from trainer.common.formats import count, duration, number, percent, plural, short, significant
from trainer.report.account import Tile
from trainer.report.adapters import adapter_tiles
from trainer.runs.facts import RunFacts

FORMATS = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class Recorded(Protocol):
    """Whatever has the records of a run."""

    def of_kind(self, kind: str) -> list[dict[str, Any]]: ...


class Speed(NamedTuple):
    """Medians over the metric records, and sums over the run. MFU is the share of the machine's peak arithmetic."""

    tokens_per_second: float | None
    mfu: float | None
    step_seconds: float | None
    data_wait_seconds: float | None
    training_seconds: float | None
    stalls: list[float]
    skipped: int


class Comparison(NamedTuple):
    """The evaluations before training and of the final model, both made on the way, of the same held-out data."""

    before: dict[str, Any]
    after: dict[str, Any]


def measure_speed(facts: Recorded) -> Speed:
    """Speed figures from the metric records. Time spent evaluating is not recorded, so it is not in the sum."""
    records = facts.of_kind("train")

    def middle(field: str) -> float | None:
        values = [record[field] for record in records if math.isfinite(record[field])]
        return median(values) if values else None

    seconds, attempts, steps = 0.0, 0, 0
    for record in records:
        seconds += record["step_seconds"] * (record["attempts"] - attempts)
        attempts, steps = record["attempts"], record["step"]
    return Speed(
        middle("tokens_per_second"), middle("mfu"), middle("step_seconds"), middle("data_wait_seconds"),
        seconds if records else None, [record["stall_seconds"] for record in facts.of_kind("checkpoint")], attempts - steps,
    )  # fmt: skip


def find_comparison(facts: RunFacts) -> Comparison | None:
    """The evaluations to compare, or None if the run made fewer than two."""
    records = facts.of_kind("evaluation")
    if len(records) < 2:
        return None
    return Comparison(records[0], next((record for record in records if record["step"] == facts.best_step), records[-1]))


def tell_length(facts: RunFacts) -> str:
    """How long the training was that made the final model: `in 60 steps`, or `at step 40, the best of 60 steps`."""
    steps = plural(facts.steps, "step")
    return f"in {steps}" if facts.best_step is None else f"at step {count(facts.best_step)}, the best of {steps}"


def verdict_unmeasured(facts: RunFacts, unit: str) -> str:
    """One line of a run that made fewer than two evaluations on the way; `unit` is that of the loss."""
    steps = plural(facts.steps, "step")
    if records := facts.of_kind("train"):
        first, last = records[0]["loss"], records[-1]["loss"]
        return f"Training loss {number(first)} → {number(last)} {unit} in {steps}; nothing was evaluated on the way."
    return f"Trained for {steps}; no metrics were recorded."


def size_tiles(facts: RunFacts) -> list[Tile]:
    """How large the model is, and how long it was trained."""
    stored = ", ".join(FORMATS.get(kind, kind) for kind in facts.parameters)
    family = facts.model_config.get("model_type", "model")
    epochs = facts.steps / facts.plan.steps_per_epoch
    return [
        Tile("Parameters", short(facts.whole_parameters), f"{family}, {stored}"),
        *adapter_tiles(facts),
        Tile("Optimizer steps", count(facts.steps), f"{significant(epochs)} epoch{'' if epochs == 1 else 's'}"),
    ]


def speed_tiles(facts: RunFacts) -> list[Tile]:
    """How fast the training was."""
    speed = measure_speed(facts)
    return [
        Tile("Tokens a second", count(speed.tokens_per_second), f"MFU {percent(speed.mfu)}"),
        Tile("Time in steps", duration(speed.training_seconds), f"{duration(speed.step_seconds)} a step"),
    ]
