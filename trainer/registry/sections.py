"""Report sections that several kinds share: curation, lm-eval figures, and the front matter of the model card.

For language models also the losses in nats a token, by corpus or by split, and samples.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

from trainer.common.display import Table, count, number, percent, perplexity, score, short, size
from trainer.curation.descriptions import decision_rows, describe_decisions
from trainer.data.decisions import KIND as DECISIONS
from trainer.data.decisions import decisions_behind
from trainer.data.shards import KIND as SHARDS
from trainer.data.splits import TEST, TRAIN, VALIDATION
from trainer.records.basis import BITS_PER_BYTE
from trainer.records.evaluations import HarnessRun, Result, Sample, Scores
from trainer.registry.content import (
    NOT_EVALUATED,
    Block,
    ReportContent,
    Section,
    Tile,
    compared_steps,
    describe_length,
    find_comparison,
    read_in,
    verdict_unmeasured,
)
from trainer.registry.facts import RunFacts
from trainer.training.metrics_reader import ASKED_BY


def describe_curation(facts: RunFacts) -> list[Block]:
    """The curation decisions about a run's text, if any, and the evaluation sets that were kept out of it."""
    decisions = facts.made_from(DECISIONS)
    if not decisions:
        return []
    described = [f"{source.key}: {describe_decisions(source.manifest.details)}." for source in decisions]
    note = f"Curation decided once which documents are kept, with a reason for each dropped one. {' '.join(described)}"
    columns = ["Corpus", "Reason", "Documents", "Share", "Bytes"]
    blocks = [Block(note, Table(columns, list(_decision_rows(facts)), words=2))]
    return [*blocks, Block(facts.clean_of.describe())] if facts.clean_of else blocks


def _decision_rows(facts: RunFacts) -> Iterator[list[str]]:
    """For each corpus: the documents kept, and those dropped by reason."""
    details = {source.key: source.manifest.details for source in facts.made_from(DECISIONS)}
    for shards in facts.made_from(SHARDS):
        for key in decisions_behind(shards.manifest):
            for row in decision_rows(details[key]):
                if row["corpus"] == shards.manifest.details["corpus"]:
                    yield [row["corpus"], row["reason"], count(row["documents"]), row["share"], size(row["bytes"])]


Value = TypeVar("Value")


def in_order(groups: Mapping[str, Value]) -> dict[str, Value]:
    """Order splits as train, validation, test; leave other groups as they are. JSON files sort them by name."""
    splits = {split: groups[split] for split in (TRAIN, VALIDATION, TEST) if split in groups}
    return splits if len(splits) == len(groups) else dict(groups)


TASKS = {
    "text-classification": "Text Classification", "token-classification": "Token Classification",
    "text-generation": "Text Generation", "fill-mask": "Fill-Mask",
}  # fmt: skip

HUB_METRICS = {
    "pearson": "pearsonr", "spearman": "spearmanr", "subset_accuracy": "accuracy", "f1_micro": "f1", "f1_macro": "f1",
}  # fmt: skip
"""The hub's names of figures that have other names in headrace."""


def describe_metadata(facts: RunFacts, content: ReportContent) -> tuple[dict[str, Any], list[str]]:
    """The front matter, and the missing entries that the hub would show, with what to do."""
    base = facts.config.get("base") or {}
    card = facts.job.get("card") or {}
    license_, language = (card.get(field) or base.get(field) for field in ("license", "language"))
    results = [result for result in content.card.results if result["metrics"]]
    family = facts.model_config.get("model_type")
    matter = {
        "library_name": "peft" if facts.is_adapter else "transformers",
        "pipeline_tag": content.card.task,
        "license": license_,
        "language": language or None,
        "base_model": base.get("hub"),
        **content.card.matter,
        "tags": ["headrace", content.card.tag, *([str(family)] if family else [])],
        "model-index": [{"name": facts.name, "results": results}] if results else None,
    }
    missing = [
        *(["license (set card.license in the job)"] if not license_ else []),
        *(["language (set card.language)"] if not language else []),
        *([f"base model ({_origin(base)})"] if base and not base["hub"] else []),
    ]
    return {key: value for key, value in matter.items() if value is not None}, missing


