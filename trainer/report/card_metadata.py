"""The front matter of a model card, in the form that the Hugging Face hub reads."""

import math
import re
from collections.abc import Mapping
from typing import Any

from trainer.report.account import Account
from trainer.runs.facts import RunFacts

TASKS = {
    "text-classification": "Text Classification", "token-classification": "Token Classification",
    "text-generation": "Text Generation", "fill-mask": "Fill-Mask",
}  # fmt: skip

METRICS = {
    "pearson": "pearsonr", "spearman": "spearmanr", "subset_accuracy": "accuracy", "f1_micro": "f1", "f1_macro": "f1",
}  # fmt: skip
"""What the hub calls figures that have another name here."""


def describe_metadata(facts: RunFacts, account: Account) -> tuple[dict[str, Any], list[str]]:
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


def index_entry(task: str, dataset: Mapping[str, str | None], figures: Mapping[str, tuple[str, float]]) -> dict[str, Any]:
    """One result of a model-index: figures by name, each with its name for people; those that are not finite are left out."""
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
    return METRICS.get(name, name)


def _origin(base: dict[str, Any]) -> str:
    return f"{base['name']} is {'a run of the same store' if base['origin'] == 'store' else 'a folder'}, no model of the hub"
