"""Runs side by side: what differs between them, how they went, and what came of them, in sections that text and page show."""

from collections.abc import Sequence
from typing import NamedTuple

from trainer.common.formats import plural
from trainer.comparison.curves import curve_table
from trainer.comparison.data import gone
from trainer.comparison.model import compare_models, compare_tokenizers
from trainer.comparison.results import compare_results
from trainer.comparison.runs import ComparedRun
from trainer.comparison.spread import compare_seeds
from trainer.records.fields import find_differences, flatten
from trainer.records.kinds import RUN_KINDS
from trainer.report.account import Block, Section
from trainer.report.tables import Table
from trainer.store.storage import Store

SAME = "Nothing differs."
NAME = "run"
"""The field of a job that names its run, and is shown as that."""


class Comparison(NamedTuple):
    """All that is told. `groups` are the runs of each kind: losses of different kinds have no unit in common."""

    runs: list[ComparedRun]
    verdict: str
    named: Section
    differing: list[Section]
    curves: Section
    results: Section
    groups: list[list[ComparedRun]]


def compare_runs(store: Store, runs: list[ComparedRun]) -> Comparison:
    """Compare runs of any kind, finished or not."""
    groups = [group for kind in RUN_KINDS if (group := [run for run in runs if run.kind.recorded == kind])]
    differing = {
        "Configuration": _compare_jobs(runs, groups),
        "Data": _compare_data(store, groups),
        "Tokenizer": compare_tokenizers(runs),
        "Model": compare_models(runs),
        "Environment": _compare_environments(runs),
    }
    curves = [Block(_curve_note(groups), curve_table(groups[0])), *(Block(table=curve_table(group)) for group in groups[1:])]
    return Comparison(
        runs=runs,
        verdict=_verdict(runs, differing),
        named=Section("Runs", [Block(table=_run_table(runs))]),
        differing=[Section(title, blocks or [Block(SAME)]) for title, blocks in differing.items()],
        curves=Section("Curves", curves),
        results=Section("Results", [block for group in groups for block in (compare_results(group), *compare_seeds(group))]),
        groups=groups,
    )


def _verdict(runs: Sequence[ComparedRun], told: dict[str, list[Block]]) -> str:
    """One line: what the runs differ in. A note without figures is no difference, but leaves it open whether there is one."""
    letters = ", ".join(run.letter for run in runs)
    found = [title.lower() for title, blocks in told.items() if any(block.table or block.pairs for block in blocks)]
    differing = ["kind", *found] if len({run.kind for run in runs}) > 1 else found
    if differing:
        return f"{letters} differ in {' and '.join(filter(None, [', '.join(differing[:-1]), differing[-1]]))}."
    if any(told.values()):
        return f"{letters} do not differ in what could be compared."
    return f"{letters} are identical in configuration, data, tokenizer, model and environment."


def _run_table(runs: Sequence[ComparedRun]) -> Table:
    return Table(["", "Run", "Kind", "State"], [[run.letter, run.name, run.kind.name, run.state] for run in runs], words=4)


def _compare_jobs(runs: Sequence[ComparedRun], groups: Sequence[Sequence[ComparedRun]]) -> list[Block]:
    """The settings that differ. Of runs of several kinds, those that all of them have."""
    jobs = [{field: value for field, value in run.job.items() if field != NAME} for run in runs]
    differences = find_differences(jobs)
    notes = []
    if len(groups) > 1:
        fields = {group[0].kind.name: set[str]().union(*(flatten(run.job) for run in group)) for group in groups}
        shared = set.intersection(*fields.values())
        differences = [each for each in differences if each.path in shared]
        alone = [f"{plural(len(own - shared), 'field')} of {kind}" for kind, own in fields.items()]
        notes.append(f"Not compared, as not all kinds have them: {' and '.join(alone)}.")
    if not differences:
        return [Block(note) for note in notes]
    notes.append(f"{plural(len(differences), 'field differs', 'fields differ')}.")
    columns = ["Field", *(run.letter for run in runs)]
    return [Block(" ".join(notes), Table(columns, [each.row() for each in differences], words=len(columns)))]


def _compare_data(store: Store, groups: Sequence[Sequence[ComparedRun]]) -> list[Block]:
    """The data of the runs of each kind."""
    blocks, by_kind = [], [(group[0].kind, group) for group in groups]
    if len(groups) > 1:
        told = [f"the {kind.data} of {', '.join(run.letter for run in group)} ({kind.name})" for kind, group in by_kind]
        blocks.append(Block(f"Not compared: {' with '.join(told)}."))
    for kind, group in by_kind:
        blocks += kind.compare_data(store, group)
    return blocks + gone([run for group in groups for run in group])


def _compare_environments(runs: Sequence[ComparedRun]) -> list[Block]:
    """Versions and machines, of the runs that have begun."""
    known = [run for run in runs if run.environment]
    columns = ["", *(run.letter for run in known)]
    rows = [each.row() for each in find_differences([run.environment for run in known])]
    unknown = [run.letter for run in runs if not run.environment]
    note = f"{', '.join(unknown)}: not begun yet." if unknown else ""
    table = Table(columns, rows, words=len(columns)) if rows else None
    return [Block(note, table)] if note or table else []


def _curve_note(groups: Sequence[Sequence[ComparedRun]]) -> str:
    if len(groups) == 1:
        return ""
    units = [f"{group[0].unit} ({', '.join(run.letter for run in group)})" for group in groups]
    return f"Not compared: losses in {' with losses in '.join(units)}."
