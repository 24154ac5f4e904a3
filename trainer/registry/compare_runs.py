"""Compare runs for `headrace compare`: differences, curves and results."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from trainer import __version__
from trainer.common.display import NOTHING, Table, count, plural, show_json, text_table
from trainer.common.display import show as show_text
from trainer.common.errors import StorageError
from trainer.config.kinds import KINDS
from trainer.records.fields import all_same, find_differences, flatten, show
from trainer.registry.compare_figures import compare_results, compare_seeds, curve_table, draw_overlays, spark_table
from trainer.registry.compared_runs import ComparedRun, gone, read_runs
from trainer.registry.content import Block, Section, read_in
from trainer.registry.report import open_template
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

MOST = 26
"""Runs are labelled A to Z, so that columns stay narrow and a chart's legend readable."""


def print_comparison(url: str, names: list[str], page: Path | None = None, as_json: bool = False) -> None:
    """Print the comparison of runs, without changing the store."""
    store = Store(url)
    store.require_there()
    if as_json:
        show_json(compare_for_programs(store, names, page))
    else:
        show_text(compare(store, names, page))


def compare(store: Store, names: list[str], page: Path | None = None) -> str:
    """Return the comparison as text for a terminal, and write it as a page if `page` is given.

    Raises `RunError` for a missing run, `StorageError` if the page cannot be written.
    """
    return describe(_compared(store, names, page)) + (f"\npage  {page}\n" if page else "")


def compare_for_programs(store: Store, names: list[str], page: Path | None = None) -> dict[str, Any]:
    """The same comparison as values for JSON, in the sections that are printed."""
    comparison = _compared(store, names, page)
    return {
        "runs": [
            {"letter": run.letter, "key": run.key, "kind": run.entry.name, "state": run.state}
            for run in comparison.runs
        ],
        "verdict": comparison.verdict,
        "differing": comparison.differing,
        "curves": comparison.curves,
        "results": comparison.results,
    }


def _compared(store: Store, names: list[str], page: Path | None) -> "Comparison":
    comparison = compare_runs(store, read_runs(store, names))
    if page is not None:
        try:
            page.write_bytes(render(comparison).encode(errors="replace"))
        except OSError as error:
            raise StorageError(
                f"cannot write {page}: {error.strerror}; choose a file in a folder that you can write to"
            ) from error
    return comparison


TOKENIZER_NOTE = (
    "A fine-tuning run stores the tokenizer file as transformers saved it, so its digest differs for that reason too."
)


def compare_tokenizers(runs: Sequence[ComparedRun]) -> list[Block]:
    """Tokenizer names, vocabulary sizes and digests that differ."""
    facts = [run.kind.tokenizer(run) for run in runs]
    rows = [[what, *(each.get(what, NOTHING) for each in facts)] for what in ("name", "vocabulary", "digest")]
    blocks = rows_that_differ(runs, rows)
    return [*blocks, Block(TOKENIZER_NOTE)] if blocks and len({run.entry for run in runs}) > 1 else blocks


