"""The parts of a report, as the page, the model card and the Markdown summary show them.

Also the parts that all kinds of runs share: size, speed, step plan, checkpoints and machine.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from trainer.common.display import Pairs, Table, count, duration, number, percent, plural, short, significant, size
from trainer.records.evaluations import best_by
from trainer.records.shapes import READ
from trainer.registry.curves import Curve
from trainer.registry.facts import RecordedRun, RunFacts
from trainer.store.names import FINAL
from trainer.training.metrics_reader import ROLLBACK


class Tile(NamedTuple):
    """A key figure with its label and an explanation."""

    label: str
    figure: str
    note: str


class Block(NamedTuple):
    """A note with a table, (term, text) pairs, or prompts with their continuations."""

    note: str = ""
    table: Table | None = None
    pairs: Pairs | None = None
    samples: tuple[tuple[str, str], ...] = ()


class Section(NamedTuple):
    """Blocks under a title."""

    title: str
    blocks: list[Block]


class Card(NamedTuple):
    """The parts that only the model card shows; `task` is the hub's name of the task, `matter` more front matter.

    `results` are entries of the model-index; `summary` begins a sentence that continues with "with headrace"; `use` is
    Python code that loads the model.
    """

    task: str
    tag: str
    matter: dict[str, Any]
    results: list[dict[str, Any]]
    summary: str
    use: str


@dataclass(frozen=True)
class ReportContent:
    """The parts of a report that depend on the kind of run.

    The model card shows `results` and `data` too; only the page shows `samples`. The Markdown summary shows the first
    table of `results` and that of `data`.
    """

    verdict: str
    evaluated: str
    tiles: list[Tile]
    curves: list[Curve]
    results: list[Section]
    samples: list[Section]
    data: Section
    plan: Pairs
    model: Pairs
    checkpoints: Table
    card: Card


def first_table(sections: list[Section]) -> Table | None:
    """The first table of these sections, if any."""
    return next((block.table for section in sections for block in section.blocks if block.table), None)


def adapter_pairs(facts: RunFacts) -> Pairs:
    """Describe the adapter, if there was one."""
    lora = facts.job["model"].get("lora")
    if lora is None or facts.trained is None:
        return []
    targets = ", ".join(lora["targets"] or ["every linear layer"])
    settings = f"rank {lora['rank']}, alpha {lora['alpha']:g}, dropout {lora['dropout']:g}, on {targets}"
    return [
        ("Trained", f"{count(facts.trained['trained'])} parameters, {_share(facts.trained)}"),
        ("LoRA", f"{settings}; {'published as adapter' if facts.is_adapter else 'merged'}"),
    ]


def program(facts: RunFacts, model: str, use: str = "", tokenizer: str = "AutoTokenizer") -> str:
    """Python code that loads the final model, with its base model if it is an adapter, and then does `use`.

    `model` and `tokenizer` are the names of their classes in transformers.
    """
    imports, loads = [f"from transformers import {model}, {tokenizer}"], [f"model = {model}.from_pretrained(folder)"]
    if "torch." in use:
        imports.insert(0, "import torch")
    if facts.is_adapter:
        start = facts.config["start"] or {}
        base = facts.config["base"]["hub"] or start.get("key") or facts.job["model"]["pretrained"]
        imports[-1:] = ["from peft import PeftModel", f"from transformers import AutoConfig, {model}, {tokenizer}"]
        loads = [
            f"base = {model}.from_pretrained({json.dumps(base)}, config=AutoConfig.from_pretrained(folder))",
            "model = PeftModel.from_pretrained(base, folder)",
        ]
    folder = f'folder = "{facts.key}/{FINAL}"  # the folder that holds this card'
    lines = [*imports, "", folder, f"tokenizer = {tokenizer}.from_pretrained(folder)", *loads]
    return "\n".join([*lines, "", use] if use else lines)


def _share(trained: dict[str, int]) -> str:
    return f"{number(100 * trained['trained'] / trained['parameters'], 2)} % of {count(trained['parameters'])}"


DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class Speed(NamedTuple):
    """Medians over the metric records, and sums over the run. MFU is the share of the machine's peak FLOP/s.

    `skipped` are the batches read that are not among the steps: skipped ones, and those taken back by `rollbacks`.
    """

    tokens_per_second: float | None
    mfu: float | None
    step_seconds: float | None
    data_wait_seconds: float | None
    training_seconds: float | None
    stalls: list[float]
    skipped: int
    rollbacks: int


class Comparison(NamedTuple):
    """The evaluations before training and at the final model's step, both made in training on the same data."""

    before: dict[str, Any]
    after: dict[str, Any]


