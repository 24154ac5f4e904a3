"""The figures of compared runs: those of their final models, and their curves as sparklines or overlaid charts."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any, NamedTuple

from trainer.common.display import Table, count, duration, score
from trainer.config.evaluation import PREFIX
from trainer.evaluation.metrics import OF_ONE_CLASS, greater_is_better, of_one_class
from trainer.records.basis import facts_of, task_of
from trainer.records.evaluations import ALL, Criterion, Result, Scores, best_by
from trainer.records.fields import all_same
from trainer.registry.compared_runs import ComparedRun
from trainer.registry.content import Block, measure_speed, read_in
from trainer.registry.curves import SERIES, Curve, Line, draw_curves, standard_curves, task_curves, with_planned_rates
from trainer.registry.sections import in_order
from trainer.store.manifest import fingerprint
from trainer.training.metrics_reader import ASKED, ASKED_BY

Measured = dict[str, tuple[float, Any]]
"""Figures by name, each with its measurement basis; figures are compared only on an equal basis."""

MARK = "*"


def compare_results(runs: Sequence[ComparedRun]) -> Block:
    """A table of the final models' figures, for runs of one kind."""
    measured = [measure_run(run) for run in runs]
    names = list(dict.fromkeys(name for each in measured for name in each))
    missing = [run.letter for run, each in zip(runs, measured, strict=True) if not each]
    notes = [f"{', '.join(missing)}: not evaluated."] if missing else []
    if not names:
        return Block(" ".join(notes))
    apart = [name for name in names if not all_same([each[name][1] for each in measured if name in each])]
    if apart:
        notes.append(f"Measured on different data or in different ways, so none is marked best: {'; '.join(apart)}.")
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
    """Whether a greater figure is better: as a job's setting or lm-eval says, else by the figure's name."""
    stated = [better for run in runs for better in (*_stated_by_job(run, figure), *_stated_by_harness(run, figure))]
    return greater_is_better(figure, stated[0] if stated else None)


def _stated_by_job(run: ComparedRun, figure: str) -> Iterator[bool]:
    """Whether greater is better, if the run's job says so for its best checkpoint or its promotion."""
    if (criterion := criterion_of(run)).figure == figure:
        yield criterion.greater_is_better
    gate = run.job.get("promotion") or {}
    if gate.get("metric") == figure and gate.get("greater_is_better") is not None:
        yield gate["greater_is_better"]


def _stated_by_harness(run: ComparedRun, figure: str) -> Iterator[bool]:
    """Whether greater is better, if lm-eval says so for this figure."""
    task, found = task_of(figure), run.evaluation and run.evaluation.harness
    if task and found and found.asked and task in found.asked.tasks:
        better = found.asked.tasks[task].greater_is_better
        yield from (better[name] for name in better if figure == f"{PREFIX}{task}/{name}")


def measure_run(run: ComparedRun) -> Measured:
    """The figures of a run's final model, each with its measurement basis; empty if it is not evaluated."""
    found = run.evaluation
    if found is None:
        return {}
    groups: list[tuple[str | None, Scores]] = [*in_order(found.groups).items()]
    if found.total is not None:
        groups.insert(0, (None, found.total))
    measured: Measured = {
        f"{figure}, {group or ALL}": (value, [_basis(run, found, figure, group), found.positive.get(figure)])
        for group, scores in groups
        for figure, value in scores.figures.items()
    }
    beside = found.harness.figures() if found.harness else {}
    return {**measured, **{name: (value, facts_of(name, found.measured_on)) for name, value in beside.items()}}


def _basis(run: ComparedRun, found: Result, figure: str, group: str | None) -> Any:
    """The measurement basis of a figure of a group, or of all groups; the run's name if it is not recorded."""
    basis = found.basis_of(group)
    return facts_of(figure, basis) if basis else run.name


class Spread(NamedTuple):
    """A figure's mean over several runs, its standard deviation (with n - 1), and the runs' values in order."""

    mean: float
    deviation: float
    values: list[float]

    def describe(self) -> str:
        """Mean and deviation as text."""
        return f"{score(self.mean)} ± {score(self.deviation)}"


