"""Why it is to be decided anew which documents stay."""

from collections.abc import Mapping
from typing import Any

from trainer.config.corpora import DataConfig
from trainer.corpus.decisions import KIND, decisions_recipe, read_pieces
from trainer.corpus.sources import reading_options
from trainer.curation.contamination import describe
from trainer.curation.plan import Plan, functions_of
from trainer.foresight.likeness import (
    Likeness,
    compare_files,
    compare_options,
    compare_pieces,
    explain_likeness,
    find_similar,
)
from trainer.records.origins import by_file
from trainer.store.manifest import Manifest
from trainer.store.storage import Store


def explain_decisions(store: Store, data: DataConfig, plan: Plan) -> list[str]:
    """What differs from the most similar decisions: options, functions of the user's, raw files, evaluation sets."""
    reading = {corpus.name: reading_options(corpus) for corpus in data.corpora}
    wanted, functions = _options(decisions_recipe(data), reading, data.shards.piece_bytes), functions_of(plan.tests)
    pieces = by_file(vars(piece) for _, pieces in plan.corpora for piece in pieces)
    kept_out = _digests(describe(plan.evaluation))

    def compare(other: Manifest) -> list[str]:
        told = other.details
        changed = [name for name in functions if told["functions"].get(name, functions[name]) != functions[name]]
        options = compare_options(_options(told["recipe"], told["reading"], told["piece_bytes"]), wanted)
        return options + [f"the file that {name} is in has changed, or one that it imports" for name in changed]

    def files(other: Likeness) -> list[str]:
        told = other.manifest.details
        raw = compare_pieces(_read_pieces(store, other), pieces, told["piece_bytes"] != data.shards.piece_bytes)
        before = _digests(told["kept_out"]["files"]) if told["kept_out"] else {}
        return raw + compare_files(before, kept_out)

    return explain_likeness(find_similar(store, plan.key, KIND, compare), files)


def _options(recipe: Mapping[str, Any], reading: Mapping[str, Any], piece_bytes: int) -> dict[str, Any]:
    """What decisions depend on, by its places in a configuration."""
    return {**recipe, "data.corpora": reading, "data.shards.piece_bytes": piece_bytes}


def _digests(files: list[dict[str, str]]) -> dict[str, str]:
    """The digests of evaluation sets' files by the names that they are told by."""
    return {f"{file['path']}, kept out": file["sha256"] for file in files}


def _read_pieces(store: Store, other: Likeness) -> dict[str, Any]:
    """The pieces of raw files that were decided about. Raises `ArtifactError` if their list is damaged."""
    listed = read_pieces(store, other.key, other.manifest)
    return by_file(vars(piece) for pieces in listed.values() for piece in pieces)
