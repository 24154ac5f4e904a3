"""Runs that differ in nothing but the seed, taken together: the mean of their figures, and how far they spread around it."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from trainer.common.formats import score
from trainer.comparison.results import measure_run
from trainer.comparison.runs import ComparedRun, Measured
from trainer.records.fields import all_same
from trainer.report.account import Block
from trainer.report.tables import Table
from trainer.store.manifest import fingerprint


class Spread(NamedTuple):
    """A figure's mean over some runs, and its standard deviation (with n - 1); `values` are those of the runs, in order."""

    mean: float
    deviation: float
    values: list[float]

    def told(self) -> str:
        """Both for people."""
        return f"{score(self.mean)} ± {score(self.deviation)}"


def spread_of(values: Sequence[float]) -> Spread:
    """The mean and the deviation of the figures of two runs or more."""
    return Spread(fmean(values), stdev(values), list(values))


def spreads_of(figures: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """The spread of each figure that all of the runs have."""
    shared = [name for name in figures[0] if all(name in each for each in figures)]
    return {name: spread_of([each[name] for each in figures]) for name in shared}


def compare_seeds(runs: Sequence[ComparedRun]) -> list[Block]:
    """A table of the runs of one kind that differ in the seed alone, a column for each such group; or nothing without one.

    A figure is told of the runs of a group that were measured on the same.
    """
    groups: dict[str, list[tuple[ComparedRun, Measured]]] = {}
    for run in runs:
        if measured := measure_run(run):
            groups.setdefault(_without_seed(run.config["identity"]), []).append((run, measured))
    spreads = [(group, _spread(group)) for group in groups.values() if len(group) > 1]
    names = list(dict.fromkeys(name for _, found in spreads for name in found))
    if not names:
        return []
    rows = [[name, *(found[name].told() if name in found else "" for _, found in spreads)] for name in names]
    columns = ["mean ± deviation", *(", ".join(run.letter for run, _ in group) for group, _ in spreads)]
    return [Block("Runs that differ in the seed alone, taken together.", Table(columns, rows))]


def _spread(group: Sequence[tuple[ComparedRun, Measured]]) -> dict[str, Spread]:
    """Of the figures that were measured on the same in all runs of a group."""
    first = group[0][1]
    alike = [name for name in first if all_same([each[name][1] if name in each else None for _, each in group])]
    return spreads_of([{name: each[name][0] for name in alike} for _, each in group])


def _without_seed(identity: Mapping[str, Any]) -> str:
    """What names everything that decides a run's outcome but its seed."""
    training = {name: value for name, value in identity["training"].items() if name != "seed"}
    return fingerprint({**identity, "training": training})