def measure_speed(facts: RecordedRun) -> Speed:
    """Compute speed figures from the metric records. The sum excludes evaluations, whose time is not recorded."""
    records = facts.of_kind("train")

    def middle(field: str) -> float | None:
        values = [record[field] for record in records if math.isfinite(record[field])]
        return median(values) if values else None

    seconds, attempts, steps, typical = 0.0, 0, 0, middle("step_seconds") or 0.0
    for record in records:
        done = record["attempts"] - attempts
        # Of steps before a resume, the time is not recorded; the first one after it may take much longer than others.
        measured = min(done, record.get("steps", done))
        seconds += record["step_seconds"] * measured + typical * (done - measured)
        attempts, steps = record["attempts"], record["step"]
    return Speed(
        middle("tokens_per_second"), middle("mfu"), middle("step_seconds"), middle("data_wait_seconds"),
        seconds if records else None, [record["stall_seconds"] for record in facts.of_kind("checkpoint")],
        attempts - steps, len(facts.of_kind(ROLLBACK)),
    )  # fmt: skip


def read_in(evaluation: dict[str, Any]) -> list[Any]:
    """What an evaluation in training read, by its counts: a run may continue with another `during_training`."""
    return [evaluation.get(name) for name in READ]


def find_comparison(facts: RunFacts) -> Comparison | None:
    """The evaluations to compare, or None if the run made fewer than two, or began with one of other data."""
    return compare_evaluations(facts.of_kind("evaluation"), facts.best_step)


def compare_evaluations(records: Sequence[dict[str, Any]], best_step: int | None) -> Comparison | None:
    """The same for a run's records of evaluations; `best_step` is the final model's step if that is the best one."""
    if len(records) < 2:
        return None
    last = next((record for record in records if record["step"] == best_step), records[-1])
    return Comparison(records[0], last) if read_in(records[0]) == read_in(last) else None


NOT_EVALUATED = "The finished model has not been evaluated: there is no evaluation in the store."


def compared_steps(compared: Comparison) -> str:
    """The steps of the two compared evaluations."""
    return f"steps {count(compared.before['step'])} and {count(compared.after['step'])}"


def opening_sentence(facts: RunFacts, what: str, how: str) -> str:
    """The first sentence of the model card: `what` the model is, its size, and `how` it was trained."""
    family, many = facts.model_config.get("model_type", "unknown family"), short(facts.whole_parameters)
    return f"A {what} ({family}) of {many} parameters, {how} in {plural(facts.made_at, 'optimizer step')}"


def describe_length(facts: RunFacts) -> str:
    """The training length of the final model: `in 60 steps`, or `at step 40, the best of 60 steps`."""
    steps = plural(facts.steps, "step")
    return f"in {steps}" if facts.best_step is None else f"at step {count(facts.best_step)}, the best of {steps}"


def verdict_unmeasured(facts: RunFacts, unit: str) -> str:
    """One line about a run without two comparable evaluations in training; `unit` is that of the loss."""
    steps, many = plural(facts.steps, "step"), len(facts.of_kind("evaluation")) > 1
    measured = "evaluated on other held-out text at first than at the end" if many else "not evaluated during training"
    if records := facts.of_kind("train"):
        losses = [number(record["loss"]) for record in (records[0], *records[1:][-1:])]  # one if there is one record
        return f"Training loss {' → '.join(losses)} {unit} in {steps}; {measured}."
    return f"Trained for {steps}; no metrics were recorded."


def size_tiles(facts: RunFacts) -> list[Tile]:
    """Key figures: the model's size, and its training length."""
    stored = ", ".join(DTYPES.get(kind, kind) for kind in facts.parameters)
    family = facts.model_config.get("model_type", "model")
    epochs, trained = significant(facts.steps / facts.plan.steps_per_epoch), facts.trained
    return [
        Tile("Parameters", short(facts.whole_parameters), f"{family}, {stored}"),
        *([Tile("Trained parameters", short(trained["trained"]), _share(trained))] if trained else []),
        Tile("Optimizer steps", count(facts.steps), f"{epochs} epoch{'' if epochs == '1' else 's'}"),
    ]


def speed_tiles(facts: RunFacts) -> list[Tile]:
    """Key figures of training speed."""
    speed = measure_speed(facts)
    return [
        Tile("Tokens a second", count(speed.tokens_per_second), f"MFU {percent(speed.mfu)}"),
        Tile("Time in steps", duration(speed.training_seconds), f"{duration(speed.step_seconds)} a step"),
    ]


CONFIG_FIELDS = {
    "Layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "Width": ("hidden_size", "n_embd", "d_model"),
    "Attention heads": ("num_attention_heads", "n_head"),
    "Key and value heads": ("num_key_value_heads",),
    "Longest context": ("max_position_embeddings", "n_positions"),
}
"""Names of the same setting in the configurations of different model families."""


