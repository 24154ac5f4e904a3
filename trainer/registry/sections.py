"""Parts of a report that several kinds have: curated text, labelled splits, lm-eval's figures, and the card's front
matter.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from trainer.common.formats import count, number, percent, plural, significant, size
from trainer.curation.telling import decision_rows, describe_decisions
from trainer.data.decisions import KIND as DECISIONS
from trainer.data.decisions import decisions_behind
from trainer.data.labelled.sources import TEST, TRAIN, VALIDATION
from trainer.data.shards import KIND as SHARDS
from trainer.records.basis import HarnessResult, HarnessScores
from trainer.registry.content import Block, ReportContent, Section
from trainer.registry.facts import RunFacts
from trainer.registry.tables import Pairs, Table


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

KINDS = {
    "classification": "ids of classes", "multi-label": "which classes apply", "regression": "numbers",
    "tokens": "the id of each word's class",
}  # fmt: skip
"""What labels become, by task."""


def in_order(splits: Mapping[str, Value]) -> dict[str, Value]:
    """What is known of some splits, in the order in which one reads of them; JSON files have them by name."""
    return {split: splits[split] for split in (TRAIN, VALIDATION, TEST) if split in splits}


def tell_measured(split: Mapping[str, Any]) -> str:
    """How many examples of a split figures are of: those that are labelled. Of a split without labels, how many it
    has.
    """
    examples, labelled = count(split["examples"]), count(split["labelled"])
    return examples if split["labelled"] in (0, split["examples"]) else f"{labelled} of {examples}"


def describe_data(facts: RunFacts, details: dict[str, Any]) -> Section:
    """The section on an encoded set, whose manifest has these details."""
    blocks = [Block(_note(facts, details), _split_table(details))]
    if details["classes"]:
        things, seen = ("Words", " and seen") if details["task"] == "tokens" else ("Examples", "")
        blocks.append(
            Block(f"{things} of each class, and their share of those that are labelled{seen}.", _balance_table(details))
        )
    return Section("Data", [*blocks, Block("What became of the columns.", pairs=_columns(facts, details))])


def _note(facts: RunFacts, details: dict[str, Any]) -> str:
    """Where the data comes from, how it was split and cut, and what casts doubt on its validation."""
    data, across = facts.job["data"], details["duplicates_across"]
    if data["source"] == "hub":
        origin = (
            f"data set {data['path']}{' (' + data['subset'] + ')' if data['subset'] else ''} of the Hugging Face hub"
        )
    else:
        origin = f"data set {details['name']}, {'from ' + data['path'] if data['path'] else data['source'] + ' files'}"
    notes = [f"{'A label for each word' if details['task'] == 'tokens' else details['task'].capitalize()}: {origin}."]
    if details["source"]["validation_cut"]:
        fraction = f"{data['validation_fraction']:g}"
        notes.append(f"A share of {fraction} of the examples is held out for validation, by a hash of their text.")
    if across:
        held_out = plural(details["splits"]["validation"]["examples"], "validation example")
        notes.append(f"{count(across)} of {held_out} are in train as well, so the validation figures flatter.")
    return " ".join(notes)


def _columns(facts: RunFacts, details: dict[str, Any]) -> Pairs:
    length = f", at most {count(details['max_length'])} tokens" if details["max_length"] else ""
    pair = "a pair" if len(details["text_columns"]) > 1 else "words" if details["task"] == "tokens" else "a text"
    name, kind = facts.job["data"]["id_column"], KINDS[details["task"]]
    divider = f"; {details['divider']!r} between its texts" if details["divider"] else ""
    return [
        ("Text", f"{', '.join(details['text_columns'])} → input_ids: {pair}{length}{divider}"),
        ("Padding", f"{details['pad_token']!r}{', its end token: it has no other' if details['pad_is_end'] else ''}"),
        ("Label", f"{details['label_column']} → labels: {kind}"),
        ("Id", f"{name} → id" if name else "the number of the row → id"),
        ("Dropped", ", ".join(details["dropped_columns"]) or "none"),
    ]


def _split_table(details: dict[str, Any]) -> Table:
    """What each split of an encoded set holds."""
    columns = [
        "Split",
        "Examples",
        "Labelled",
        "Tokens",
        "Mean",
        "Longest",
        "Truncated",
        "Share truncated",
        "Bad records",
    ]
    numbers = ("mean", "min", "max") if details["task"] == "regression" else ()
    words = ("words", "unseen_words") if details["task"] == "tokens" else ()
    rows = []
    for name, split in details["splits"].items():
        examples, tokens = split["examples"], split["tokens"]
        target = split.get("target") or {}
        rows.append(
            [
                name, count(examples), count(split["labelled"]), count(tokens), number(tokens / examples, 1),
                count(split["longest"]), count(split["truncated"]), percent(split["truncated"] / examples),
                count(split["bad_records"]), *(significant(target.get(each), 4) for each in numbers),
                *(count(split[each]) for each in words),
            ]
        )  # fmt: skip
    told = [*(f"Target's {each}" for each in numbers), *(["Words", "Words not seen"] if words else [])]
    return Table([*columns, *told], rows)


def _balance_table(details: dict[str, Any]) -> Table:
    """How many examples, or words, of each class a split has, and their share of its labelled ones."""
    splits = {name: split for name, split in details["splits"].items() if split["labelled"]}
    by_words = details["task"] == "tokens"
    wholes = [sum(split["class_counts"].values()) if by_words else split["labelled"] for split in splits.values()]
    rows = [
        [
            name,
            *(
                cell
                for split, whole in zip(splits.values(), wholes, strict=True)
                for cell in _with_share(split["class_counts"][name], whole)
            ),
        ]
        for name in details["classes"]
    ]
    return Table(["Class", *(column for name in splits for column in (name, "Share"))], rows)


def _with_share(part: int, whole: int) -> list[str]:
    return [count(part), percent(part / whole)]


TASKS = {
    "text-classification": "Text Classification", "token-classification": "Token Classification",
    "text-generation": "Text Generation", "fill-mask": "Fill-Mask",
}  # fmt: skip

METRICS = {
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
    return METRICS.get(name, name)


def _origin(base: dict[str, Any]) -> str:
    return (
        f"{base['name']} is {'a run of the same store' if base['origin'] == 'store' else 'a folder'}, no model of the "
        "hub"
    )


COLUMNS = ["Task", "Figure", "Value", "Standard error", "Examples", "Solved before", "Kept out of training"]


def describe_harness(facts: RunFacts) -> list[Section]:
    """The figures of the finished model on tasks of lm-eval, if it was measured on some."""
    result = _read(facts)
    if result is None:
        return []
    of = f", on at most {count(result.limit)} examples a task" if result.limit else ""
    note = (
        f"Measured by lm-eval {result.lm_eval}{of}. A task's questions are said to be kept out of training if the "
        "decisions about all text that the model was trained on name the fields that they are made of, in each file "
        "that is asked; shorter ones than is said were not looked for. Of data of the hub it is not known."
    )
    doubts = [Block(f"Doubtful: {doubt}") for doubt in result.doubts]
    rows = [row for name, scores in result.tasks.items() for row in _task_rows(name, scores)]
    return [Section("Results of lm-eval", [Block(note, Table(COLUMNS, rows, words=2)), *doubts])]


def index_harness(facts: RunFacts) -> list[dict[str, Any]]:
    """The same as the hub's model-index has it: an entry a task."""
    result = _read(facts)
    tasks = result.tasks if result else {}
    return [
        index_entry(
            "text-generation", {"name": name, "type": name},
            {figure: (f"{figure} (lm-eval, {scores.few_shot}-shot)", each.value) for figure,
            each in scores.figures.items()},
        )
        for name, scores in tasks.items()
    ]  # fmt: skip


def _read(facts: RunFacts) -> HarnessResult | None:
    told = (facts.evaluation or {}).get("harness")
    return HarnessResult(**told) if told else None


def _task_rows(name: str, scores: HarnessScores) -> list[list[str]]:
    end = [count(scores.examples), count(scores.few_shot), scores.tell_kept_out()]
    return [[name, figure, number(each.value), number(each.error), *end] for figure, each in scores.figures.items()]
