"""What is told of every run in the same way: its step plan, speed, checkpoints, model and machine."""

from collections.abc import Callable, Iterable, Mapping

from trainer.common.formats import count, duration, percent, plural, size
from trainer.report.adapters import adapter_pairs
from trainer.report.summary import FORMATS, measure_speed
from trainer.report.tables import Pairs, Table
from trainer.runs.facts import RunFacts

CONFIG_FIELDS = {
    "Layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "Width": ("hidden_size", "n_embd", "d_model"),
    "Attention heads": ("num_attention_heads", "n_head"),
    "Key and value heads": ("num_key_value_heads",),
    "Longest context": ("max_position_embeddings", "n_positions"),
}
"""What model families call the same thing in their configurations."""


def plan_pairs(facts: RunFacts, sample: str, samples: str, tokens: Pairs) -> Pairs:
    """The step plan in words: what a sample is called, how many there are, and what is known of their tokens."""
    plan, training = facts.plan, facts.job["training"]
    length = plural(training["epochs"], "epoch") if training["epochs"] else plural(training["max_steps"], "step")
    early = "" if facts.steps == plan.total_steps else f"; stopped early, after {count(facts.steps)}"
    return [
        ("Asked for", length),
        (f"{sample}s".capitalize(), samples),
        (
            "Global batch",
            f"{plural(plan.global_batch, sample)}: micro-batch {plan.micro_batch} × {plural(plan.ranks, 'rank')} × "
            f"accumulation {plan.accumulation}",
        ),
        *tokens,
        ("Steps an epoch", count(plan.steps_per_epoch)),
        ("Steps in all", f"{count(plan.total_steps)}, of which {count(plan.warmup_steps)} warm up{early}"),
        ("Schedule", f"{training['schedule']}, at most {training['learning_rate']:g}"),
    ]


def speed_pairs(facts: RunFacts) -> Pairs:
    """Throughput in words."""
    speed = measure_speed(facts)
    wait = speed.data_wait_seconds
    share = wait / speed.step_seconds if wait is not None and speed.step_seconds else None
    stalls = f"{plural(len(speed.stalls), 'save')}: {duration(sum(speed.stalls))} in all" if speed.stalls else "no save"
    longest = f", {duration(max(speed.stalls))} at most" if speed.stalls else ""
    return [
        ("Tokens a second", f"{count(speed.tokens_per_second)} (median)"),
        ("MFU", f"{percent(speed.mfu)} of the machine's peak (median)"),
        ("Step", f"{duration(speed.step_seconds)} (median)"),
        ("Wait for data", f"{duration(wait)} a step ({percent(share)} of it)"),
        ("Wait for checkpoints", stalls + longest),
        ("Time in steps", f"{duration(speed.training_seconds)}, evaluations and checkpoints apart"),
        ("Skipped steps", f"{count(speed.skipped)} (gradients that overflowed)"),
    ]


def model_pairs(facts: RunFacts, origin: str, vocab_size: int, tokenizer: str) -> Pairs:
    """The model in words: what families name differently is given one name. `vocab_size` is that of the tokenizer."""
    config = {**facts.model_config.get("text_config", {}), **facts.model_config}
    stored = ", ".join(f"{count(value)} in {FORMATS.get(kind, kind)}" for kind, value in facts.parameters.items())
    named = (
        (label, next((config[field] for field in fields if field in config), None)) for label, fields in CONFIG_FIELDS.items()
    )
    return [
        ("Architecture", f"{_first(config.get('architectures'))} ({config.get('model_type', 'unknown')})"),
        ("Weights from", origin),
        *([("Checkpoint", f"the best, of step {count(facts.best_step)}")] if facts.best_step is not None else []),
        ("Parameters", stored or "unknown"),
        *adapter_pairs(facts),
        *((label, count(value)) for label, value in named if isinstance(value, int)),
        ("Embeddings", f"{count(config.get('vocab_size'))}, for {count(vocab_size)} tokens"),
        ("Tokenizer", tokenizer),
        ("Files", f"{len(facts.final.files)}, {size(facts.final.size())}"),
        ("Published", facts.final.created.replace("T", " ").replace("+00:00", " UTC")),
    ]


def environment_pairs(facts: RunFacts) -> Pairs:
    """Versions and the machine."""
    environment = dict(facts.environment)
    packages = environment.pop("packages", {})
    return [(name.capitalize(), str(value)) for name, value in environment.items()] + [
        (name, str(value)) for name, value in packages.items()
    ]


def checkpoint_table(facts: RunFacts, figures: Mapping[str, str], show: Callable[[float | None], str]) -> Table:
    """The checkpoints in the store, with some of their validation figures, each with its name for people."""
    columns = ["Checkpoint", "Kept as", "Step", *(f"Validation {label}" for label in figures.values()), "Size"]
    rows = [
        [
            each.name, ", ".join(each.reasons) or "recent", count(each.step),
            *(show(each.scores.get(figure)) for figure in figures), size(each.size),
        ]
        for each in facts.checkpoints
    ]  # fmt: skip
    return Table(columns, rows, words=2)


def _first(names: Iterable[str] | None) -> str:
    return next(iter(names or ()), "unknown")
