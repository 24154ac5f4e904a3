"""Report and comparison content shared by the kinds that tune a model on data in splits: the figures of each split."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainer.common.display import Pairs, Table, count, plural, score
from trainer.data.encoded import KIND as ENCODED
from trainer.data.splits import TEST, TRAIN, VALIDATION
from trainer.kinds.tuning import split_rows
from trainer.records.evaluations import Result, best_by, label_figure
from trainer.records.plans import TuningPlan
from trainer.registry.compared_runs import DIGITS, ComparedKind, ComparedRun, compare_labelled
from trainer.registry.content import (
    NOT_EVALUATED,
    Block,
    Card,
    Comparison,
    ReportContent,
    Section,
    Tile,
    begun_with,
    checkpoint_table,
    compared_steps,
    describe_length,
    find_comparison,
    model_pairs,
    opening_sentence,
    plan_pairs,
    program,
    size_tiles,
    speed_tiles,
    verdict_unmeasured,
)
from trainer.registry.curves import standard_curves
from trainer.registry.facts import RunFacts
from trainer.registry.sections import describe_harness, hub_metric, in_order, index_entry

RECORD_FIELDS = {"kind", "step", "examples", "positive"}
"""Fields of an evaluation's record that are not figures."""

TOLD = 3
"""Figures that get a tile."""

ASK = """\
messages = [{"role": "user", "content": "What is it?"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
output = model.generate(**inputs, max_new_tokens={new_tokens})
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))"""


NEW_TOKENS = 100
"""Most tokens that the example program generates; the model may have few positions."""


