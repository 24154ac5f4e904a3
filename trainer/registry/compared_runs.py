"""What the store says of runs that are compared, finished or not, and what differs between their data.

Nothing here needs the libraries that train.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from trainer.common.errors import ArtifactError
from trainer.common.formats import NOTHING, Pairs, Table, count, plural, size
from trainer.config.kinds import JobKind, kind_of_run, load
from trainer.data.decisions import decisions_behind
from trainer.data.encoded import ENDING
from trainer.data.splits import TEST
from trainer.data.tokenization import SOURCES
from trainer.records.basis import Pieces, by_file, without_test
from trainer.records.fields import all_same, printable
from trainer.records.run_names import find_run_name
from trainer.records.sealed import read_listed, read_pointer, read_sealed
from trainer.registry.content import Block
from trainer.registry.facts import RecordedRun, count_parameters, read_config, read_recorded
from trainer.registry.listing import state_of
from trainer.registry.references import artifact_kind, artifacts_of
from trainer.registry.sections import in_order
from trainer.store.manifest import Manifest, fingerprint, read_manifest
from trainer.store.names import CHECKPOINT_KIND, FINAL, LAST, PLAN
from trainer.store.storage import Store
from trainer.training.identity import final_manifest

NAMED = 3
"""Source files that are named of those that were added, removed or changed."""

DIGITS = 12
"""Of a digest, which is enough to tell one from another."""

COUNTED = ("examples", "labelled", "tokens", "answer_tokens")
"""What a split's manifest may count."""


class FileChanges(NamedTuple):
    """Source files by key: only in the second set, only in the first, of other content, the same, and cut otherwise."""

    added: list[str]
    removed: list[str]
    changed: list[str]
    same: list[str]
    recut: list[str]


@dataclass(frozen=True)
class ComparedRun(RecordedRun):
    """A run, under the letter that stands for it. What it has not made yet is empty or None.

    `sources` are the manifests of what it was made from, and of the decisions about its text, by key; of what is gone
    from the store, None.
    """

    letter: str
    entry: JobKind
    state: str
    plan: dict[str, Any]
    parameters: int | None
    sources: dict[str, Manifest | None]

    @property
    def kind(self) -> "ComparedKind":
        """What is compared of runs of its kind."""
        compared: ComparedKind = load(self.entry.kind.compared)
        return compared

    @property
    def unit(self) -> str:
        """The unit of its loss."""
        return self.kind.unit(self)

    @property
    def steps(self) -> int:
        """The last step that was recorded."""
        return max((record["step"] for record in self.records), default=0)

    @property
    def encoded(self) -> Manifest | None:
        """The labelled set that it is fine-tuned on."""
        return self.sources[self.config["data"]["key"]]


@dataclass(frozen=True)
class ComparedKind:
    """What is compared of the runs of one kind."""

    data: str
    """What its data is called, in the plural."""
    unit: Callable[[ComparedRun], str]
    """The unit of the loss."""
    tokenizer: Callable[[ComparedRun], dict[str, str]]
    """The tokenizer's name, vocabulary and digest, as far as they are known."""
    compare_data: Callable[[Store, Sequence[ComparedRun]], list[Block]]
    metrics: Callable[[Sequence[ComparedRun]], list[str]]
    """The validation figures on the way, besides the loss."""


def read_runs(store: Store, names: list[str]) -> list[ComparedRun]:
    """The runs of these names, in this order. Raises `RunError` for a name that no run has, and says which are like it.

    A name may be that of a job that made one run, or the beginning of one run's. Raises `ConfigError` if it is of
    several.
    """
    keys = [f"runs/{find_run_name(store, name.strip('/').removeprefix('runs/'))}" for name in names]
    configs = [read_config(store, key) for key in keys]
    return [_read(store, chr(ord("A") + i), *each) for i, each in enumerate(zip(keys, configs, strict=True))]


def _read(store: Store, letter: str, key: str, config: dict[str, Any]) -> ComparedRun:
    final = final_manifest(store, key)
    model, manifest = (f"{key}/{FINAL}", final) if final else _last_checkpoint(store, key)
    weights = manifest and manifest.model_copy(
        update={"files": [f for f in manifest.files if f.name.startswith("model")]}
    )
    return ComparedRun(
        **read_recorded(store, key, config, model, manifest),
        letter=letter,
        entry=kind_of_run(config),
        state=state_of(store, key, final is not None),
        plan=read_sealed(store, f"{key}/{PLAN}") or {},
        parameters=sum(count_parameters(store, model, weights).values()) if weights else None,
        sources=_read_sources(store, artifacts_of(config)),
    )


