"""What differs between the tokenizers and the models of compared runs."""

from collections.abc import Sequence

from trainer.common.formats import NOTHING, count
from trainer.comparison.runs import ComparedRun
from trainer.records.fields import all_same, find_differences, show
from trainer.report.account import Block
from trainer.report.tables import Table

Row = list[str]


def compare_tokenizers(runs: Sequence[ComparedRun]) -> list[Block]:
    """Vocabularies and digests that are not the same in all."""
    facts = [run.kind.tokenizer(run) for run in runs]
    rows = [[what, *(each.get(what, NOTHING) for each in facts)] for what in ("name", "vocabulary", "digest")]
    blocks = rows_that_differ(runs, rows)
    kinds = dict.fromkeys(run.kind for run in runs)
    if blocks and len(kinds) > 1:
        blocks += [Block(kind.tokenizer_note) for kind in kinds if kind.tokenizer_note]
    return blocks


def compare_models(runs: Sequence[ComparedRun]) -> list[Block]:
    """Where the weights come from, their number, and the fields of the models' own configurations that differ."""
    rows = [
        ["weights from", *(show(run.job["model"]["pretrained"] or f"seed {run.job['training']['seed']}") for run in runs)],
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
