"""Read runs to compare, finished or not, and find the differences between their data.

This module imports no training libraries.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from trainer.common.display import NOTHING, Pairs, Table, count, plural, size
from trainer.common.errors import ArtifactError
from trainer.config.kinds import JobKind, kind_of_run, load
from trainer.data.decisions import decisions_behind
from trainer.data.encoded import ENDING
from trainer.data.splits import TEST
from trainer.data.tokenization import SOURCES
from trainer.records.basis import FileChanges, Pieces, by_file, find_changes, without_test
from trainer.records.fields import all_same
from trainer.records.run_names import find_run_name
from trainer.records.sealed import read_listed, read_pointer, read_sealed
from trainer.registry.content import Block
from trainer.registry.facts import RecordedRun, count_parameters, holds_adapter, read_config, read_recorded
from trainer.registry.listing import state_of
from trainer.registry.references import artifact_kind, artifacts_of
from trainer.registry.sections import in_order
from trainer.store.manifest import Manifest, fingerprint, name_in, read_manifest
from trainer.store.names import CHECKPOINT_KIND, FINAL, LAST, PLAN
from trainer.store.storage import Store
from trainer.training.identity import final_manifest

DIGITS = 12
"""Displayed digits of a digest, enough to distinguish two."""

COUNTED = ("examples", "labelled", "tokens", "answer_tokens")
"""Counts that the manifest of a split may hold."""


@dataclass(frozen=True)
class ComparedRun(RecordedRun):
    """A run and its letter. Fields that it has not produced yet are empty or None.

    `sources` are the manifests of its inputs and of the curation decisions about its text, by key; None if missing from
    the store.
    """

    letter: str
    entry: JobKind
    state: str
    plan: dict[str, Any]
    parameters: int | None
    sources: dict[str, Manifest | None]

    @property
    def kind(self) -> "ComparedKind":
        """The comparison that its kind defines."""
        compared: ComparedKind = load(self.entry.kind.compared)
        return compared

    @property
    def unit(self) -> str:
        """The unit of its loss."""
        return self.kind.unit(self)

    @property
    def steps(self) -> int:
        """The last recorded step."""
        return max((record["step"] for record in self.records), default=0)

    @property
    def encoded(self) -> Manifest | None:
        """The manifest of the encoded data set of a fine-tuning run; None if it is missing."""
        return self.sources[self.config["data"]["key"]]


@dataclass(frozen=True)
class ComparedKind:
    """How runs of one kind are compared."""

    data: str
    """The plural noun for its data."""
    unit: Callable[[ComparedRun], str]
    """The unit of the loss."""
    tokenizer: Callable[[ComparedRun], dict[str, str]]
    """The tokenizer's name, vocabulary size and digest, as far as they are known."""
    compare_data: Callable[[Store, Sequence[ComparedRun]], list[Block]]
    metrics: Callable[[Sequence[ComparedRun]], list[str]]
    """The validation figures in training, besides the loss."""


def read_runs(store: Store, names: list[str]) -> list[ComparedRun]:
    """Read the runs of these names, in this order; raises `RunError`, with similar names, for an unknown one.

    A name may be that of a job with one run, or a prefix of one run's name. Raises `ConfigError` if it matches several.
    """
    keys = [f"runs/{find_run_name(store, name.strip('/').removeprefix('runs/'))}" for name in names]
    configs = [read_config(store, key) for key in keys]
    return [_read(store, chr(ord("A") + i), *each) for i, each in enumerate(zip(keys, configs, strict=True))]


def _read(store: Store, letter: str, key: str, config: dict[str, Any]) -> ComparedRun:
    final = final_manifest(store, key)
    model, manifest = (f"{key}/{FINAL}", final) if final else _last_checkpoint(store, key)
    return ComparedRun(
        **read_recorded(store, key, config, model, manifest),
        letter=letter,
        entry=kind_of_run(config),
        state=state_of(store, key, final is not None),
        plan=read_sealed(store, f"{key}/{PLAN}") or {},
        parameters=_count_all(store, model, manifest) if manifest else None,
        sources=_read_sources(store, artifacts_of(config)),
    )


def _count_all(store: Store, key: str, manifest: Manifest) -> int | None:
    """The parameters of a final model or a checkpoint as it computes; None where the model that an adapter was trained
    beside is not counted yet.
    """
    if holds_adapter(manifest):
        counts: dict[str, int] = manifest.details.get("trained", {})
        return counts.get("parameters")
    weights = manifest.model_copy(update={"files": [f for f in manifest.files if f.name.startswith("model")]})
    return sum(count_parameters(store, key, weights).values())