def _read_sources(store: Store, keys: list[str]) -> dict[str, Manifest | None]:
    """The manifests of what a run names, and of the decisions that this names."""
    named = {key: _manifest(store, key, artifact_kind(key)) for key in keys}
    decisions = {key for manifest in named.values() if manifest for key in decisions_behind(manifest)}
    return {**named, **{key: _manifest(store, key, artifact_kind(key)) for key in sorted(decisions)}}


def _last_checkpoint(store: Store, key: str) -> tuple[str, Manifest | None]:
    """The newest checkpoint of a run that has no final model yet."""
    pointer = read_pointer(store, f"{key}/{LAST}")
    if pointer is None:
        return "", None
    folder = f"{key}/{pointer.checkpoint}"
    return folder, _manifest(store, folder, CHECKPOINT_KIND)


def _manifest(store: Store, key: str, kind: str) -> Manifest | None:
    """An artifact's manifest; of a damaged artifact no more is told than of one that is gone."""
    try:
        return read_manifest(store, key, kind)
    except ArtifactError:
        return None


def compare_corpora(store: Store, runs: Sequence[ComparedRun]) -> list[Block]:
    """The corpora whose shard sets are not the same in all runs, and what became of their files against the first
    run.
    """
    keys = [{_corpus(ref["key"]): ref["key"] for ref in run.config["data"]["shards"]} for run in runs]
    corpora = sorted({corpus for each in keys for corpus in each})
    differ = [corpus for corpus in corpora if len({each.get(corpus) for each in keys}) > 1]
    if not differ:
        return []
    rows = [row for corpus in differ for row in _corpus_rows(runs, corpus, [each.get(corpus) for each in keys])]
    table = Table(["Corpus", "", *(run.letter for run in runs)], rows, words=2)
    same = [corpus for corpus in corpora if corpus not in differ]
    note = f"Not shown, for they are the same: {', '.join(same)}." if same else ""
    return [Block(note, table), Block(pairs=_file_pairs(store, runs, differ, keys))]


def compare_labelled(runs: Sequence[ComparedRun]) -> list[Block]:
    """What the encoded sets do not have in common. Runs that differ in the test split alone are trained on the same."""
    if len({run.config["data"]["key"] for run in runs}) == 1:
        return []
    if all_same([run.config["identity"].get("data") for run in runs]):
        tests = ", ".join(f"{run.letter} {_count_tests(run.encoded)}" for run in runs)
        return [Block(f"Trained and validated on the same. The test splits differ; their examples: {tests}.")]
    splits = in_order({split: 0 for run in runs for split in (run.encoded.details["splits"] if run.encoded else ())})
    rows = [
        ["encoded set", *(run.config["data"]["key"].split("/")[1] for run in runs)],
        ["source", *(_source(run.encoded) if run.encoded else NOTHING for run in runs)],
        *(row for split in splits for row in _split_rows(runs, split)),
    ]
    different = [row for row in rows if not all_same(row[1:])]
    same = [row[0] for row in rows if row not in different]
    note = f"Not shown, for they are the same: {', '.join(same)}." if same else ""
    return [Block(note, Table(["", *(run.letter for run in runs)], different))]


def gone(runs: Sequence[ComparedRun]) -> list[Block]:
    """A note of what runs were made from that is no longer in the store."""
    keys = sorted({key for run in runs for key, manifest in run.sources.items() if manifest is None})
    return [Block(f"Gone from the store or damaged, so only the name is compared: {', '.join(keys)}.")] if keys else []


def _corpus(key: str) -> str:
    return key.split("/")[1].rpartition("-")[0]


def _corpus_rows(runs: Sequence[ComparedRun], corpus: str, keys: Sequence[str | None]) -> list[list[str]]:
    """The shard set's fingerprint and its totals; a total that is the same in all is left out."""
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
    """What became of each corpus's source files, of each run against the first."""
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
                told = (
                    _tell(changes)
                    or f"the same {plural(len(changes.same), 'file')}, but {_why(runs[0], first, run, other)}"
                )
                pairs.append((f"{corpus}, {run.letter} against {runs[0].letter}", told))
    return pairs


