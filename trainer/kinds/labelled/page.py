"""What a report and a comparison say of fine-tuning: labelled examples by split, and the metrics of the job."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.common.formats import count, number, percent, plural, score
from trainer.config.labelled import BALANCED
from trainer.data.encoded import KIND as ENCODED
from trainer.data.labelled.encoded import find_class_weights
from trainer.data.splits import TEST
from trainer.evaluation.metrics.measures import OF_ONE_CLASS, marks_entities, positive_class
from trainer.kinds.labelled.card import make_card
from trainer.records import run_kinds
from trainer.records.basis import split_content
from trainer.records.evaluations import Classification, Result, label_figure
from trainer.records.plans import FinetunePlan
from trainer.registry.compare_data import DIGITS, compare_labelled
from trainer.registry.compared_runs import ComparedKind, ComparedRun
from trainer.registry.content import Block, ReportContent, Section, Tile
from trainer.registry.curves import standard_curves
from trainer.registry.facts import RunFacts
from trainer.registry.sections import describe_data, in_order, tell_measured
from trainer.registry.summary import (
    NOT_EVALUATED,
    Comparison,
    checkpoint_table,
    find_comparison,
    model_pairs,
    plan_pairs,
    size_tiles,
    speed_tiles,
    tell_length,
    tell_steps,
    verdict_unmeasured,
)
from trainer.registry.tables import Pairs, Table
from trainer.store.manifest import fingerprint

MOST_CLASSES = 24
"""A confusion matrix of more classes is not read; what is shown instead are the most frequent mistakes."""


def split_table(evaluation: Result, figures: Sequence[str], unit: str, examples: dict[str, str]) -> Table:
    """The finished model's figures by split, each with how many `examples` they are of; an unlabelled split has
    none.
    """
    rows = []
    for split, measured in examples.items():
        scores = evaluation.groups[split].figures if split in evaluation.groups else {}
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


RECORD_FIELDS = {"kind", "step", "examples"}
"""What an evaluation's record holds besides its figures."""

LOSS_UNITS = {
    "classification": "nats an example", "multi-label": "nats a class", "regression": "squared error",
    "tokens": "nats a word",
}  # fmt: skip
"""The unit of the loss, by task."""

TOLD = 3
"""Figures that have a tile."""


def describe_finetuning(facts: RunFacts, plan: FinetunePlan) -> ReportContent:
    """The account of a fine-tuning run."""
    (encoded,) = facts.made_from(ENCODED)
    details = {**encoded.manifest.details, "splits": in_order(encoded.manifest.details["splits"])}
    evaluation = facts.evaluation
    figures = _figures(facts, evaluation)
    labels = _label_recorded(facts, evaluation, figures, details)
    unit = LOSS_UNITS[details["task"]]
    return ReportContent(
        verdict=_verdict(facts, labels, unit),
        evaluated=_describe_evaluation(evaluation, figures, details),
        tiles=_tiles(facts, plan, evaluation, figures, details),
        curves=standard_curves(unit, [figure for figure in figures if figure != "loss"], labels.__getitem__),
        results=[
            Section("Results by split", _results(facts, evaluation, labels, unit, details)),
            *_classes(evaluation, details),
        ],
        samples=[],
        data=describe_data(facts, details),
        plan=_plan(facts, plan, details),
        model=_model(facts, encoded.key, details),
        checkpoints=checkpoint_table(facts, labels, score),
        card=make_card(facts, plan, evaluation, figures, details),
    )


def _figures(facts: RunFacts, evaluation: Result | None) -> list[str]:
    """The names of the validation figures: the one that decides which checkpoint is best, then the loss, then the
    others.
    """
    records = facts.of_kind("evaluation")
    found = [name for name in records[-1] if name not in RECORD_FIELDS] if records else []
    scores = evaluation.judged.figures if evaluation else {}
    named = dict.fromkeys([facts.job["evaluation"]["best_by"], "loss", *found, *scores])
    return [name for name in named if name in scores or name in found]


def _label_recorded(
    facts: RunFacts, evaluation: Result | None, figures: list[str], details: dict[str, Any]
) -> dict[str, str]:
    """The figures in the run's records, with their names for people: those of one class are of the one that training
    named.
    """
    classes = details["classes"] or []
    wanted = facts.job["evaluation"].get("positive_class")
    trained = classes[positive_class(wanted, classes, list(OF_ONE_CLASS))] if len(classes) == 2 else ""
    positive = dict.fromkeys(evaluation.positive if evaluation else (), trained)
    return {figure: label_figure(figure, positive) for figure in figures}


def _verdict(facts: RunFacts, labels: dict[str, str], unit: str) -> str:
    """One line: what training did to the two first figures."""
    compared = find_comparison(facts)
    if compared is None:
        return verdict_unmeasured(facts, unit)
    before, after = compared
    first = list(labels.items())[:2]
    changes = [f"{label} {score(before.get(figure))} → {score(after.get(figure))}" for figure, label in first]
    return f"Validation {', '.join(changes)} {tell_length(facts)}."