def index_entry(
    task: str, dataset: Mapping[str, str | None], figures: Mapping[str, tuple[str, float]]
) -> dict[str, Any]:
    """One result of a model-index; `figures` holds (label, value) by name. Values that are not finite are omitted."""
    return {
        "task": {"type": task, "name": TASKS[task]},
        "dataset": {key: value for key, value in dataset.items() if value is not None},
        "metrics": [
            {"type": hub_metric(figure), "value": value, "name": label}
            for figure, (label, value) in figures.items()
            if math.isfinite(value)
        ],
    }


def hub_metric(figure: str) -> str:
    """The hub's name of a figure."""
    name = re.split("[:/]", figure)[-1]
    return HUB_METRICS.get(name, name)


def _origin(base: dict[str, Any]) -> str:
    return (
        f"{base['name']} is {'a run of the same store' if base['origin'] == 'store' else 'a folder'}, not a model of "
        "the hub"
    )


COLUMNS = ["Task", "Figure", "Value", "Standard error", "Examples", "Solved before", "Kept out of training"]


def describe_harness(facts: RunFacts) -> list[Section]:
    """The finished model's figures on lm-eval tasks, if there are any."""
    result = facts.evaluation and facts.evaluation.harness
    if result is None or result.asked is None:
        return []
    of = f", on at most {count(result.asked.limit)} examples a task" if result.asked.limit else ""
    note = (
        f"Measured by lm-eval {result.asked.lm_eval}{of}. Questions count as kept out of training if curation of all "
        "training text searched for their fields, in every file of the task. Questions shorter than the given number "
        "of words were not searched for. For data of the hub this is not known."
    )
    doubts = [Block(f"Doubtful: {doubt}") for doubt in result.asked.doubts]
    rows = [row for name, scores in result.groups.items() for row in _task_rows(name, scores, result.asked)]
    blocks = [Block(note, Table(COLUMNS, rows, words=2)), *doubts, *_changed_tasks(facts)]
    return [Section("Results of lm-eval", blocks)]


def _changed_tasks(facts: RunFacts) -> list[Block]:
    """A note on tasks that were changed, or asked in another way, while the run was trained."""
    changed, before = [], dict[str, str]()
    for record in facts.of_kind(ASKED_BY):
        names = sorted(name for name in before.keys() & record["by"].keys() if before[name] != record["by"][name])
        changed += [f"{', '.join(names)} at step {count(record['step'])}"] if names else []
        before = record["by"]
    if not changed:
        return []
    note = f"Tasks, or the way in which they were asked, changed during training: {'; '.join(changed)}."
    return [Block(f"{note} Their figures before and after that are not comparable, also in the curves.")]


def index_harness(facts: RunFacts) -> list[dict[str, Any]]:
    """The same figures as entries of the hub's model-index, one per task."""
    result = facts.evaluation and facts.evaluation.harness
    return [
        index_entry(
            "text-generation", {"name": name, "type": name},
            {
                figure: (f"{figure} (lm-eval{_shots(scores)})", value)
                for figure, value in scores.figures.items()
            },
        )
        for name, scores in (result.groups.items() if result else ())
    ]  # fmt: skip


def _shots(scores: Scores) -> str:
    """The number of solved examples; empty for a group whose tasks differ in it."""
    few_shot = scores.counts.get("few_shot")
    return "" if few_shot is None else f", {few_shot}-shot"


def _task_rows(name: str, scores: Scores, asked: HarnessRun) -> list[list[str]]:
    few_shot = scores.counts.get("few_shot")
    solved = "differs by task" if few_shot is None else count(few_shot)
    end = [count(scores.counts["examples"]), solved, asked.tasks[name].describe_kept_out()]
    return [
        [name, figure, score(value), score(scores.errors.get(figure)), *end] for figure, value in scores.figures.items()
    ]


