"""The results of compared runs, with the best one marked where all were measured alike."""

from collections.abc import Sequence

from trainer.common.formats import score
from trainer.comparison.curves import best_of, criterion_of
from trainer.comparison.runs import ComparedRun, Measured
from trainer.evaluation.metrics.measures import greater_is_better
from trainer.records.fields import all_same
from trainer.report.account import Block
from trainer.report.tables import Table

MARK = "*"


def compare_results(runs: Sequence[ComparedRun]) -> Block:
    """The final models' figures of runs of one kind."""
    measured = [measure_run(run) for run in runs]
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


def measure_run(run: ComparedRun) -> Measured:
    """The figures of a run's final model, none if it is not evaluated."""
    if run.evaluation is None:
        return {}
    return run.kind.measure(run, run.evaluation)
