"""Where a model comes from, as one record: every artifact behind it by its key, fingerprint and digest."""

from typing import Any

from trainer.facts import RunFacts, Source
from trainer.manifest import FileRecord
from trainer.preparation import SOURCES
from trainer.runs import CONFIG, EVALUATION, FINAL
from trainer.storage import Store

FORMAT = 1


def make_lineage(store: Store, facts: RunFacts) -> dict[str, Any]:
    """The record that lineage.json holds, but for the report's own part. Reads each corpus's list of sources."""
    return {
        "format": FORMAT,
        "run": {
            "key": facts.key,
            "fingerprint": facts.config["fingerprint"],
            "config": f"{facts.key}/{CONFIG}",
            "config_sha256": facts.config_sha256,
        },
        "shards": [_describe_shards(store, source) for source in facts.shards],
        "tokenizer": _describe_tokenizer(facts.tokenizer),
        "environment": facts.environment,
        "model": {
            "key": f"{facts.key}/{FINAL}",
            "fingerprint": facts.final.fingerprint,
            "created": facts.final.created,
            "files": describe_files(facts.final.files),
        },
        "evaluation": _describe_evaluation(facts),
    }


def describe_files(files: list[FileRecord]) -> list[dict[str, Any]]:
    """Names, sizes in bytes and checksums."""
    return [record.model_dump() for record in files]


def _describe(source: Source) -> dict[str, Any]:
    manifest = source.manifest
    return {
        "key": source.key,
        "fingerprint": manifest.fingerprint,
        "manifest_sha256": source.sha256,
        "created": manifest.created,
        "headrace": manifest.headrace,
    }


def _describe_shards(store: Store, source: Source) -> dict[str, Any]:
    """A corpus, with a pointer to the list of its raw files: that list holds each one's path and checksum."""
    key = f"{source.key}/{SOURCES}"
    pieces = store.read_json(key) or []
    listed = next((record.sha256 for record in source.manifest.files if record.name == SOURCES), None)
    return {
        **_describe(source),
        "corpus": source.manifest.details["corpus"],
        "source_files": len({piece["path"] for piece in pieces}),
        "source_pieces": len(pieces),
        "sources": key,
        "sources_sha256": listed,
        "totals": source.manifest.details["totals"],
    }


def _describe_tokenizer(source: Source) -> dict[str, Any]:
    """The tokenizer, with the pieces of raw files that it was trained on, or the place that it was taken from."""
    details = source.manifest.details
    return {
        **_describe(source),
        "vocab_size": details["vocab_size"],
        "trained_on": details.get("trained_on"),
        "taken_from": details.get("taken_from"),
    }


def _describe_evaluation(facts: RunFacts) -> dict[str, Any] | None:
    if facts.evaluation is None:
        return None
    return {
        "key": f"{facts.key}/{EVALUATION}",
        "fingerprint": facts.evaluation["fingerprint"],
        "shards": facts.evaluation["shards"],
        "context": facts.evaluation["context"],
    }
