"""What a report says of fine-tuning: labelled examples by split, and the metrics of the job."""

from typing import Any

from trainer.common.formats import count, plural, score
from trainer.config.labelled import BALANCED
from trainer.data.labelled.encoded import KIND as ENCODED
from trainer.data.labelled.labels import find_class_weights
from trainer.data.labelled.sources import TEST
from trainer.evaluation.metrics.measures import OF_ONE_CLASS, marks_entities, positive_class
from trainer.records.evaluations import FinetuneEvaluation, label_figure
from trainer.records.plans import FinetunePlan
from trainer.report.account import Account, Block, Section, Tile
from trainer.report.curves import standard_curves
from trainer.report.finetuning_card import make_card
from trainer.report.finetuning_data import describe_data, in_order, tell_measured
from trainer.report.finetuning_tables import MOST_CLASSES, change_table, class_table, confusion_table, split_table
from trainer.report.particulars import checkpoint_table, model_pairs, plan_pairs
from trainer.report.summary import find_comparison, size_tiles, speed_tiles, tell_length, verdict_unmeasured
from trainer.report.tables import Pairs
from trainer.runs.facts import RunFacts

RECORD_FIELDS = {"kind", "step", "examples"}
"""What an evaluation's record holds besides its figures."""

LOSS_UNITS = {
    "classification": "nats an example", "multi-label": "nats a class", "regression": "squared error", "tokens": "nats a word",
}  # fmt: skip
"""The unit of the loss, by task."""

TOLD = 3
"""Figures that have a tile."""


def describe_finetuning(facts: RunFacts, plan: FinetunePlan) -> Account:
    """The account of a fine-tuning run."""
    (encoded,) = facts.made_from(ENCODED)
    details = {**encoded.manifest.details, "splits": in_order(encoded.manifest.details["splits"])}
    evaluation = _read_evaluation(facts)
    figures = _figures(facts, evaluation)
    labels = _label_recorded(facts, evaluation, figures, details)
    unit = LOSS_UNITS[details["task"]]
    return Account(
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


def _read_evaluation(facts: RunFacts) -> FinetuneEvaluation | None:
    if facts.evaluation is None:
        return None
    by_split = {field: in_order(facts.evaluation[field]) for field in ("scores", "classification")}
    return FinetuneEvaluation(**{**facts.evaluation, **by_split})


def _figures(facts: RunFacts, evaluation: FinetuneEvaluation | None) -> list[str]:
    """The names of the validation figures: the one that decides which checkpoint is best, then the loss, then the others."""
    records = facts.of_kind("evaluation")
    found = [name for name in records[-1] if name not in RECORD_FIELDS] if records else []
    scores = evaluation.scores["validation"] if evaluation else {}
    named = dict.fromkeys([facts.job["evaluation"]["best_by"], "loss", *found, *scores])
    return [name for name in named if name in scores or name in found]


def _label_recorded(
    facts: RunFacts, evaluation: FinetuneEvaluation | None, figures: list[str], details: dict[str, Any]
) -> dict[str, str]:
    """The figures in the run's records, with their names for people: those of one class are of the one that training named."""
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


def _describe_evaluation(evaluation: FinetuneEvaluation | None, figures: list[str], details: dict[str, Any]) -> str:
    """One line: how the finished model was measured."""
    if evaluation is None:
        return "The finished model has not been evaluated: there is no evaluation in the store."
    measured = [
        f"{tell_measured(details['splits'][split])} {split} examples: "
        + ", ".join(f"{evaluation.label(figure)} {score(scores.get(figure))}" for figure in figures)
        for split, scores in evaluation.scores.items()
    ]
    return f"Finished model on {'; on '.join(measured)}."


def _tiles(
    facts: RunFacts, plan: FinetunePlan, evaluation: FinetuneEvaluation | None, figures: list[str], details: dict[str, Any]
) -> list[Tile]:
    compared = find_comparison(facts)
    scores = evaluation.scores["validation"] if evaluation else {}
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


def _note(before: float | None, evaluation: FinetuneEvaluation | None) -> str:
    return f"{score(before)} before training" if evaluation else "not evaluated"


def _results(
    facts: RunFacts, evaluation: FinetuneEvaluation | None, labels: dict[str, str], unit: str, details: dict[str, Any]
) -> list[Block]:
    """The finished model's figures by split and where its predictions are, and validation figures before and after."""
    blocks = [Block("There is no evaluation of the finished model in the store.")]
    if evaluation is not None:
        files = " and ".join(evaluation.predictions)
        examples = {split: tell_measured(each) for split, each in details["splits"].items() if split != "train"}
        note = f"The finished model on what it was not trained on. Each example's prediction is in {files}."
        blocks = [Block(note, split_table(evaluation, list(labels), unit, examples))]
    if compared := find_comparison(facts):
        steps = f"steps {count(compared.before['step'])} and {count(compared.after['step'])}"
        examples_seen = plural(compared.after["examples"], "validation example")
        blocks.append(Block(f"Before and after training ({steps}), on {examples_seen}.", change_table(compared, labels)))
    return blocks


def _classes(evaluation: FinetuneEvaluation | None, details: dict[str, Any]) -> list[Section]:
    """Which class was taken for which, and how well each is told, or each type of entity: a section a labelled split."""
    sections, by_words = [], details["task"] == "tokens"
    things = "Words" if by_words else "Examples"
    for split, found in (evaluation.classification if evaluation else {}).items():
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