def _read_sources(store: Store, keys: list[str]) -> dict[str, Manifest | None]:
    """The manifests of a run's inputs, and of the curation decisions that they refer to."""
    named = {key: _manifest(store, key, artifact_kind(key)) for key in keys}
    decisions = {key for manifest in named.values() if manifest for key in decisions_behind(manifest)}
    return {**named, **{key: _manifest(store, key, artifact_kind(key)) for key in sorted(decisions)}}


def _last_checkpoint(store: Store, key: str) -> tuple[str, Manifest | None]:
    """Folder and manifest of the newest checkpoint."""
    pointer = read_pointer(store, f"{key}/{LAST}")
    if pointer is None:
        return "", None
    folder = f"{key}/{pointer.checkpoint}"
    return folder, _manifest(store, folder, CHECKPOINT_KIND)


def _manifest(store: Store, key: str, kind: str) -> Manifest | None:
    """An artifact's manifest; a damaged artifact is treated as missing."""
    try:
        return read_manifest(store, key, kind)
    except ArtifactError:
        return None


def compare_corpora(store: Store, runs: Sequence[ComparedRun]) -> list[Block]:
    """The corpora whose shard sets differ, and the changes of their source files against the first run."""
    keys = [{name_in(ref["key"]): ref["key"] for ref in run.config["data"]["shards"]} for run in runs]
    corpora = sorted({corpus for each in keys for corpus in each})
    differ = [corpus for corpus in corpora if len({each.get(corpus) for each in keys}) > 1]
    if not differ:
        return []
    rows = [row for corpus in differ for row in _corpus_rows(runs, corpus, [each.get(corpus) for each in keys])]
    table = Table(["Corpus", "", *(run.letter for run in runs)], rows, words=2)
    same = [corpus for corpus in corpora if corpus not in differ]
    note = f"Identical, so not shown: {', '.join(same)}." if same else ""
    return [Block(note, table), Block(pairs=_file_pairs(store, runs, differ, keys))]


def compare_labelled(runs: Sequence[ComparedRun]) -> list[Block]:
    """The differences of the encoded sets; runs that differ only in the test split are trained on the same data."""
    if len({run.config["data"]["key"] for run in runs}) == 1:
        return []
    if all_same([run.config["identity"].get("data") for run in runs]):
        tests = ", ".join(f"{run.letter} {_count_tests(run.encoded)}" for run in runs)
        return [Block(f"Trained and validated on the same data. The test splits differ; their examples: {tests}.")]
    splits = in_order({split: 0 for run in runs for split in (run.encoded.details["splits"] if run.encoded else ())})
    rows = [
        ["encoded set", *(run.config["data"]["key"].split("/")[1] for run in runs)],
        ["source", *(_source(run.encoded) if run.encoded else NOTHING for run in runs)],
        *(row for split in splits for row in _split_rows(runs, split)),
    ]
    different = [row for row in rows if not all_same(row[1:])]
    same = [row[0] for row in rows if row not in different]
    note = f"Identical, so not shown: {', '.join(same)}." if same else ""
    return [Block(note, Table(["", *(run.letter for run in runs)], different))]


def gone(runs: Sequence[ComparedRun]) -> list[Block]:
    """A note of the runs' inputs that are missing from the store."""
    keys = sorted({key for run in runs for key, manifest in run.sources.items() if manifest is None})
    return [Block(f"Missing from the store or damaged, so only names are compared: {', '.join(keys)}.")] if keys else []


def _corpus_rows(runs: Sequence[ComparedRun], corpus: str, keys: Sequence[str | None]) -> list[list[str]]:
    """The shard set's fingerprint and the totals that differ."""
    manifests = [run.sources[key] if key else None for run, key in zip(runs, keys, strict=True)]

    def totals(field: str) -> list[str]:
        return [count(each.details["totals"][field]) if each else NOTHING for each in manifests]

    rows = [
        ["documents", *totals("documents")],
        ["tokens", *totals("tokens")],
        ["held-out tokens", *totals("validation_tokens")],
        ["shards", *(count(each.details["num_shards"]) if each else NOTHING for each in manifests)],
    ]
    names = ["shard set", *(key.rpartition("-")[2] if key else NOTHING for key in keys)]
    return [[corpus, *row] for row in [names, *(row for row in rows if not all_same(row[1:]))]]