COUNTS = {
    "tokens": "Tokens", "answer_tokens": "Tokens of answers", "text_bytes": "Bytes of text",
    "answer_bytes": "Bytes of answers", "windows": "Windows",
}  # fmt: skip
"""Column titles of the counts."""


def describe_loss(facts: RunFacts, unit: str) -> str:
    """One line: the change of the held-out loss in training."""
    compared = find_comparison(facts)
    if compared is None:
        return verdict_unmeasured(facts, unit)
    before, after = compared.before["loss"], compared.after["loss"]
    return (
        f"Validation loss {number(before)} → {number(after)} {unit} {describe_length(facts)} "
        f"(perplexity {perplexity(before)} → {perplexity(after)})."
    )


def describe_scores(result: Result | None, unit: str, things: str) -> str:
    """One line: the finished model's figures; `things` are the evaluated tokens."""
    if result is None:
        return NOT_EVALUATED
    figures, tokens = result.judged.figures, _tokens(result.judged)
    bits = f", {number(figures[BITS_PER_BYTE])} bits a byte of text" if BITS_PER_BYTE in figures else ""
    accuracy = f", {percent(figures['accuracy'])} of them predicted correctly" if "accuracy" in figures else ""
    return (
        f"Finished model on {count(tokens)} {things}: {number(figures['loss'])} {unit}, perplexity "
        f"{perplexity(figures['loss'])}{bits}{accuracy}."
    )


def loss_tiles(facts: RunFacts) -> list[Tile]:
    """Key figures on held-out data: loss, accuracy, bits a byte, and the change in training."""
    if facts.evaluation is None:
        tiles = [Tile("Validation loss", number(None), "not evaluated")]
    else:
        figures, tokens = facts.evaluation.judged.figures, _tokens(facts.evaluation.judged)
        tiles = [Tile("Validation loss", number(figures["loss"]), f"perplexity {perplexity(figures['loss'])}")]
        if "accuracy" in figures:
            tiles.append(Tile("Accuracy", percent(figures["accuracy"]), f"of {count(tokens)} hidden tokens"))
        if BITS_PER_BYTE in figures:
            counts = facts.evaluation.judged.counts
            text = f"of {short(counts.get('text_bytes', counts.get('answer_bytes', 0)))} held-out bytes"
            masked = getattr(facts.evaluation.measured_on, "document_mask", False)  # examples have no document mask
            text += "" if masked else ", independent of the tokenizer"
            tiles.append(Tile("Bits a byte", number(figures[BITS_PER_BYTE]), text))
    if compared := find_comparison(facts):
        start, end = compared.before["step"], compared.after["step"]
        change = _signed(compared.after["loss"] - compared.before["loss"])
        tiles.append(Tile("Change in training", change, f"nats, step {start} to {count(end)}"))
    return tiles


def score_blocks(facts: RunFacts, note: str, unit: str, order: Sequence[str] = ()) -> list[Block]:
    """The finished model's scores by group, in this `order`, and the losses before and after training."""
    blocks = [Block("There is no evaluation of the finished model in the store.")]
    if facts.evaluation is not None:
        blocks = [Block(note, _score_table(facts.evaluation, unit, order))]
    if compared := find_comparison(facts):
        tokens = count(compared.after.get("tokens", compared.after.get("answer_tokens")))
        note = f"Before and after training ({compared_steps(compared)}), on {tokens} tokens evaluated during training."
        blocks.append(Block(note, _change_table(compared.before, compared.after)))
    return [*blocks, *_changed_evaluations(facts)]


def _changed_evaluations(facts: RunFacts) -> list[Block]:
    """A note on evaluations in training that read different text, because `evaluation.during_training` changed."""
    parts = [next(part) for _, part in groupby(facts.of_kind("evaluation"), read_in)]
    if len(parts) < 2:
        return []
    told = "; ".join(f"from step {count(first['step'])} on {count(first.get('tokens'))} tokens" for first in parts)
    note = f"Evaluations in training read different amounts of held-out text ({told}), so their figures differ, also in"
    return [Block(f"{note} the curve, for that reason too.")]