def use_by_asking(facts: RunFacts) -> str:
    """A program that loads an answering model and asks it something."""
    _, details = encoded_of(facts)
    most = str(min(NEW_TOKENS, details["context"] // 2))
    return program(facts, "AutoModelForCausalLM", ASK.replace("{new_tokens}", most))


def describe_tuning(
    facts: RunFacts, plan: TuningPlan, unit: str, task: str, what: str, use: str = "", data: Section | None = None,
    loss: Sequence[tuple[str, str]] = (),
) -> ReportContent:  # fmt: skip
    """The report of a run whose loss has this unit; `data` and `loss` replace and extend the usual content.

    `task` is the hub's name of the model's task, `what` the kind of model, and `use` a program that loads the model
    (default: as a causal language model).
    """
    key, details = encoded_of(facts)
    labels = label_figures(facts)
    return ReportContent(
        verdict=describe_change(facts, labels, unit),
        evaluated=describe_scores(facts.evaluation, labels, details),
        tiles=figure_tiles(facts, plan, labels, details),
        curves=standard_curves(unit, [figure for figure in labels if figure != "loss"], labels.__getitem__),
        results=[Section("Results by split", score_blocks(facts, labels, unit, details)), *describe_harness(facts)],
        samples=[],
        data=data or Section("Data", [Block(describe_origin(facts, details), data_table(details))]),
        plan=describe_plan(facts, plan, details, loss),
        model=model_pairs(facts, f"{begun_with(facts)}, fine-tuned", details["vocab_size"], key),
        checkpoints=checkpoint_table(facts, labels, score),
        card=make_card(facts, plan, labels, task, what, use or program(facts, "AutoModelForCausalLM")),
    )


def encoded_of(facts: RunFacts) -> tuple[str, dict[str, Any]]:
    """The key of a run's encoded set and its manifest's details, with the splits in order."""
    (encoded,) = facts.made_from(ENCODED)
    return encoded.key, {**encoded.manifest.details, "splits": in_order(encoded.manifest.details["splits"])}


def label_figures(facts: RunFacts) -> dict[str, str]:
    """Labels of the validation figures: first the figure that selects the best checkpoint, then the loss, then the
    others. Figures of one class are of the one that they were computed for in training, if all records say the same:
    the job may name another one since.
    """
    records, evaluation = facts.of_kind("evaluation"), facts.evaluation
    found = [name for name in records[-1] if name not in RECORD_FIELDS] if records else []
    scores = evaluation.judged.figures if evaluation else {}
    named = dict.fromkeys([best_by(facts.job), "loss", *found, *scores])
    trained: set[str] = {record.get("positive", "") for record in records}
    one = trained.pop() if len(trained) == 1 else ""
    positive = dict.fromkeys(evaluation.positive if evaluation and one else (), one)
    return {name: label_figure(name, positive) for name in named if name in scores or name in found}


def compared_figures(facts: RunFacts) -> Comparison | None:
    """The evaluations before and after training, the first without figures that were of another class then."""
    compared = find_comparison(facts)
    if compared is None or facts.evaluation is None:
        return compared
    before, after = compared
    if before.get("positive") == after.get("positive"):
        return compared
    same = {name: value for name, value in before.items() if name not in facts.evaluation.positive}
    return Comparison(same, after)


def describe_change(facts: RunFacts, labels: Mapping[str, str], unit: str) -> str:
    """One line: how training changed the first two figures."""
    compared = compared_figures(facts)
    if compared is None:
        return verdict_unmeasured(facts, unit)
    before, after = compared
    first = list(labels.items())[:2]
    changes = [f"{label} {score(before.get(figure))} → {score(after.get(figure))}" for figure, label in first]
    return f"Validation {', '.join(changes)} {describe_length(facts)}."


def describe_scores(evaluation: Result | None, figures: Mapping[str, str], details: Mapping[str, Any]) -> str:
    """One line: the finished model's figures."""
    if evaluation is None:
        return NOT_EVALUATED
    measured = [
        f"{describe_measured(details['splits'][split])} {split} examples: "
        + ", ".join(f"{evaluation.label(figure)} {score(scores.figures.get(figure))}" for figure in figures)
        for split, scores in in_order(evaluation.groups).items()
    ]
    return f"Finished model on {'; on '.join(measured)}."


def describe_measured(split: Mapping[str, Any]) -> str:
    """The number of labelled examples that a split's figures cover; for a split without labels, of all examples."""
    examples, labelled = split["examples"], split.get("labelled", split["examples"])
    return count(examples) if labelled in (0, examples) else f"{count(labelled)} of {count(examples)}"


def figure_tiles(
    facts: RunFacts, plan: TuningPlan, figures: Mapping[str, str], details: Mapping[str, Any]
) -> list[Tile]:
    """Tiles of the first validation figures, and those of every run."""
    evaluation, compared = facts.evaluation, compared_figures(facts)
    scores = evaluation.judged.figures if evaluation else {}
    before = compared.before if compared else {}
    test = f", {count(details['splits'][TEST]['examples'])} test" if TEST in details["splits"] else ""
    return [
        *(
            Tile(
                f"Validation {evaluation.label(name) if evaluation else name}",
                score(scores.get(name)),
                f"{score(evaluation.before(name, before))} before training" if evaluation else "not evaluated",
            )
            for name in list(figures)[:TOLD]
        ),
        *size_tiles(facts),
        Tile(f"Training {plan.unit}s", count(plan.examples), f"{count(plan.validation_examples)} validation{test}"),
        *speed_tiles(facts),
    ]


def score_blocks(facts: RunFacts, labels: Mapping[str, str], unit: str, details: Mapping[str, Any]) -> list[Block]:
    """The finished model's figures by split and where its predictions are, and validation figures before and after."""
    blocks, evaluation = [Block("There is no evaluation of the finished model in the store.")], facts.evaluation
    if evaluation is not None:
        files = " and ".join(evaluation.predictions)
        examples = {split: describe_measured(each) for split, each in details["splits"].items() if split != TRAIN}
        predicted = f" Each example's prediction is in {files}." if files else ""
        note = f"The finished model on examples that it was not trained on.{predicted}"
        blocks = [Block(note, split_table(evaluation, list(labels), unit, examples))]
    if compared := compared_figures(facts):
        seen = (
            f", on {plural(compared.after['examples'], 'validation example')}" if "examples" in compared.after else ""
        )
        note = f"Before and after training ({compared_steps(compared)}){seen}."
        blocks.append(Block(note, change_table(compared, labels)))
    return blocks


def split_table(evaluation: Result, figures: Sequence[str], unit: str, examples: Mapping[str, str]) -> Table:
    """The finished model's figures by split, each with the number of `examples` they cover (none if unlabelled)."""
    rows = []
    for split, measured in examples.items():
        scores = evaluation.groups[split].figures if split in evaluation.groups else {}
        rows.append([split, measured, *(score(scores.get(figure)) for figure in figures)])
    columns = (f"loss ({unit})" if each == "loss" else evaluation.label(each) for each in figures)
    return Table(["Split", "Examples", *columns], rows)


def change_table(compared: Comparison, figures: Mapping[str, str]) -> Table:
    """Validation figures before and after training, each with its label."""
    rows = []
    for figure, label in figures.items():
        before, after = (record.get(figure, float("nan")) for record in compared)
        rows.append([label, score(before), score(after), f"{'+' if after > before else ''}{score(after - before)}"])
    return Table(["Figure", "Before", "After", "Change"], rows)


def describe_origin(facts: RunFacts, details: Mapping[str, Any]) -> str:
    """Where the data comes from, and how it was split."""
    data, task = facts.job["data"], details["task"]
    origin = f"from {data['path']} ({data['source']})" if data["path"] else f"of {data['source']} files"
    cut = f" A share of {data['validation_fraction']:g} is held out for validation, by a hash of each record's content."
    return f"Data set {details['name']} ({task}), {origin}.{cut if details['source']['validation_cut'] else ''}"


def describe_in_train(details: Mapping[str, Any], what: str) -> Iterator[str]:
    """Sentences on splits that share examples with train, which makes their figures too good."""
    for split, found in details["splits"].items():
        # A set encoded before splits had their own counts has one count, of validation.
        before = details.get("duplicates_across", 0) if split == VALIDATION else 0
        if number := found.get("in_train", before):
            are = "is" if number == 1 else "are"
            yield f"{plural(number, f'{split} {what}')} {are} in train as well, so the {split} figures are too good."


def data_table(details: Mapping[str, Any], columns: Sequence[str] = ()) -> Table:
    """What each split of an encoded set holds, with counts of truncated and rejected records."""
    rows = split_rows(details)
    named = list(columns) or [name.replace("_", " ").capitalize() for name in rows[0]]
    return Table(named, [[each if isinstance(each, str) else count(each) for each in row.values()] for row in rows])


def describe_plan(
    facts: RunFacts, plan: TuningPlan, details: Mapping[str, Any], own: Sequence[tuple[str, str]]
) -> Pairs:
    """The step plan in words, with the kind's `own` lines."""
    job = facts.job
    order = "batches of about the same length" if job["training"]["group_by_length"] else "shuffled"
    patience = job["training"]["early_stopping"]
    stop = f"; training ends after {plural(patience, 'evaluation')} without a better one" if patience else ""
    pairs = [
        ("Tokens an epoch", count(details["splits"][TRAIN]["tokens"])),
        ("Best checkpoint", f"by {best_by(job)}{stop}"),
        *own,
    ]
    return plan_pairs(facts, plan.unit, f"{count(plan.examples)}, {order}", pairs)


def make_card(facts: RunFacts, plan: TuningPlan, figures: Mapping[str, str], task: str, what: str, use: str) -> Card:
    """The model card: a summary of the model, its figures by split, and a program that uses it."""
    data = facts.job["data"]
    of_hub = data["source"] == "hub"
    metrics = list(dict.fromkeys(hub_metric(figure) for figure in figures if figure != "loss"))
    how = f"fine-tuned from {begun_with(facts)} on {plural(plan.examples, plan.unit)}"
    summary = opening_sentence(facts, f"{what} model", how)
    named = {"name": data["name"], "type": data["path"] if of_hub else data["name"], "config": data["subset"]}
    matter = {**({"datasets": [data["path"]]} if of_hub else {}), **({"metrics": metrics} if metrics else {})}
    evaluation, groups = facts.evaluation, in_order(facts.evaluation.groups) if facts.evaluation else {}
    results = [
        index_entry(
            task,
            {**named, "split": split},
            {figure: (evaluation.label(figure), value) for figure, value in scores.figures.items() if figure != "loss"},
        )
        for split, scores in groups.items()
        if evaluation
    ]
    return Card(task, what.replace(" ", "-"), matter, results, summary, use)


def recorded_metrics(runs: Sequence[ComparedRun]) -> list[str]:
    """The figures of the runs' evaluations during training, besides the loss."""
    names = [name for run in runs for record in run.of_kind("evaluation")[-1:] for name in record]
    return [name for name in dict.fromkeys(names) if name not in RECORD_FIELDS and name != "loss"]


def compare_tuning(
    data: str,
    unit: Callable[[ComparedRun], str],
    metrics: Callable[[Sequence[ComparedRun]], list[str]] = recorded_metrics,
) -> ComparedKind:
    """What a comparison shows of runs on encoded sets, which it calls `data`."""
    return ComparedKind(
        data=data,
        unit=unit,
        tokenizer=_tokenizer,
        compare_data=lambda store, runs: compare_labelled(runs),
        metrics=metrics,
    )


def _tokenizer(run: ComparedRun) -> dict[str, str]:
    if run.encoded is None:
        return {}
    details = run.encoded.details
    return {"vocabulary": count(details["vocab_size"]), "digest": details["tokenizer_sha256"][:DIGITS]}