def _file_pairs(
    store: Store, runs: Sequence[ComparedRun], corpora: Sequence[str], keys: Sequence[dict[str, str]]
) -> Pairs:
    """The changes of each corpus's source files, for each run against the first."""
    listed = {key: manifest.digests().get(SOURCES) for run in runs for key, manifest in run.sources.items() if manifest}

    @lru_cache(maxsize=2)
    def pieces(key: str) -> dict[str, Pieces]:
        return by_file(read_listed(store, f"{key}/{SOURCES}", listed[key]) or [])

    pairs = []
    for corpus in corpora:
        first = keys[0].get(corpus)
        for run, each in zip(runs[1:], keys[1:], strict=True):
            other = each.get(corpus)
            if first and other and first != other and runs[0].sources[first] and run.sources[other]:
                recut = _piece_bytes(runs[0]) != _piece_bytes(run)
                changes = find_changes(pieces(first), pieces(other), recut)
                difference = (
                    _describe_changes(changes)
                    or f"the same {plural(len(changes.same), 'file')}, but {_why(runs[0], first, run, other)}"
                )
                pairs.append((f"{corpus}, {run.letter} against {runs[0].letter}", difference))
    return pairs


def _describe_changes(changes: FileChanges) -> str:
    """The changes in words, or nothing if no file is known to differ."""
    changed = changes.describe("added", "removed", "changed")
    if changes.recut:
        changed.append(
            f"{count(len(changes.recut))} cut differently (shards.piece_bytes), so contents are not compared"
        )
    return "; ".join([*changed, f"{count(len(changes.same))} the same"]) if changed else ""


def _why(run: ComparedRun, key: str, other: ComparedRun, other_key: str) -> str:
    """Why two shard sets of the same source files differ."""
    first, second = run.sources[key], other.sources[other_key]
    assert first is not None and second is not None
    reasons = {
        "tokenizer_sha256": "a different tokenizer",
        "num_shards": "a different number of shards",
        "validation_fraction": "a different held-out share",
    }
    found = [reason for field, reason in reasons.items() if first.details[field] != second.details[field]]
    if decisions_behind(first) != decisions_behind(second):
        found.append("different curation decisions")
    return ", ".join(found) or "read with different settings (see the configuration)"


def _piece_bytes(run: ComparedRun) -> int:
    size: int = run.job["data"]["shards"]["piece_bytes"]
    return size


def _split_rows(runs: Sequence[ComparedRun], split: str) -> list[list[str]]:
    """The counts of a split, and the digest of its file."""
    found = [_split(run.encoded, split) for run in runs]
    return [
        [f"{split}: {what}", *(each.get(what, NOTHING) for each in found)]
        for what in (*COUNTED, "digest")
        if any(what in each for each in found)
    ]


def _source(encoded: Manifest) -> str:
    """Fingerprint of the training and validation data; the test split has separate rows."""
    return fingerprint(without_test(encoded.details["source"]["identity"]))


def _count_tests(encoded: Manifest | None) -> str:
    """The number of test examples; `gone` if the encoded set is missing."""
    return "gone" if encoded is None else _split(encoded, TEST).get("examples", "none")


def _split(encoded: Manifest | None, split: str) -> dict[str, str]:
    details: dict[str, Any] = encoded.details["splits"].get(split, {}) if encoded else {}
    if encoded is None or not details:
        return {}
    figures = {what: count(details[what]) for what in COUNTED if what in details}
    return {**figures, "digest": encoded.digests()[f"{split}{ENDING}"][:DIGITS]}


Lines = dict[tuple[str, str], str]


def compare_curation(runs: Sequence[ComparedRun]) -> list[Block]:
    """The curation reasons whose numbers of documents or bytes differ between the runs."""
    tables = [_lines(run) for run in runs]
    places = sorted(
        {place for each in tables for place in each}, key=lambda place: (place[0], place[1] != "kept", place[1])
    )
    rows = [[*place, *(each.get(place, NOTHING) for each in tables)] for place in places]
    different = [row for row in rows if not all_same(row[2:])]
    if not different:
        return []
    note = "Documents and bytes by curation decision."
    return [Block(note, Table(["Corpus", "Reason", *(run.letter for run in runs)], different, words=2))]


def _lines(run: ComparedRun) -> Lines:
    """Documents and bytes by corpus and reason; text without curation decisions has no entry."""
    lines: Lines = {}
    for shards in filter(None, (run.sources[ref["key"]] for ref in run.config["data"]["shards"])):
        corpus = shards.details["corpus"]
        for decisions in filter(None, map(run.sources.get, decisions_behind(shards))):
            for line in decisions.details["table"].get(corpus, ()):
                lines[corpus, line["reason"]] = f"{count(line['documents'])} ({size(line['bytes'])})"
    return lines
