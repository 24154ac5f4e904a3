"""What differs between the tokenizers and the models of compared runs."""

from collections.abc import Sequence

from trainer.common.formats import NOTHING, count
from trainer.comparison.data import DIGITS
from trainer.comparison.runs import FINE_TUNING, PRETRAINING, ComparedRun
from trainer.corpus.taken_tokenizer import TOKENIZER_FILE
from trainer.records.fields import all_same, find_differences, show
from trainer.report.account import Block
from trainer.report.tables import Table
from trainer.store.manifest import fingerprint

Row = list[str]


def compare_tokenizers(runs: Sequence[ComparedRun]) -> list[Block]:
    """Vocabularies and digests that are not the same in all."""
    facts = [_tokenizer(run) for run in runs]
    rows = [[what, *(each.get(what, NOTHING) for each in facts)] for what in ("name", "vocabulary", "digest")]
    blocks = rows_that_differ(runs, rows)
    if blocks and {run.kind for run in runs} == {PRETRAINING, FINE_TUNING}:
        blocks.append(
            Block("A fine-tuning run's tokenizer is the file that its model's library saved: digests differ by that, too.")
        )
    return blocks


def compare_models(runs: Sequence[ComparedRun]) -> list[Block]:
    """Where the weights come from, their number, and the fields of the models' own configurations that differ."""
    rows = [
        ["weights from", *(show(run.job["model"]["pretrained"] or f"seed {run.job['training']['seed']}") for run in runs)],
        ["digest of that", *(_base(run) for run in runs)],
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


def _tokenizer(run: ComparedRun) -> dict[str, str]:
    if run.kind == FINE_TUNING:
        if run.encoded is None:
            return {}
        details = run.encoded.details
        return {"vocabulary": count(details["vocab_size"]), "digest": details["tokenizer_sha256"][:DIGITS]}
    key = run.config["data"]["tokenizer"]["key"]
    manifest, name = run.sources[key], {"name": key.split("/")[1]}
    if manifest is None:
        return name
    return {**name, "vocabulary": count(manifest.details["vocab_size"]), "digest": manifest.digests()[TOKENIZER_FILE][:DIGITS]}


def _base(run: ComparedRun) -> str:
    """A name of the files that training starts from; of a new model, there are none."""
    if run.kind == FINE_TUNING:
        return fingerprint(run.config["identity"]["model"])
    pretrained = run.config["identity"]["model"]["pretrained"]
    return fingerprint(pretrained) if pretrained else NOTHING


def _origin(run: ComparedRun) -> str:
    """The checkpoint that a fork starts from."""
    fork = run.config.get("fork")
    return f"{fork['run']}/{fork['checkpoint']}" if fork else NOTHING
