"""The curves of compared runs: in figures, as lines of blocks, and laid over each other for a page."""

import math
from collections.abc import Sequence
from typing import Any

from trainer.common.formats import count, duration, score
from trainer.common.tables import Table
from trainer.config.evaluation import PREFIX
from trainer.evaluation.metrics import greater_is_better
from trainer.records.evaluations import Criterion, best_by
from trainer.registry.compared_runs import ComparedRun
from trainer.registry.curves import SERIES, Curve, Line, draw_curves, standard_curves, task_curves, with_planned_rates
from trainer.registry.summary import measure_speed
from trainer.training.run_records import ASKED

COMMON_STEPS = 5
"""Steps at which the runs' training losses are put side by side."""

CELLS, BLOCKS = 32, "▁▂▃▄▅▆▇█"
DASHES = ("-", "--", ":", "-.")
"""Lines differ in dashes as well as in colour."""


def criterion_of(run: ComparedRun) -> Criterion:
    """What decides which checkpoint of a run is best."""
    figure = best_by(run.job)
    return Criterion(figure, greater_is_better(figure, run.job["evaluation"].get("greater_is_better")))


def best_of(values: Sequence[float], greater: bool) -> float | None:
    """The best of some values; one that is not a number is never the best."""
    finite = [value for value in values if math.isfinite(value)]
    return (max(finite) if greater else min(finite)) if finite else None


def curve_table(runs: Sequence[ComparedRun]) -> Table:
    """How far the runs of one kind are, their validation and training figures on the way, and their speed."""
    speeds = [measure_speed(run) for run in runs]
    rows = [["steps", *(f"{count(run.steps)} of {count(run.plan.get('total_steps'))}" for run in runs)]]
    for figure in dict.fromkeys(["loss", *(criterion_of(run).figure for run in runs)]):
        rows.append([f"validation {figure}, best", *(_best(run, figure) for run in runs)])
        rows.append([f"validation {figure}, last", *(_last(run, "evaluation", figure) for run in runs)])
    for step in common_steps(runs):
        losses = ({record["step"]: record["loss"] for record in run.of_kind("train")} for run in runs)
        rows.append([f"training loss, step {count(step)}", *(score(each.get(step)) for each in losses)])
    rows.append(["training loss, last", *(_last(run, "train", "loss") for run in runs)])
    rows.append(["tokens a second (median)", *(count(speed.tokens_per_second) for speed in speeds)])
    rows.append(["time in steps", *(duration(speed.training_seconds) for speed in speeds)])
    return Table([f"loss in {runs[0].unit}", *(run.letter for run in runs)], rows)


def common_steps(runs: Sequence[ComparedRun]) -> list[int]:
    """A few steps, evenly spread, at which all runs that train have recorded their loss."""
    recorded = [{record["step"] for record in run.of_kind("train")} for run in runs]
    shared = sorted(set.intersection(*(steps for steps in recorded if steps))) if any(recorded) else []
    number = min(COMMON_STEPS, len(shared))
    return [shared[(len(shared) - 1) * i // max(1, number - 1)] for i in range(number)]


def spark_table(runs: Sequence[ComparedRun]) -> Table:
    """Training and validation loss as lines of blocks, all on the same scale."""
    curves = [(run, kind, _points(run, kind)) for run in runs for kind in ("train", "evaluation")]
    drawn = [(run, kind, points) for run, kind, points in curves if points]
    values = [value for *_, points in drawn for _, value in points]
    last = max((points[-1][0] for *_, points in drawn), default=0)
    said = {"train": "training", "evaluation": "validation"}
    rows = [
        [run.letter, said[kind], sparkline(points, last, min(values), max(values)), score(points[-1][1])]
        for run, kind, points in drawn
    ]
    return Table(["", "loss", f"steps 0 to {count(last)}", "last"], rows, words=3)


def sparkline(points: Sequence[tuple[int, float]], last: int, low: float, high: float) -> str:
    """Values over steps as blocks; each cell is the newest value so far, and what was not reached is blank."""
    cells = []
    for cell in range(CELLS):
        until = last * (cell + 1) / CELLS
        before = [value for step, value in points if step <= until]
        ended = points[-1][0] < last * cell / CELLS
        height = (before[-1] - low) / (high - low) if before and high > low else 0.0
        cells.append(" " if not before or ended else BLOCKS[min(len(BLOCKS) - 1, int(height * len(BLOCKS)))])
    return "".join(cells).rstrip()


def draw_overlays(runs: Sequence[ComparedRun]) -> dict[str, str]:
    """The report's curves of runs of one kind, a picture for each figure with a line for each run, as SVG by title."""
    records = [
        {**record, "kind": f"{record['kind']} {run.letter}"}
        for run in runs
        for record in with_planned_rates(run.records)
        if record["kind"] in ("train", "evaluation", ASKED)
    ]
    asked = task_curves([record for run in runs for record in run.records], criterion_of(runs[0]).figure)
    curves = [*standard_curves(runs[0].unit, runs[0].kind.metrics(runs)), *asked]
    overlays = [each for curve in curves for each in _overlay(curve, runs)]
    steps = max(max(run.steps, run.plan.get("total_steps", 0)) for run in runs)
    return draw_curves(overlays, records, max(1, steps))


def _overlay(curve: Curve, runs: Sequence[ComparedRun]) -> list[Curve]:
    """A picture for each line of a report's curve."""
    many = len(curve.lines) > 1
    return [
        Curve(
            f"{curve.name}-{line.label}-{runs[0].entry.name}",
            f"{curve.title}, {line.label}" if many else curve.title,
            curve.unit,
            curve.from_zero,
            tuple(_line_of(run, line) for run in runs),
        )
        for line in curve.lines
    ]


def _line_of(run: ComparedRun, line: Line) -> Line:
    place = ord(run.letter) - ord("A")
    return Line(
        run.letter, f"{line.kind} {run.letter}", line.field, SERIES[place % len(SERIES)], DASHES[place % len(DASHES)]
    )


def _points(run: ComparedRun, kind: str) -> list[tuple[int, float]]:
    return [(record["step"], record["loss"]) for record in run.of_kind(kind) if math.isfinite(record["loss"])]


def _best(run: ComparedRun, figure: str) -> str:
    """The best of the figure on the way, with its step; the untrained model's counts for nothing."""
    values = [(step, value) for step, value in _recorded(run, "evaluation", figure) if step > 0]
    own = criterion_of(run)
    greater = own.greater_is_better if own.figure == figure else greater_is_better(figure)
    best = best_of([value for _, value in values], greater)
    step = next((step for step, value in values if value == best), None)
    return score(None) if best is None else f"{score(best)} at {count(step)}"


def _last(run: ComparedRun, kind: str, figure: str) -> str:
    values = _recorded(run, kind, figure)
    return score(values[-1][1] if values else None)


def _recorded(run: ComparedRun, kind: str, figure: str) -> list[tuple[int, Any]]:
    """The steps at which a figure is recorded, and its values; lm-eval's figures stand in records of their own."""
    kind, field = (ASKED, figure.removeprefix(PREFIX)) if figure.startswith(PREFIX) else (kind, figure)
    return [(record["step"], record[field]) for record in run.of_kind(kind) if field in record]
