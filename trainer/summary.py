"""The few figures of a run that stand at the top of its report: how far the loss came, how fast, at what size."""

import math
from statistics import median
from typing import Any, NamedTuple

from trainer.facts import RunFacts
from trainer.formats import count, duration, number, percent, perplexity, plural, short, significant

FORMATS = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class Tile(NamedTuple):
    """A key figure: what it is, the figure, and what to know about it."""

    label: str
    figure: str
    note: str


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
    """The first and the last evaluation during training, which read the same held-out windows."""

    before: dict[str, Any]
    after: dict[str, Any]

    @property
    def change(self) -> float:
        return float(self.after["loss"] - self.before["loss"])


def measure_speed(facts: RunFacts) -> Speed:
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
    return Comparison(records[0], records[-1]) if len(records) > 1 else None


def make_verdict(facts: RunFacts) -> str:
    """One line: what training did to the loss on held-out text."""
    steps = plural(facts.plan.total_steps, "step")
    if compared := find_comparison(facts):
        before, after = compared.before["loss"], compared.after["loss"]
        return (
            f"Validation loss {number(before)} → {number(after)} nats a token in {steps} "
            f"(perplexity {perplexity(before)} → {perplexity(after)})."
        )
    if records := facts.of_kind("train"):
        return (
            f"Training loss {number(records[0]['loss'])} → {number(records[-1]['loss'])} nats a token in {steps}; "
            "nothing was evaluated on the way."
        )
    return f"Trained for {steps}; no metrics were recorded."


def describe_evaluation(facts: RunFacts) -> str:
    """One line: how the finished model was measured."""
    if facts.evaluation is None:
        return "The finished model has not been evaluated: there is no evaluation in the store."
    total = facts.evaluation["scores"]["total"]
    return (
        f"Finished model on {count(total['tokens'])} held-out tokens: {number(total['loss'])} nats a token, "
        f"perplexity {perplexity(total['loss'])}."
    )


def make_tiles(facts: RunFacts) -> list[Tile]:
    """The key figures."""
    plan, speed = facts.plan, measure_speed(facts)
    tokens = sum(corpus.tokens for corpus in plan.corpora)
    stored = ", ".join(FORMATS.get(kind, kind) for kind in facts.parameters)
    family = facts.model_config.get("model_type", "model")
    corpora = plural(len(plan.corpora), "corpus", "corpora")
    epochs = significant(plan.total_steps / plan.steps_per_epoch)
    return [
        *_loss_tiles(facts),
        Tile("Parameters", short(sum(facts.parameters.values())), f"{family}, {stored}"),
        Tile("Optimizer steps", count(plan.total_steps), f"{epochs} epochs"),
        Tile("Tokens trained on", short(plan.total_tokens), f"{count(plan.tokens_per_step)} a step"),
        Tile("Training data", f"{short(tokens)}", f"tokens in {corpora}"),
        Tile("Tokens a second", count(speed.tokens_per_second), f"MFU {percent(speed.mfu)}"),
        Tile("Time in steps", duration(speed.training_seconds), f"{duration(speed.step_seconds)} a step"),
    ]


def _loss_tiles(facts: RunFacts) -> list[Tile]:
    tiles = []
    if facts.evaluation is not None:
        loss = facts.evaluation["scores"]["total"]["loss"]
        tiles.append(Tile("Validation loss", number(loss), f"perplexity {perplexity(loss)}"))
    else:
        tiles.append(Tile("Validation loss", number(None), "not evaluated"))
    if compared := find_comparison(facts):
        sign = "+" if compared.change > 0 else ""
        start, end = compared.before["step"], compared.after["step"]
        tiles.append(Tile("Change in training", f"{sign}{number(compared.change)}", f"nats, step {start} to {count(end)}"))
    return tiles