def compare_models(runs: Sequence[ComparedRun]) -> list[Block]:
    """Origin and number of the weights, and the differing fields of the models' configurations."""
    rows = [
        [
            "weights from",
            *(show(run.job["model"]["pretrained"] or f"seed {run.job['training']['seed']}") for run in runs),
        ],
        ["digest of these weights", *(_base(run) for run in runs)],
        ["fork of", *(run.forked_from or NOTHING for run in runs)],
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


def rows_that_differ(runs: Sequence[ComparedRun], rows: list[list[str]]) -> list[Block]:
    """A table of the rows whose cells differ, if there are any."""
    different = [row for row in rows if not all_same(row[1:])]
    return [Block(table=Table(["", *(run.letter for run in runs)], different))] if different else []


def _base(run: ComparedRun) -> str:
    """Fingerprint of the model files that training starts from, if any."""
    model = run.config["identity"]["model"]
    files = model.get("pretrained", model)
    return fingerprint(files) if files else NOTHING


SAME = "Nothing differs."
NAME = "run"
"""The job's field with the run's name; not compared, as the table of runs shows it."""


class Comparison(NamedTuple):
    """A whole comparison. `groups` are the runs of one kind whose losses have the same unit."""

    runs: list[ComparedRun]
    verdict: str
    named: Section
    differing: list[Section]
    curves: Section
    results: Section
    groups: list[list[ComparedRun]]


def compare_runs(store: Store, runs: list[ComparedRun]) -> Comparison:
    """Compare runs of any kind, finished or not."""
    kinds = [group for kind in KINDS if (group := [run for run in runs if run.entry == kind])]
    groups = [[run for run in group if run.unit == unit] for group in kinds for unit in _units(group)]
    differing = {
        "Configuration": _compare_jobs(runs, kinds),
        "Data": _compare_data(store, kinds),
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


def _verdict(runs: Sequence[ComparedRun], sections: dict[str, list[Block]]) -> str:
    """One line: the sections in which the runs differ. A note alone means that a difference is possible but unknown."""
    letters = ", ".join(run.letter for run in runs)
    found = [title.lower() for title, blocks in sections.items() if any(block.table or block.pairs for block in blocks)]
    differing = ["kind", *found] if len({run.entry for run in runs}) > 1 else found
    if differing:
        return f"{letters} differ in {' and '.join(filter(None, [', '.join(differing[:-1]), differing[-1]]))}."
    if any(sections.values()):
        return f"{letters} do not differ as far as they could be compared."
    return f"{letters} are identical in configuration, data, tokenizer, model and environment."


def _run_table(runs: Sequence[ComparedRun]) -> Table:
    return Table(
        ["", "Run", "Kind", "State"], [[run.letter, run.name, run.entry.name, run.state] for run in runs], words=4
    )


def _compare_jobs(runs: Sequence[ComparedRun], groups: Sequence[Sequence[ComparedRun]]) -> list[Block]:
    """The differing settings; of runs of several kinds, only settings that all kinds have."""
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
    """The differences in data, among the runs of each kind."""
    blocks = []
    if len(groups) > 1:
        changed = [
            f"the {group[0].kind.data} of {', '.join(run.letter for run in group)} ({group[0].entry.name})"
            for group in groups
        ]
        blocks.append(Block(f"Not compared: {' with '.join(changed)}."))
    for group in groups:
        blocks += group[0].kind.compare_data(store, group)
    return blocks + gone([run for group in groups for run in group])


def _compare_environments(runs: Sequence[ComparedRun]) -> list[Block]:
    """The differing versions and machines of the runs that have started."""
    known = [run for run in runs if run.environment]
    columns = ["", *(run.letter for run in known)]
    rows = [each.row() for each in find_differences([run.environment for run in known])]
    unknown = [run.letter for run in runs if not run.environment]
    note = f"{', '.join(unknown)}: not started yet." if unknown else ""
    table = Table(columns, rows, words=len(columns)) if rows else None
    return [Block(note, table)] if note or table else []


def _units(runs: Sequence[ComparedRun]) -> list[str]:
    return list(dict.fromkeys(run.unit for run in runs))


def _name(group: Sequence[ComparedRun], groups: Sequence[Sequence[ComparedRun]]) -> str:
    """The kind of a group's runs; if that is the kind of several groups, with the unit of their losses."""
    kind = group[0].entry.name
    return kind if sum(each[0].entry.name == kind for each in groups) == 1 else f"{kind}, {group[0].unit}"


OF_THE_LOSS = ("loss", "beta", "gamma", "class_weights", "label_smoothing")
"""Training settings that determine what the training loss measures."""


def _curve_note(groups: Sequence[Sequence[ComparedRun]]) -> str:
    notes = []
    if len(groups) > 1:
        units = [f"{group[0].unit} ({', '.join(run.letter for run in group)})" for group in groups]
        notes.append(f"Not compared: losses in {' with losses in '.join(units)}.")
    for group in groups:
        apart = [name for name in OF_THE_LOSS if not all_same([run.job["training"].get(name) or None for run in group])]
        if apart:
            letters, settings = ", ".join(run.letter for run in group), ", ".join(f"training.{name}" for name in apart)
            notes.append(f"The training losses of {letters} measure different things: they differ in {settings}.")
        notes += _note_read(group)
    return " ".join(notes)


def _note_read(group: Sequence[ComparedRun]) -> Iterator[str]:
    """Sentences if the last evaluations in training of these runs read different amounts of data, or measured figures
    of different classes.
    """
    last = {run.letter: found[-1] for run in group if (found := run.of_kind("evaluation"))}
    known = [{each for each in counts if each is not None} for counts in zip(*map(read_in, last.values()), strict=True)]
    if any(len(counts) > 1 for counts in known):
        yield f"The validation figures of {', '.join(last)} in training are of different amounts of held-out data."
    classes = {letter: name for letter, each in last.items() if (name := each.get("positive")) is not None}
    if len({*classes.values()}) > 1:
        named = ", ".join(f"{letter} of {name!r}" for letter, name in classes.items())
        yield f"The validation figures of one class in training are of different classes: {named}."


MARGIN = "  "


def describe(comparison: Comparison) -> str:
    """All sections as text, with sparklines for curves; results come last, next to the terminal's prompt."""
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
    """The page as HTML, with results first; the same text for the same runs."""
    curves = {
        title if len(comparison.groups) == 1 else f"{title} ({_name(group, comparison.groups)})": Markup(svg)
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
