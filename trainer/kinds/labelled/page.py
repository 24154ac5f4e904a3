"""What a report and a comparison say of fine-tuning: labelled examples by split, and the metrics of the job."""

from dataclasses import replace
from typing import Any

from trainer.common.formats import count, number, percent
from trainer.config.labelled import BALANCED
from trainer.data.labelled.encoded import find_class_weights
from trainer.evaluation.own_metrics import marks_entities
from trainer.kinds.labelled.card import hub_task, tell_model, use_of
from trainer.kinds.labelled.data_section import describe_data
from trainer.kinds.tuning_page import compare_tuning, describe_tuning, encoded_of
from trainer.records.basis import split_content
from trainer.records.evaluations import Classification, Result
from trainer.records.plans import TuningPlan
from trainer.registry.content import Block, ReportContent, Section
from trainer.registry.facts import RunFacts
from trainer.registry.sections import in_order
from trainer.registry.tables import Pairs, Table

MOST_CLASSES = 24
"""A confusion matrix of more classes is not read; what is shown instead are the most frequent mistakes."""


def confusion_table(found: Classification, things: str) -> Table:
    """Labels by rows, predictions by columns; of many classes only the most frequent mistakes, which are so many
    `things`.
    """
    names = [each.name for each in found.classes]
    if len(names) > MOST_CLASSES:
        return _mistake_table(found, names, things)
    rows = [[name, *map(count, row), count(sum(row))] for name, row in zip(names, found.confusion, strict=True)]
    sums = [sum(column) for column in zip(*found.confusion, strict=True)]
    return Table(["Label", *names, "All"], rows, ["All", *map(count, sums), count(sum(sums))], diagonal=True)


def _mistake_table(found: Classification, names: list[str], things: str) -> Table:
    mistakes = [
        (times, label, predicted)
        for label, row in enumerate(found.confusion)
        for predicted, times in enumerate(row)
        if times and label != predicted
    ]
    ranked = sorted(mistakes, key=lambda mistake: -mistake[0])[:MOST_CLASSES]
    rows = [
        [names[label], names[predicted], count(times), percent(times / found.classes[label].support)]
        for times, label, predicted in ranked
    ]
    return Table(["Label", "Predicted", things, "Share of the label"], rows, words=2)


def class_table(found: Classification, of: str = "Class") -> Table:
    """How well each class is told, or whatever the figures are `of`."""
    rows = [
        [each.name, number(each.precision), number(each.recall), number(each.f1), count(each.support)]
        for each in found.classes
    ]
    return Table([of, "Precision", "Recall", "F1", "Support"], rows)


LOSS_UNITS = {
    "classification": "nats an example", "multi-label": "nats a class", "regression": "squared error",
    "tokens": "nats a word",
}  # fmt: skip
"""The unit of the loss, by task."""


def describe_finetuning(facts: RunFacts, plan: TuningPlan) -> ReportContent:
    """The account of a fine-tuning run."""
    _, details = encoded_of(facts)
    content = describe_tuning(
        facts, plan, LOSS_UNITS[details["task"]], hub_task(details), tell_model(details), use_of(details),
        data=describe_data(facts, details), loss=_loss(facts.job["training"], details),
    )  # fmt: skip
    return replace(
        content,
        results=[*content.results, *_classes(facts.evaluation, details)],
        model=[*content.model, _output(details)],
    )


def _output(details: dict[str, Any]) -> tuple[str, str]:
    """What the model gives, by name."""
    classes: list[str] = details["classes"] or []
    named = ", ".join(f"{number} {name}" for number, name in enumerate(classes[:MOST_CLASSES]))
    more = f" and {count(len(classes) - MOST_CLASSES)} more" if len(classes) > MOST_CLASSES else ""
    return ("Classes", named + more) if classes else ("Output", "one number")


def _classes(evaluation: Result | None, details: dict[str, Any]) -> list[Section]:
    """Which class was taken for which, and how well each is told, or each type of entity: a section a labelled
    split.
    """
    sections, by_words = [], details["task"] == "tokens"
    things = "Words" if by_words else "Examples"
    for split, found in in_order(evaluation.classification if evaluation else {}).items():
        if by_words and marks_entities(details["classes"]):
            told = "How well the entities of each type are found: all words of one, with its type."
            sections.append(Section(f"Entities: {split}", [Block(told, class_table(found, "Type"))]))
            continue
        blocks = [Block("How well each class is told.", class_table(found))]
        if found.confusion:  # one class an example, so that one is taken for another
            few = len(found.classes) <= MOST_CLASSES
            note = f"{things} by their label (rows) and prediction (columns)." if few else "The most frequent mistakes."
            blocks.insert(0, Block(note, confusion_table(found, things)))
        sections.append(Section(f"Classes: {split}", blocks))
    return sections


def _loss(training: dict[str, Any], details: dict[str, Any]) -> Pairs:
    """What of the loss is other than usual; runs of before there was a choice do not say."""
    told, wanted = [], training.get("class_weights")
    if wanted:
        classes: list[str] = details["classes"]
        weights = find_class_weights(wanted, classes, details["splits"]["train"]["class_counts"])
        named = [f"{name} {weight:.4g}" for name, weight in zip(classes, weights, strict=True)]
        more = f" and {count(len(named) - MOST_CLASSES)} more" if len(named) > MOST_CLASSES else ""
        balanced = f"{BALANCED}: " if wanted == BALANCED else ""
        told.append(("Class weights", f"{balanced}{', '.join(named[:MOST_CLASSES])}{more}"))
    if smoothing := training.get("label_smoothing"):
        told.append(("Label smoothing", f"{smoothing:g}"))
    return told


COMPARED = compare_tuning(
    "labelled sets",
    unit=lambda run: LOSS_UNITS[run.job["data"]["task"]],
    measured_on=lambda figure, details, job, split: split_content(details, job["data"], split),
)