def spreads_of(figures: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """The spread of each figure that all runs have; needs two or more runs."""
    shared = [name for name in figures[0] if all(name in each for each in figures)]
    values = {name: [each[name] for each in figures] for name in shared}
    return {name: Spread(fmean(each), _deviation(each), each) for name, each in values.items()}


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation, with n - 1; NaN unless all values are finite."""
    return stdev(values) if all(map(math.isfinite, values)) else math.nan


def compare_seeds(runs: Sequence[ComparedRun]) -> list[Block]:
    """A table with a column for each group of runs of one kind that differ only in the seed; empty if there is none.

    A figure is shown if all runs of a group measured it on the same basis. Of several runs with the same seed only the
    first counts. A fork is not grouped with runs of the same settings, as it starts from other weights.
    """
    groups: dict[str, dict[int, tuple[ComparedRun, Measured]]] = {}
    for run in runs:
        if measured := measure_run(run):
            by_seed = groups.setdefault(_without_seed(run.config), {})
            by_seed.setdefault(run.config["identity"]["training"]["seed"], (run, measured))
    spreads = [(group, _spread(group)) for each in groups.values() if len(group := [*each.values()]) > 1]
    names = list(dict.fromkeys(name for _, found in spreads for name in found))
    if not names:
        return []
    rows = [[name, *(found[name].describe() if name in found else "" for _, found in spreads)] for name in names]
    columns = ["mean ± deviation", *(", ".join(run.letter for run, _ in group) for group, _ in spreads)]
    return [Block("Runs that differ only in the seed, as groups.", Table(columns, rows))]


def _spread(group: Sequence[tuple[ComparedRun, Measured]]) -> dict[str, Spread]:
    """The spreads of the figures that all runs of a group measured on the same basis."""
    first = group[0][1]
    alike = [name for name in first if all_same([each[name][1] if name in each else None for _, each in group])]
    return spreads_of([{name: each[name][0] for name in alike} for _, each in group])


def _without_seed(config: Mapping[str, Any]) -> str:
    """Fingerprint of everything except the seed that determines a run's outcome."""
    identity = config["identity"]
    training = {name: value for name, value in identity["training"].items() if name != "seed"}
    return fingerprint([{**identity, "training": training}, config["fork"]])


COMMON_STEPS = 5
"""The number of steps at which training losses are compared."""

CELLS, BLOCKS = 32, "▁▂▃▄▅▆▇█"
DASHES = ("-", "--", ":", "-.")
"""Lines differ in dash style as well as in colour."""


def criterion_of(run: ComparedRun) -> Criterion:
    """The criterion that selects a run's best checkpoint."""
    figure = best_by(run.job)
    return Criterion(figure, greater_is_better(figure, run.job["evaluation"].get("greater_is_better")))


def best_of(values: Sequence[float], greater: bool) -> float | None:
    """The best finite value, if there is one."""
    finite = [value for value in values if math.isfinite(value)]
    return (max(finite) if greater else min(finite)) if finite else None


def curve_table(runs: Sequence[ComparedRun]) -> Table:
    """Steps done, validation and training figures in training, and speed, for runs of one kind."""
    speeds = [measure_speed(run) for run in runs]
    rows = [["steps", *(f"{count(run.steps)} of {count(run.plan.get('total_steps'))}" for run in runs)]]
    for figure in dict.fromkeys(["loss", *(criterion_of(run).figure for run in runs)]):
        greater = _direction(runs, figure)
        rows.append([f"validation {figure}, best", *(_best(run, figure, greater) for run in runs)])
        rows.append([f"validation {figure}, last", *(_last(run, "evaluation", figure) for run in runs)])
    shared = common_steps(runs)
    losses = [mean_losses(run, shared) for run in runs]
    for step in _spaced(shared):
        rows.append([f"training loss, step {count(step)}", *(score(each.get(step)) for each in losses)])
    rows.append(["training loss, last record", *(_last(run, "train", "loss") for run in runs)])
    rows.append(["tokens a second (median)", *(count(speed.tokens_per_second) for speed in speeds)])
    rows.append(["time in steps", *(duration(speed.training_seconds) for speed in speeds)])
    return Table([f"loss in {runs[0].unit}", *(run.letter for run in runs)], rows)


def common_steps(runs: Sequence[ComparedRun]) -> list[int]:
    """The steps at which all runs with training records have recorded their loss."""
    recorded = [{record["step"] for record in run.of_kind("train")} for run in runs]
    return sorted(set.intersection(*(steps for steps in recorded if steps))) if any(recorded) else []


def mean_losses(run: ComparedRun, steps: Sequence[int]) -> dict[int, float]:
    """The mean training loss up to each of these steps since the one before.

    A recorded loss is the mean since the record before, so those of runs with different `log_every` are means over
    different steps. The first record of a process that continued a run between two records is the mean since then.
    """
    records: dict[int, list[dict[str, Any]]] = {}
    for record in run.of_kind("train"):
        if (place := bisect_left(steps, record["step"])) < len(steps):
            records.setdefault(steps[place], []).append(record)
    return {
        step: fmean((record["loss"] for record in each), [record.get("steps", 1) for record in each])
        for step, each in records.items()
    }


def _spaced(steps: Sequence[int]) -> list[int]:
    """Up to `COMMON_STEPS` of the steps, evenly spaced."""
    number = min(COMMON_STEPS, len(steps))
    return [steps[(len(steps) - 1) * i // max(1, number - 1)] for i in range(number)]


def spark_table(runs: Sequence[ComparedRun]) -> Table:
    """Training and validation loss as sparklines, all on the same scale."""
    curves = [(run, kind, _recorded(run, kind, "loss")) for run in runs for kind in ("train", "evaluation")]
    finite = [
        (run, kind, [point for point in points if math.isfinite(point[1])], points[-1:]) for run, kind, points in curves
    ]
    drawn = [each for each in finite if each[2]]
    values = [value for _, _, points, _ in drawn for _, value in points]
    last = max((points[-1][0] for _, _, points, _ in drawn), default=0)
    names = {"train": "training", "evaluation": "validation"}
    rows = [
        [run.letter, names[kind], sparkline(points, last, min(values), max(values)), score(ended[1])]
        for run, kind, points, (ended,) in drawn
    ]
    return Table(["", "loss", f"steps 0 to {count(last)}", "last"], rows, words=3)


def sparkline(points: Sequence[tuple[int, float]], last: int, low: float, high: float) -> str:
    """A sparkline of values over steps; each cell shows the newest value so far, unreached steps are blank."""
    cells = []
    for cell in range(CELLS):
        until = last * (cell + 1) / CELLS
        before = [value for step, value in points if step <= until]
        ended = points[-1][0] < last * cell / CELLS
        height = (before[-1] - low) / (high - low) if before and high > low else 0.0
        cells.append(" " if not before or ended else BLOCKS[min(len(BLOCKS) - 1, int(height * len(BLOCKS)))])
    return "".join(cells).rstrip()


def draw_overlays(runs: Sequence[ComparedRun]) -> dict[str, str]:
    """The report's curves for runs of one kind, as SVG by title: a chart per figure, with a line per run."""
    records = [
        {**record, "kind": f"{record['kind']} {run.letter}"}
        for run in runs
        for record in with_planned_rates(run.records)
        if record["kind"] in ("train", "evaluation", ASKED)
    ]
    of_tasks = task_curves([record for run in runs for record in run.records], criterion_of(runs[0]).figure)
    curves = [*standard_curves(runs[0].unit, runs[0].kind.metrics(runs)), *of_tasks]
    overlays = [each for curve in curves for each in _overlay(curve, runs)]
    steps = max(max(run.steps, run.plan.get("total_steps", 0)) for run in runs)
    return draw_curves(overlays, records, max(1, steps))


def _overlay(curve: Curve, runs: Sequence[ComparedRun]) -> list[Curve]:
    """A chart for each line of a report's curve, with a line per run."""
    many = len(curve.lines) > 1
    return [
        Curve(
            f"{curve.name}-{line.label}-{runs[0].letter}",
            f"{curve.title}, {line.label}" if many else curve.title,
            curve.unit,
            curve.from_zero,
            tuple(_line_of(run, line) for run in runs),
        )
        for line in curve.lines
    ]


def _line_of(run: ComparedRun, line: Line) -> Line:
    place = ord(run.letter) - ord("A")
    colour = SERIES[place % len(SERIES)]
    dash = DASHES[(place + place // math.lcm(len(SERIES), len(DASHES))) % len(DASHES)]
    return Line(run.letter, f"{line.kind} {run.letter}", line.field, colour, dash)


def _best(run: ComparedRun, figure: str, greater: bool) -> str:
    """The figure's best value in training, with its step; the untrained model does not count, nor do figures of an
    lm-eval task that has changed since, or of other held-out text than in the last evaluation.
    """
    values = [(step, value) for step, value in _recorded(_as_now(run, figure), "evaluation", figure) if step > 0]
    best = best_of([value for _, value in values], greater)
    step = next((step for step, value in values if value == best), None)
    return score(None) if best is None else f"{score(best)} at {count(step)}"


def _last(run: ComparedRun, kind: str, figure: str) -> str:
    values = _recorded(run, kind, figure)
    return score(values[-1][1] if values else None)


def _recorded(run: ComparedRun, kind: str, figure: str) -> list[tuple[int, Any]]:
    """The steps and values of a figure; lm-eval's figures are in records of a separate kind."""
    kind, field = (ASKED, figure.removeprefix(PREFIX)) if figure.startswith(PREFIX) else (kind, figure)
    return [(record["step"], record[field]) for record in run.of_kind(kind) if field in record]


def _as_now(run: ComparedRun, figure: str) -> ComparedRun:
    """The run with its records since the lm-eval task of a figure last changed; for another figure, without evaluations
    that read other held-out data than the last one, or measured the figure of another class.
    """
    task, begin = task_of(figure), 0
    if task is None:
        last: dict[str, Any] = next(reversed(run.of_kind("evaluation")), {})
        same = [each for each in run.records if each["kind"] != "evaluation" or _measures(run, figure, each, last)]
        return replace(run, records=same)
    before: dict[str, str] = {}
    for place, record in enumerate(run.records):
        if record["kind"] == ASKED_BY:
            now = record["by"]
            tasks = {task} & now.keys() or now.keys()  # a task of a group is not listed itself
            if any(before[name] != now[name] for name in tasks & before.keys()):
                begin = place
            before = now
    return replace(run, records=run.records[begin:])


def _measures(run: ComparedRun, figure: str, one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two evaluations in training measured the same: of the same data, and of the same class of two."""
    metrics = run.job["evaluation"].get("metrics")
    of_class = figure in of_one_class([*OF_ONE_CLASS] if metrics is None else metrics)
    return read_in(one) == read_in(other) and (not of_class or one.get("positive") == other.get("positive"))