def _score_table(result: Result, unit: str, order: Sequence[str]) -> Table:
    """Losses, perplexities, bits a byte and counts, with a row per group and one for all."""
    found = in_order(result.groups)
    groups = {name: found[name] for name in dict.fromkeys([*order, *found]) if name in found}
    named = [name for name in COUNTS if any(name in scores.counts for scores in groups.values())]

    def row(name: str, scores: Scores) -> list[str]:
        figures, loss = scores.figures, scores.figures["loss"]
        cells = [number(loss), perplexity(loss), number(figures.get(BITS_PER_BYTE))]
        return [name, *cells, *(count(scores.counts.get(each)) for each in named)]

    columns = [result.by.capitalize(), f"Loss ({unit})", "Perplexity", "Bits a byte"]
    rows = [row(name, scores) for name, scores in groups.items()]
    return Table(
        [*columns, *(COUNTS[name] for name in named)], rows, row("All", result.total) if result.total else None
    )


def _change_table(before: dict[str, Any], after: dict[str, Any]) -> Table:
    """Losses before and after training, by corpus if there are any, and over all."""

    def row(name: str, first: float | None, last: float, bits: list[float | None]) -> list[str]:
        change = None if first is None else last - first
        losses = [number(first), number(last), _signed(change), perplexity(first), perplexity(last)]
        return [name, *losses, *map(number, bits)]

    by_corpus = [each.get("corpora_bits_per_byte", {}) for each in (before, after)]
    rows = [
        row(name, before["corpora"].get(name), loss, [each.get(name) for each in by_corpus])
        for name, loss in after.get("corpora", {}).items()
    ]
    whole = row("All", before["loss"], after["loss"], [each.get(BITS_PER_BYTE) for each in (before, after)])
    columns = [
        "Corpus" if rows else "", "Loss before", "Loss after", "Change", "Perplexity before", "Perplexity after",
        "Bits a byte before", "Bits a byte after",
    ]  # fmt: skip
    return Table(columns, rows, whole) if rows else Table(columns, [whole])


def sample_blocks(facts: RunFacts, note: str, nothing: str) -> list[Block]:
    """The model's continuations of prompts, with the expected text from the data if it is known."""
    samples = facts.evaluation.samples if facts.evaluation else []
    if not samples:
        return [Block(nothing)]
    plain = tuple((each.prompt, each.continuation) for each in samples if each.expected is None)
    return [
        Block(note, samples=plain),
        *(
            Block(_expected(each), samples=((each.prompt, each.continuation),))
            for each in samples
            if each.expected is not None
        ),
    ]


def _expected(sample: Sample) -> str:
    before = "" if sample.before is None else f" Answer before tuning: {sample.before or 'nothing'}"
    return f"Expected answer, from the data: {sample.expected}{before}"


def index_scores(facts: RunFacts, task: str, unit: str, name: str, dataset: str) -> list[dict[str, Any]]:
    """The finished model's figures as entries of the hub's model-index: over all groups, or for each split."""
    result = facts.evaluation
    if result is None:
        return []
    groups = {"validation": result.total} if result.total else in_order(result.groups)
    labels = {"loss": f"loss ({unit})", BITS_PER_BYTE: "bits a byte of text"}
    entries = [
        index_entry(
            task,
            {"name": name, "type": dataset, "split": split},
            {figure: (labels.get(figure, figure), value) for figure, value in scores.figures.items()},
        )
        for split, scores in groups.items()
    ]
    return [*entries, *index_harness(facts)]


def _tokens(scores: Scores) -> int:
    return scores.counts.get("tokens", scores.counts.get("answer_tokens", 0))


def _signed(change: float | None) -> str:
    return f"{'+' if change is not None and change > 0 else ''}{number(change)}"