def plan_pairs(facts: RunFacts, sample: str, samples: str, tokens: Pairs) -> Pairs:
    """Describe the step plan; `sample` is the noun for one sample, `samples` their number, `tokens` more pairs."""
    plan, training = facts.plan, facts.job["training"]
    length = plural(training["epochs"], "epoch") if training["epochs"] else plural(training["max_steps"], "step")
    early = "" if facts.steps == plan.total_steps else f"; stopped early, after {count(facts.steps)}"
    return [
        ("Requested", length),
        (f"{sample}s".capitalize(), samples),
        (
            "Global batch",
            f"{plural(plan.global_batch, sample)}: micro-batch {plan.micro_batch} × {plural(plan.ranks, 'rank')} × "
            f"accumulation {plan.accumulation}",
        ),
        *tokens,
        ("Steps an epoch", count(plan.steps_per_epoch)),
        ("Total steps", f"{count(plan.total_steps)}, of which {count(plan.warmup_steps)} warm up{early}"),
        ("Schedule", f"{training['schedule']}, at most {training['learning_rate']:g}"),
    ]


def speed_pairs(facts: RunFacts) -> Pairs:
    """Describe throughput."""
    speed = measure_speed(facts)
    wait = speed.data_wait_seconds
    share = wait / speed.step_seconds if wait is not None and speed.step_seconds else None
    stalls = f"{plural(len(speed.stalls), 'save')}: {duration(sum(speed.stalls))} total" if speed.stalls else "no save"
    longest = f", {duration(max(speed.stalls))} at most" if speed.stalls else ""
    undone = f", or taken back by {plural(speed.rollbacks, 'rollback')}" if speed.rollbacks else ""
    return [
        ("Tokens a second", f"{count(speed.tokens_per_second)} (median)"),
        ("MFU", f"{percent(speed.mfu)} of the machine's peak (median)"),
        ("Step", f"{duration(speed.step_seconds)} (median)"),
        ("Wait for data", f"{duration(wait)} a step ({percent(share)} of it)"),
        ("Wait for checkpoints", stalls + longest),
        ("Time in steps", f"{duration(speed.training_seconds)}, without evaluations and checkpoints"),
        ("Skipped steps", f"{count(speed.skipped)} (gradient overflow{undone})"),
    ]


def begun_with(facts: RunFacts) -> str | None:
    """The model whose weights a run began with: of a fork, another run's checkpoint; None if they were new."""
    return facts.forked_from or facts.job["model"]["pretrained"]


def model_pairs(facts: RunFacts, origin: str, vocab_size: int, tokenizer: str) -> Pairs:
    """Describe the model, with one name for settings that families name differently.

    `vocab_size` is the size of the tokenizer's vocabulary.
    """
    config = {**facts.model_config.get("text_config", {}), **facts.model_config}
    stored = ", ".join(f"{count(value)} in {DTYPES.get(kind, kind)}" for kind, value in facts.parameters.items())
    architecture = next(iter(config.get("architectures") or ()), "unknown")
    named = (
        (label, next((config[field] for field in fields if field in config), None))
        for label, fields in CONFIG_FIELDS.items()
    )
    return [
        ("Architecture", f"{architecture} ({config.get('model_type', 'unknown')})"),
        ("Weights from", origin),
        *([("Checkpoint", f"the best, at step {count(facts.best_step)}")] if facts.best_step is not None else []),
        ("Parameters of the adapter" if facts.is_adapter else "Parameters", stored or "unknown"),
        *adapter_pairs(facts),
        *((label, count(value)) for label, value in named if isinstance(value, int)),
        ("Embeddings", f"{count(config.get('vocab_size'))}, for {count(vocab_size)} tokens"),
        ("Tokenizer", tokenizer),
        ("Files", f"{len(facts.final.files)}, {size(facts.final.size())}"),
        ("Published", facts.final.created.replace("T", " ").replace("+00:00", " UTC")),
    ]


def environment_pairs(facts: RunFacts) -> Pairs:
    """Package versions, the machine, and the settings by which it computed."""
    environment = dict(facts.environment)
    packages = environment.pop("packages", {})
    return [(name.replace("_", " ").capitalize(), str(value)) for name, value in environment.items()] + [
        (name, str(value)) for name, value in packages.items()
    ]


def checkpoint_table(facts: RunFacts, figures: Mapping[str, str], show: Callable[[float | None], str]) -> Table:
    """The checkpoints in the store, with these validation figures (label by name) and the one that selects the best."""
    decides = best_by(facts.job)
    figures = figures if decides in figures else {**figures, decides: decides}
    columns = ["Checkpoint", "Kept as", "Step", *(f"Validation {label}" for label in figures.values()), "Size"]
    rows = [
        [
            each.name, ", ".join(each.reasons) or "recent", count(each.step),
            *(show(each.scores.get(figure)) for figure in figures), size(each.size),
        ]
        for each in facts.checkpoints
    ]  # fmt: skip
    return Table(columns, rows, words=2)
