"""The results of compared runs, with the best one marked where all were measured alike."""

from collections.abc import Sequence
from typing import Any

from trainer.common.formats import score
from trainer.comparison.curves import best_of, criterion_of
from trainer.comparison.runs import PRETRAINING, ComparedRun
from trainer.config.jobs import TEXT_FIGURES
from trainer.metrics.measures import greater_is_better
from trainer.records.basis import TextBasis, facts_of, split_content
from trainer.records.fields import all_same
from trainer.report.account import Block
from trainer.report.finetuning_data import in_order
from trainer.report.tables import Table

MARK = "*"

Measured = dict[str, tuple[float, Any]]
"""Figures by name, each with what it was measured on: figures are compared if that is equal."""


def compare_results(runs: Sequence[ComparedRun]) -> Block:
    """The final models' figures of runs of one kind."""
    measured = [_measure(run) for run in runs]
    names = list(dict.fromkeys(name for each in measured for name in each))
    missing = [run.letter for run, each in zip(runs, measured, strict=True) if not each]
    notes = [f"{', '.join(missing)}: not evaluated."] if missing else []
    if not names:
        return Block(" ".join(notes))
    apart = [name for name in names if not all_same([each[name][1] for each in measured if name in each])]
    if apart:
        notes.append(f"Not measured on the same data, so that none of them is the best: {'; '.join(apart)}.")
    rows = [[name, *_cells(runs, name, measured, name not in apart)] for name in names]
    if any(cell.endswith(MARK) for row in rows for cell in row):
        notes.append(f"{MARK} marks the best.")
    return Block(" ".join(notes), Table([f"loss in {runs[0].unit}", *(run.letter for run in runs)], rows))


def _cells(runs: Sequence[ComparedRun], name: str, measured: Sequence[Measured], marked: bool) -> list[str]:
    values = [each[name][0] if name in each else None for each in measured]
    known = [value for value in values if value is not None]
    best = best_of(known, _direction(runs, name.rsplit(", ", 1)[0])) if marked and len(known) > 1 else None
    return [f"{score(value)}{f' {MARK}' if value is not None and value == best else '  '}" for value in values]


def _direction(runs: Sequence[ComparedRun], figure: str) -> bool:
    """Whether a greater figure is better, as a job says of its own, or as it is usual."""
    own = next((criterion_of(run) for run in runs if criterion_of(run).figure == figure), None)
    return greater_is_better(figure) if own is None else own.greater_is_better


def _measure(run: ComparedRun) -> Measured:
    if run.evaluation is None:
        return {}
    return _of_text(run.evaluation) if run.kind == PRETRAINING else _of_examples(run)


def _of_text(evaluation: dict[str, Any]) -> Measured:
    """Figures of held-out text: of all of it, then of each corpus."""
    scores = evaluation["scores"]
    found: Measured = {}
    for corpus, each in [(None, scores["total"]), *sorted(scores["corpora"].items())]:
        for figure in TEXT_FIGURES:
            if figure in each and (corpus is None or figure != "perplexity"):
                told = f"{figure.replace('_', ' ')}, {corpus or 'all'}"
                found[told] = (each[figure], _text(evaluation, figure, corpus, each))
    return found


def _text(evaluation: dict[str, Any], figure: str, corpus: str | None, score: dict[str, Any]) -> Any:
    """What a figure of a corpus, or of all, was measured on; of shards that do not record it, their names."""
    if measured_on := evaluation.get("measured_on"):
        basis = TextBasis(**measured_on)
        chosen = basis.held_out if corpus is None else {corpus: basis.held_out[corpus]}
        return facts_of(figure, basis.model_copy(update={"held_out": chosen}))
    own = [key for key in evaluation["shards"] if corpus in (None, key.split("/")[-1].rpartition("-")[0])]
    return [sorted(own), evaluation["context"], score["tokens"]]


def _of_examples(run: ComparedRun) -> Measured:
    """Figures by split, whose examples are the same if their content is, whatever the tokenizer and wherever it lies."""
    assert run.evaluation is not None
    return {
        f"{figure}, {split}": (value, [_examples(run, split), run.evaluation.get("positive", {}).get(figure)])
        for split, scores in in_order(run.evaluation["scores"]).items()
        for figure, value in scores.items()
    }


def _examples(run: ComparedRun, split: str) -> Any:
    """What tells the examples of a split from any others; of a set that is gone, its name."""
    if run.encoded is None:
        return run.config["data"]["key"]
    return split_content(run.encoded.details, run.job["data"], split)
