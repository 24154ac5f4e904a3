"""What is told of a run one thing at a time: its step plan, speed, model and machine, as pairs of a name and a text."""

from collections.abc import Iterable

from trainer.facts import RunFacts
from trainer.formats import count, duration, percent, plural, size
from trainer.summary import FORMATS, Speed

CONFIG_FIELDS = {
    "Layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "Width": ("hidden_size", "n_embd", "d_model"),
    "Attention heads": ("num_attention_heads", "n_head"),
    "Key and value heads": ("num_key_value_heads",),
    "Longest context": ("max_position_embeddings", "n_positions"),
}
"""What model families call the same thing in their configurations."""

Pairs = list[tuple[str, str]]


def plan_pairs(facts: RunFacts) -> Pairs:
    """The step plan in words."""
    plan, training = facts.plan, facts.job["training"]
    length = plural(training["epochs"], "epoch") if training["epochs"] else plural(training["max_steps"], "step")
    stride = training["stride"] or training["context"]
    return [
        ("Asked for", length),
        ("Windows", f"{count(plan.windows)} of {count(training['context'])} tokens, one every {plural(stride, 'token')}"),
        (
            "Global batch",
            f"{plural(plan.global_batch, 'window')}: micro-batch {plan.micro_batch} × {plural(plan.ranks, 'rank')} × "
            f"accumulation {plan.accumulation}",
        ),
        ("Tokens a step", count(plan.tokens_per_step)),
        ("Steps an epoch", count(plan.steps_per_epoch)),
        ("Steps in all", f"{count(plan.total_steps)}, of which {count(plan.warmup_steps)} warm up"),
        ("Tokens trained on", count(plan.total_tokens)),
        ("Schedule", f"{training['schedule']}, at most {training['learning_rate']:g}"),
    ]


def speed_pairs(speed: Speed) -> Pairs:
    """Throughput in words."""
    wait = speed.data_wait_seconds
    share = wait / speed.step_seconds if wait is not None and speed.step_seconds else None
    stalls = f"{len(speed.stalls)} saves: {duration(sum(speed.stalls))} in all" if speed.stalls else "no save"
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


def model_pairs(facts: RunFacts) -> Pairs:
    """The model in words: what families name differently is given one name."""
    config = {**facts.model_config.get("text_config", {}), **facts.model_config}
    start = facts.job["model"]["pretrained"]
    stored = ", ".join(f"{count(value)} in {FORMATS.get(kind, kind)}" for kind, value in facts.parameters.items())
    named = (
        (label, next((config[field] for field in fields if field in config), None)) for label, fields in CONFIG_FIELDS.items()
    )
    tokenizer = facts.tokenizer.manifest.details
    return [
        ("Architecture", f"{_first(config.get('architectures'))} ({config.get('model_type', 'unknown')})"),
        ("Weights from", f"pretrained {start}" if start else f"seed {facts.job['training']['seed']}"),
        ("Parameters", stored or "unknown"),
        *((label, count(value)) for label, value in named if isinstance(value, int)),
        ("Embeddings", f"{count(config.get('vocab_size'))}, for {count(tokenizer['vocab_size'])} tokens"),
        ("Tokenizer", facts.tokenizer.key),
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


def _first(names: Iterable[str] | None) -> str:
    return next(iter(names or ()), "unknown")
