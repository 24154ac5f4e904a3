"""The tables of a fine-tuned model: figures by split, before and after, mistakes, and figures by class."""

from collections.abc import Mapping, Sequence

from trainer.common.formats import count, number, percent, score
from trainer.records.evaluations import Classification, FinetuneEvaluation
from trainer.report.summary import Comparison
from trainer.report.tables import Table

MOST_CLASSES = 24
"""A confusion matrix of more classes is not read; what is shown instead are the most frequent mistakes."""


def split_table(evaluation: FinetuneEvaluation, figures: Sequence[str], unit: str, examples: dict[str, str]) -> Table:
    """The finished model's figures by split, each with how many `examples` they are of; an unlabelled split has none."""
    rows = []
    for split, measured in examples.items():
        scores = evaluation.scores.get(split, {})
        rows.append([split, measured, *(score(scores.get(figure)) for figure in figures)])
    columns = (f"loss ({unit})" if each == "loss" else evaluation.label(each) for each in figures)
    return Table(["Split", "Examples", *columns], rows)


def change_table(compared: Comparison, figures: Mapping[str, str]) -> Table:
    """Validation figures before and after training, each with its name for people."""
    rows = []
    for figure, label in figures.items():
        before, after = (record.get(figure, float("nan")) for record in compared)
        rows.append([label, score(before), score(after), f"{'+' if after > before else ''}{score(after - before)}"])
    return Table(["Figure", "Before", "After", "Change"], rows)


def confusion_table(found: Classification, things: str) -> Table:
    """Labels by rows, predictions by columns; of many classes only the most frequent mistakes, which are so many `things`."""
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
        [each.name, number(each.precision), number(each.recall), number(each.f1), count(each.support)] for each in found.classes
    ]
    return Table([of, "Precision", "Recall", "F1", "Support"], rows)
