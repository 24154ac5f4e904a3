"""Runs side by side: what differs between them, how they went, and what came of them."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from markupsafe import Markup

from trainer import __version__
from trainer.common.formats import NOTHING, count, plural, score
from trainer.common.tables import Table, text_table
from trainer.config.evaluation import PREFIX
from trainer.config.kinds import KINDS
from trainer.evaluation.metrics import greater_is_better
from trainer.records.basis import facts_of, task_of
from trainer.records.evaluations import ALL, Result, Scores
from trainer.records.fields import all_same, find_differences, flatten, show
from trainer.registry.compare_curves import best_of, criterion_of, curve_table, draw_overlays, spark_table
from trainer.registry.compare_data import gone
from trainer.registry.compared_runs import ComparedRun, Measured
from trainer.registry.content import Block, Section
from trainer.registry.report import open_template
from trainer.registry.sections import in_order
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

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
        notes.append(f"Not measured on the same, in the same way, so that none of them is best: {'; '.join(apart)}.")
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
    """Whether a greater figure is better, as a job says of its own, as lm-eval says, or as it is usual."""
    said = [better for run in runs for better in (*_said_by_job(run, figure), *_said_by_harness(run, figure))]
    return greater_is_better(figure, said[0] if said else None)


def _said_by_job(run: ComparedRun, figure: str) -> Iterator[bool]:
    """Whether a greater one is better, if a figure decides about a run's checkpoints, or about its model."""
    if (criterion := criterion_of(run)).figure == figure:
        yield criterion.greater_is_better
    gate = run.job.get("promotion") or {}
    if gate.get("metric") == figure and gate.get("greater_is_better") is not None:
        yield gate["greater_is_better"]


def _said_by_harness(run: ComparedRun, figure: str) -> Iterator[bool]:
    """Whether a greater one is better, of a figure of lm-eval's."""
    task, found = task_of(figure), run.evaluation and run.evaluation.harness
    if task and found and found.asked and task in found.asked.tasks:
        better = found.asked.tasks[task].greater_is_better
        yield from (better[name] for name in better if figure == f"{PREFIX}{task}/{name}")


def measure_run(run: ComparedRun) -> Measured:
    """The figures of a run's final model, each with what it was measured on; none if it is not evaluated."""
    found = run.evaluation
    if found is None:
        return {}
    groups: list[tuple[str | None, Scores]] = [*in_order(found.groups).items()]
    if found.total is not None:
        groups.insert(0, (None, found.total))
    told: Measured = {
        f"{figure}, {group or ALL}": (value, [_basis(run, found, figure, group), found.positive.get(figure)])
        for group, scores in groups
        for figure, value in scores.figures.items()
    }
    beside = found.harness.figures() if found.harness else {}
    return {**told, **{name: (value, facts_of(name, found.measured_on)) for name, value in beside.items()}}


def _basis(run: ComparedRun, found: Result, figure: str, group: str | None) -> Any:
    """What a figure of a group, or of all, was measured on; the run's name if that is not recorded."""
    basis = found.basis_of(group)
    return facts_of(figure, basis) if basis else run.name


class Spread(NamedTuple):
    """A figure's mean over some runs, and its standard deviation (with n - 1); `values` are those of the runs, in
    order.
    """

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
    """A table of the runs of one kind that differ in the seed alone, a column for each such group; or nothing without
    one.

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


Row = list[str]


def compare_tokenizers(runs: Sequence[ComparedRun]) -> list[Block]:
    """Vocabularies and digests that are not the same in all."""
    facts = [run.kind.tokenizer(run) for run in runs]
    rows = [[what, *(each.get(what, NOTHING) for each in facts)] for what in ("name", "vocabulary", "digest")]
    blocks = rows_that_differ(runs, rows)
    kinds = dict.fromkeys(run.kind for run in runs)
    if blocks and len(kinds) > 1:
        blocks += [Block(note) for note in dict.fromkeys(kind.tokenizer_note for kind in kinds) if note]
    return blocks


def compare_models(runs: Sequence[ComparedRun]) -> list[Block]:
    """Where the weights come from, their number, and the fields of the models' own configurations that differ."""
    rows = [
        [
            "weights from",
            *(show(run.job["model"]["pretrained"] or f"seed {run.job['training']['seed']}") for run in runs),
        ],
        ["digest of that", *(run.kind.base(run) for run in runs)],
        ["fork of", *(_origin(run) for run in runs)],
        ["parameters", *(count(run.parameters) for run in runs)],
    ]
    known = [run for run in runs if run.model_config]
    fields = find_differences([run.model_config for run in known])
    table = Table(
        ["Model configuration", *(run.letter for run in known)], [each.row() for each in fields], words=len(known) + 1
    )
    unknown = [run.letter for run in runs if not run.model_config]
    note = f"{', '.join(unknown)}: no model has been saved yet." if unknown else ""
    found = rows_that_differ(runs, rows)
    if fields:
        return [*found, Block(note, table)]
    return [*found, Block(note)] if note else found