def _describe_evaluation(evaluation: Result | None, figures: list[str], details: dict[str, Any]) -> str:
    """One line: how the finished model was measured."""
    if evaluation is None:
        return NOT_EVALUATED
    measured = [
        f"{tell_measured(details['splits'][split])} {split} examples: "
        + ", ".join(f"{evaluation.label(figure)} {score(scores.figures.get(figure))}" for figure in figures)
        for split, scores in in_order(evaluation.groups).items()
    ]
    return f"Finished model on {'; on '.join(measured)}."


def _tiles(
    facts: RunFacts,
    plan: FinetunePlan,
    evaluation: Result | None,
    figures: list[str],
    details: dict[str, Any],
) -> list[Tile]:
    compared = find_comparison(facts)
    scores = evaluation.judged.figures if evaluation else {}
    before = compared.before if compared else {}
    test = f", {count(details['splits'][TEST]['examples'])} test" if TEST in details["splits"] else ""
    return [
        *(
            Tile(
                f"Validation {evaluation.label(name) if evaluation else name}",
                score(scores.get(name)),
                _note(before.get(name), evaluation),
            )
            for name in figures[:TOLD]
        ),
        *size_tiles(facts),
        Tile("Training examples", count(plan.examples), f"{count(plan.validation_examples)} validation{test}"),
        *speed_tiles(facts),
    ]


def _note(before: float | None, evaluation: Result | None) -> str:
    return f"{score(before)} before training" if evaluation else "not evaluated"


def _results(
    facts: RunFacts, evaluation: Result | None, labels: dict[str, str], unit: str, details: dict[str, Any]
) -> list[Block]:
    """The finished model's figures by split and where its predictions are, and validation figures before and after."""
    blocks = [Block("There is no evaluation of the finished model in the store.")]
    if evaluation is not None:
        files = " and ".join(evaluation.predictions)
        examples = {split: tell_measured(each) for split, each in details["splits"].items() if split != "train"}
        note = f"The finished model on what it was not trained on. Each example's prediction is in {files}."
        blocks = [Block(note, split_table(evaluation, list(labels), unit, examples))]
    if compared := find_comparison(facts):
        examples_seen = plural(compared.after["examples"], "validation example")
        blocks.append(
            Block(
                f"Before and after training ({tell_steps(compared)}), on {examples_seen}.",
                change_table(compared, labels),
            )
        )
    return blocks


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


def _plan(facts: RunFacts, plan: FinetunePlan, details: dict[str, Any]) -> Pairs:
    job = facts.job
    order = "batches of about the same length" if job["training"]["group_by_length"] else "shuffled"
    patience = job["training"]["early_stopping"]
    stop = f"; training ends after {plural(patience, 'evaluation')} without a better one" if patience else ""
    own = [
        ("Tokens an epoch", count(details["splits"]["train"]["tokens"])),
        ("Best checkpoint", f"by {job['evaluation']['best_by']}{stop}"),
        *_loss(job["training"], details),
    ]
    return plan_pairs(facts, "example", f"{count(plan.examples)}, {order}", own)


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


def _model(facts: RunFacts, encoded: str, details: dict[str, Any]) -> Pairs:
    origin = f"{facts.job['model']['pretrained']}, fine-tuned"
    classes: list[str] = details["classes"] or []
    named = ", ".join(f"{number} {name}" for number, name in enumerate(classes[:MOST_CLASSES]))
    more = f" and {count(len(classes) - MOST_CLASSES)} more" if len(classes) > MOST_CLASSES else ""
    output = ("Classes", named + more) if classes else ("Output", "one number")
    return [*model_pairs(facts, origin, details["vocab_size"], encoded), output]


def _tokenizer(run: ComparedRun) -> dict[str, str]:
    if run.encoded is None:
        return {}
    details = run.encoded.details
    return {"vocabulary": count(details["vocab_size"]), "digest": details["tokenizer_sha256"][:DIGITS]}


def _measured_on(run: ComparedRun, figure: str, split: str | None) -> Any:
    """What tells the examples of a split from any others, whatever the tokenizer and wherever they lie; of a set that
    is gone, its name.
    """
    if run.encoded is None or split is None:
        return run.config["data"]["key"]
    return split_content(run.encoded.details, run.job["data"], split)


def _metrics(runs: Sequence[ComparedRun]) -> list[str]:
    names = [name for run in runs for record in run.of_kind("evaluation")[-1:] for name in record]
    return [name for name in dict.fromkeys(names) if name not in RECORD_FIELDS and name != "loss"]


FINE_TUNING = ComparedKind(
    recorded=run_kinds.FINE_TUNING,
    data="labelled sets",
    unit=lambda run: LOSS_UNITS[run.job["data"]["task"]],
    tokenizer=_tokenizer,
    tokenizer_note="A fine-tuning run's tokenizer is the file that its model's library saved: digests differ by that, "
    "too.",
    base=lambda run: fingerprint(run.config["identity"]["model"]),
    compare_data=lambda store, runs: compare_labelled(runs),
    measured_on=_measured_on,
    metrics=_metrics,
)