def find_changes(before: dict[str, Pieces], after: dict[str, Pieces], recut: bool) -> FileChanges:
    """What became of source files. With `recut` they were cut by another rule, so that the digests of cut ones say
    nothing.
    """
    both = sorted(before.keys() & after.keys())
    same = [file for file in both if before[file] == after[file]]
    other = [file for file in both if before[file] != after[file]]
    cut = [file for file in other if recut and len(before[file]) != len(after[file])]
    return FileChanges(
        added=sorted(after.keys() - before.keys()),
        removed=sorted(before.keys() - after.keys()),
        changed=[file for file in other if file not in cut],
        same=same,
        recut=cut,
    )


def _tell(changes: FileChanges) -> str:
    """The changes in words, or nothing if no file is known to differ."""
    told = [
        f"{count(len(files))} {what} ({', '.join(map(printable, files[:NAMED]))}{', …' if len(files) > NAMED else ''})"
        for what, files in [("added", changes.added), ("removed", changes.removed), ("changed", changes.changed)]
        if files
    ]
    if changes.recut:
        told.append(
            f"{count(len(changes.recut))} cut otherwise (shards.piece_bytes), so their contents are not compared"
        )
    return "; ".join([*told, f"{count(len(changes.same))} the same"]) if told else ""


def _why(run: ComparedRun, key: str, other: ComparedRun, other_key: str) -> str:
    """What else made a shard set another one."""
    first, second = run.sources[key], other.sources[other_key]
    assert first is not None and second is not None
    reasons = {
        "tokenizer_sha256": "another tokenizer",
        "num_shards": "another number of shards",
        "validation_fraction": "another share held out",
    }
    found = [reason for field, reason in reasons.items() if first.details[field] != second.details[field]]
    if decisions_behind(first) != decisions_behind(second):
        found.append("other decisions about its documents")
    return ", ".join(found) or "read otherwise (see the configuration)"


def _piece_bytes(run: ComparedRun) -> int:
    size: int = run.job["data"]["shards"]["piece_bytes"]
    return size


def _split_rows(runs: Sequence[ComparedRun], split: str) -> list[list[str]]:
    """How many examples a split has, how many of them are labelled, and the digest of its file."""
    found = [_split(run.encoded, split) for run in runs]
    return [
        [f"{split}: {what}", *(each.get(what, NOTHING) for each in found)]
        for what in (*COUNTED, "digest")
        if any(what in each for each in found)
    ]


def _source(encoded: Manifest) -> str:
    """A name of what is trained and validated on; the test split has rows of its own."""
    return fingerprint(without_test(encoded.details["source"]["identity"]))


def _count_tests(encoded: Manifest | None) -> str:
    """How many test examples there are, none, or that the encoded set which would tell is gone."""
    return "gone" if encoded is None else _split(encoded, TEST).get("examples", "none")


def _split(encoded: Manifest | None, split: str) -> dict[str, str]:
    details: dict[str, Any] = encoded.details["splits"].get(split, {}) if encoded else {}
    if encoded is None or not details:
        return {}
    figures = {what: count(details[what]) for what in COUNTED if what in details}
    return {**figures, "digest": encoded.digests()[f"{split}{ENDING}"][:DIGITS]}


Lines = dict[tuple[str, str], str]


def compare_curation(runs: Sequence[ComparedRun]) -> list[Block]:
    """The reasons for which not the same number of documents, or of bytes, stays or goes in all runs."""
    told = [_lines(run) for run in runs]
    places = sorted(
        {place for each in told for place in each}, key=lambda place: (place[0], place[1] != "kept", place[1])
    )
    rows = [[*place, *(each.get(place, NOTHING) for each in told)] for place in places]
    different = [row for row in rows if not all_same(row[2:])]
    if not different:
        return []
    note = "Documents and bytes by what was decided of them."
    return [Block(note, Table(["Corpus", "Reason", *(run.letter for run in runs)], different, words=2))]


def _lines(run: ComparedRun) -> Lines:
    """Of each corpus and reason how many documents and bytes there are; nothing of text about which nothing was
    decided.
    """
    told: Lines = {}
    for shards in filter(None, (run.sources[ref["key"]] for ref in run.config["data"]["shards"])):
        corpus = shards.details["corpus"]
        for decisions in filter(None, map(run.sources.get, decisions_behind(shards))):
            for line in decisions.details["table"].get(corpus, ()):
                told[corpus, line["reason"]] = f"{count(line['documents'])} ({size(line['bytes'])})"
    return told