def rows_that_differ(runs: Sequence[ComparedRun], rows: list[Row]) -> list[Block]:
    """The rows whose cells are not all the same, as a table, if there are any."""
    different = [row for row in rows if not all_same(row[1:])]
    return [Block(table=Table(["", *(run.letter for run in runs)], different))] if different else []


def _origin(run: ComparedRun) -> str:
    """The checkpoint that a fork starts from."""
    fork = run.config.get("fork")
    return f"{fork['run']}/{fork['checkpoint']}" if fork else NOTHING


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
    groups = [group for kind in KINDS if (group := [run for run in runs if run.entry == kind])]
    differing = {
        "Configuration": _compare_jobs(runs, groups),
        "Data": _compare_data(store, groups),
        "Tokenizer": compare_tokenizers(runs),
        "Model": compare_models(runs),
        "Environment": _compare_environments(runs),
    }
    curves = [
        Block(_curve_note(groups), curve_table(groups[0])),
        *(Block(table=curve_table(group)) for group in groups[1:]),
    ]
    return Comparison(
        runs=runs,
        verdict=_verdict(runs, differing),
        named=Section("Runs", [Block(table=_run_table(runs))]),
        differing=[Section(title, blocks or [Block(SAME)]) for title, blocks in differing.items()],
        curves=Section("Curves", curves),
        results=Section(
            "Results", [block for group in groups for block in (compare_results(group), *compare_seeds(group))]
        ),
        groups=groups,
    )


def _verdict(runs: Sequence[ComparedRun], told: dict[str, list[Block]]) -> str:
    """One line: what the runs differ in. A note without figures is no difference, but leaves it open whether there is
    one.
    """
    letters = ", ".join(run.letter for run in runs)
    found = [title.lower() for title, blocks in told.items() if any(block.table or block.pairs for block in blocks)]
    differing = ["kind", *found] if len({run.kind for run in runs}) > 1 else found
    if differing:
        return f"{letters} differ in {' and '.join(filter(None, [', '.join(differing[:-1]), differing[-1]]))}."
    if any(told.values()):
        return f"{letters} do not differ in what could be compared."
    return f"{letters} are identical in configuration, data, tokenizer, model and environment."


def _run_table(runs: Sequence[ComparedRun]) -> Table:
    return Table(
        ["", "Run", "Kind", "State"], [[run.letter, run.name, run.entry.name, run.state] for run in runs], words=4
    )


def _compare_jobs(runs: Sequence[ComparedRun], groups: Sequence[Sequence[ComparedRun]]) -> list[Block]:
    """The settings that differ. Of runs of several kinds, those that all of them have."""
    jobs = [{field: value for field, value in run.job.items() if field != NAME} for run in runs]
    differences = find_differences(jobs)
    notes = []
    if len(groups) > 1:
        fields = {group[0].entry.name: set[str]().union(*(flatten(run.job) for run in group)) for group in groups}
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
    blocks = []
    if len(groups) > 1:
        told = [
            f"the {group[0].kind.data} of {', '.join(run.letter for run in group)} ({group[0].entry.name})"
            for group in groups
        ]
        blocks.append(Block(f"Not compared: {' with '.join(told)}."))
    for group in groups:
        blocks += group[0].kind.compare_data(store, group)
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


MARGIN = "  "


def describe(comparison: Comparison) -> str:
    """All sections, what came of the runs last, where a terminal ends; and lines of blocks in the place of curves."""
    curves = comparison.curves
    lines = [Block(table=spark_table(group)) for group in comparison.groups]
    drawn = Section(curves.title, [*curves.blocks, *lines])
    sections = [comparison.named, *comparison.differing, drawn, comparison.results]
    return "\n".join([*map(_section, sections), f"{comparison.verdict}\n"])


def _section(section: Section) -> str:
    body = "\n".join(part for block in section.blocks for part in _parts(block))
    return f"{section.title}\n" + "".join(f"{MARGIN}{line}".rstrip() + "\n" for line in body.splitlines())


def _parts(block: Block) -> Iterator[str]:
    if block.note:
        yield f"{block.note}\n"
    if block.table:
        yield text_table(block.table)
    if block.pairs:
        yield "".join(f"{term}: {text}\n" for term, text in block.pairs)


PAGE = "compare.html.j2"


def render(comparison: Comparison) -> str:
    """The page, what came of the runs first; the same text for the same runs."""
    curves = {
        title if len(comparison.groups) == 1 else f"{title} ({group[0].entry.name})": Markup(svg)
        for group in comparison.groups
        for title, svg in draw_overlays(group).items()
    }
    return open_template(PAGE).render(
        names=[run.name for run in comparison.runs],
        verdict=comparison.verdict,
        sections=[comparison.named, comparison.results, comparison.curves, *comparison.differing],
        drawn={comparison.curves.title: curves},
        version=__version__,
    )
