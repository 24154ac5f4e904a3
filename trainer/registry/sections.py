"""Parts of a report that several kinds have: curated text, lm-eval's figures, and the card's front matter."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from trainer.common.formats import count, number, size
from trainer.common.tables import Table
from trainer.curation.telling import decision_rows, describe_decisions
from trainer.data.decisions import KIND as DECISIONS
from trainer.data.decisions import decisions_behind
from trainer.data.shards import KIND as SHARDS
from trainer.data.splits import TEST, TRAIN, VALIDATION
from trainer.records.evaluations import Asked, Scores
from trainer.registry.content import Block, ReportContent, Section
from trainer.registry.facts import RunFacts


def describe_curation(facts: RunFacts) -> list[Block]:
    """The decisions about a run's text, if there are any, and the evaluation sets that it is clean of."""
    decisions = facts.made_from(DECISIONS)
    if not decisions:
        return []
    told = [f"{source.key}: {describe_decisions(source.manifest.details)}." for source in decisions]
    note = f"Which documents stay was decided once, with a reason for each that goes. {' '.join(told)}"
    columns = ["Corpus", "Reason", "Documents", "Share", "Bytes"]
    blocks = [Block(note, Table(columns, list(_decision_rows(facts)), words=2))]
    return [*blocks, Block(facts.clean_of.describe())] if facts.clean_of else blocks


def _decision_rows(facts: RunFacts) -> Iterator[list[str]]:
    """Of each corpus what stays, and goes for each reason."""
    details = {source.key: source.manifest.details for source in facts.made_from(DECISIONS)}
    for shards in facts.made_from(SHARDS):
        for key in decisions_behind(shards.manifest):
            for row in decision_rows(details[key]):
                if row["corpus"] == shards.manifest.details["corpus"]:
                    yield [row["corpus"], row["reason"], count(row["documents"]), row["share"], size(row["bytes"])]


Value = TypeVar("Value")


def in_order(groups: Mapping[str, Value]) -> dict[str, Value]:
    """What is known of some splits, in the order in which one reads of them, or of other groups; JSON files have them
    by name.
    """
    splits = {split: groups[split] for split in (TRAIN, VALIDATION, TEST) if split in groups}
    return splits if len(splits) == len(groups) else dict(groups)


TASKS = {
    "text-classification": "Text Classification", "token-classification": "Token Classification",
    "text-generation": "Text Generation", "fill-mask": "Fill-Mask",
}  # fmt: skip

HUB_METRICS = {
    "pearson": "pearsonr", "spearman": "spearmanr", "subset_accuracy": "accuracy", "f1_micro": "f1", "f1_macro": "f1",
}  # fmt: skip
"""What the hub calls figures that have another name here."""


def describe_metadata(facts: RunFacts, account: ReportContent) -> tuple[dict[str, Any], list[str]]:
    """The front matter, and why something that the hub shows is left out of it."""
    base = facts.config.get("base") or {}
    said = facts.job.get("card") or {}
    license_, language = (said.get(field) or base.get(field) for field in ("license", "language"))
    results = [result for result in account.card.results if result["metrics"]]
    family = facts.model_config.get("model_type")
    matter = {
        "library_name": "peft" if facts.is_adapter else "transformers",
        "pipeline_tag": account.card.task,
        "license": license_,
        "language": language or None,
        "base_model": base.get("hub"),
        **account.card.matter,
        "tags": ["headrace", account.card.tag, *([str(family)] if family else [])],
        "model-index": [{"name": facts.name, "results": results}] if results else None,
    }
    missing = [
        *(["the license (the job's setting card.license says it)"] if not license_ else []),
        *(["the language (card.language)"] if not language else []),
        *([f"the base model ({_origin(base)})"] if base and not base["hub"] else []),
    ]
    return {key: value for key, value in matter.items() if value is not None}, missing


def index_entry(
    task: str, dataset: Mapping[str, str | None], figures: Mapping[str, tuple[str, float]]
) -> dict[str, Any]:
    """One result of a model-index: figures by name, each with its name for people; those that are not finite are left
    out.
    """
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
    """What the hub calls a figure."""
    name = re.split("[:/]", figure)[-1]
    return HUB_METRICS.get(name, name)


def _origin(base: dict[str, Any]) -> str:
    return (
        f"{base['name']} is {'a run of the same store' if base['origin'] == 'store' else 'a folder'}, no model of the "
        "hub"
    )


COLUMNS = ["Task", "Figure", "Value", "Standard error", "Examples", "Solved before", "Kept out of training"]


def describe_harness(facts: RunFacts) -> list[Section]:
    """The figures of the finished model on tasks of lm-eval, if it was measured on some."""
    result = facts.evaluation and facts.evaluation.harness
    if result is None or result.asked is None:
        return []
    of = f", on at most {count(result.asked.limit)} examples a task" if result.asked.limit else ""
    note = (
        f"Measured by lm-eval {result.asked.lm_eval}{of}. A task's questions are said to be kept out of training if "
        "the decisions about all text that the model was trained on name the fields that they are made of, in each "
        "file that is asked; shorter ones than is said were not looked for. Of data of the hub it is not known."
    )
    doubts = [Block(f"Doubtful: {doubt}") for doubt in result.asked.doubts]
    rows = [row for name, scores in result.groups.items() for row in _task_rows(name, scores, result.asked)]
    return [Section("Results of lm-eval", [Block(note, Table(COLUMNS, rows, words=2)), *doubts])]


def index_harness(facts: RunFacts) -> list[dict[str, Any]]:
    """The same as the hub's model-index has it: an entry a task."""
    result = facts.evaluation and facts.evaluation.harness
    return [
        index_entry(
            "text-generation", {"name": name, "type": name},
            {
                figure: (f"{figure} (lm-eval, {scores.counts['few_shot']}-shot)", value)
                for figure, value in scores.figures.items()
            },
        )
        for name, scores in (result.groups.items() if result else ())
    ]  # fmt: skip


def _task_rows(name: str, scores: Scores, asked: Asked) -> list[list[str]]:
    end = [count(scores.counts["examples"]), count(scores.counts["few_shot"]), asked.tasks[name].tell_kept_out()]
    return [
        [name, figure, number(value), number(scores.errors.get(figure)), *end]
        for figure, value in scores.figures.items()
    ]
