"""Where a model comes from, as one record: every artifact behind it by its key, fingerprint and digest.

`headrace lineage STORE MODEL` shows it, with all that is behind it: see trainer/registry/tell_store.py.
"""

from typing import Any

from trainer.data.decisions import KIND as DECISIONS
from trainer.data.decisions import decisions_behind
from trainer.data.encoded import KIND as ENCODED
from trainer.data.shards import KIND as SHARDS
from trainer.data.tokenization import SOURCES
from trainer.models.tokenizer import KIND as TOKENIZER
from trainer.records.sealed import read_listed
from trainer.registry.facts import RunFacts, Source
from trainer.store.manifest import FileRecord
from trainer.store.names import CONFIG, EVALUATION, FINAL, HARNESS, REFERENCE_KIND
from trainer.store.storage import Store

FORMAT = 2
EVALUATED = {"recipe", "data", "predictions", "clean_of"}
"""What an evaluation says of the data that it read and the files that it wrote, where it has it."""

SINGLE = {"tokenizer": "tokenizer", "encoded": "encoded set", "reference": "reference"}
"""What a run has one of at most, by its key in the record, as people call it."""

DECIDED = ("curation", "documents", "table", "kept_out")
"""What is told of decisions, of all that their manifest says."""


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
        **_describe_origins(store, facts),
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


def _describe_origins(store: Store, facts: RunFacts) -> dict[str, Any]:
    """The data, and the model that training started from, where a run's record says where that was found."""
    told: dict[str, Any] = {}
    if shards := facts.made_from(SHARDS):
        told["shards"] = [_describe_shards(store, source) for source in shards]
    if decisions := facts.made_from(DECISIONS):
        told["decisions"] = [_describe_decisions(source) for source in decisions]
    for tokenizer in facts.made_from(TOKENIZER):
        told["tokenizer"] = _describe_tokenizer(tokenizer)
    for encoded in facts.made_from(ENCODED):
        told["encoded"] = _describe_encoded(encoded)
    for reference in facts.made_from(REFERENCE_KIND):
        told["reference"] = _describe_encoded(reference)
    if facts.config.get("start"):
        told["pretrained"] = _describe_pretrained(facts)
    return told


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
    listed = source.manifest.digests().get(SOURCES)
    pieces = read_listed(store, key, listed) or []
    return {
        **_describe(source),
        "corpus": source.manifest.details["corpus"],
        "source_files": len({piece["path"] for piece in pieces}),
        "source_pieces": len(pieces),
        "sources": key,
        "sources_sha256": listed,
        "totals": source.manifest.details["totals"],
        **_name_decisions(source),
    }


def _name_decisions(source: Source) -> dict[str, Any]:
    """The decisions about the text that something was made from, if there are any."""
    keys = decisions_behind(source.manifest)
    return {"decisions": keys} if keys else {}


def _describe_decisions(source: Source) -> dict[str, Any]:
    """Which documents stay: by what options, how many of them by corpus and reason, and the evaluation sets kept
    out.
    """
    return {**_describe(source), **{field: source.manifest.details[field] for field in DECIDED}}


def _describe_tokenizer(source: Source) -> dict[str, Any]:
    """The tokenizer, with the pieces of raw files that it was trained on, or the place that it was taken from."""
    details = source.manifest.details
    return {
        **_describe(source),
        "vocab_size": details["vocab_size"],
        "trained_on": details.get("trained_on"),
        "taken_from": details.get("taken_from"),
        **_name_decisions(source),
    }


def _describe_encoded(source: Source) -> dict[str, Any]:
    """All that the manifest says of its making, and the digests of its files: of an encoded set, splits and tokenizer;
    of a reference, its log-probabilities.
    """
    return {**_describe(source), "details": source.manifest.details, "files": describe_files(source.manifest.files)}


def _describe_pretrained(facts: RunFacts) -> dict[str, Any]:
    """The model that training started from: its name, where that was found, and its files' digests."""
    return {
        "name": facts.job["model"]["pretrained"],
        **facts.config["start"],
        "files": facts.config["identity"]["model"],
    }


def _describe_evaluation(facts: RunFacts) -> dict[str, Any] | None:
    """The evaluation of the final model, and what it read and wrote."""
    if facts.evaluation is None:
        return None
    told: dict[str, Any] = facts.evaluation.model_dump(mode="json", include=EVALUATED)
    if facts.evaluation.harness is not None:
        told["harness"] = {"key": f"{facts.key}/{HARNESS}", "fingerprint": facts.evaluation.harness.fingerprint}
    return {"key": f"{facts.key}/{EVALUATION}", "fingerprint": facts.evaluation.fingerprint, **told}
