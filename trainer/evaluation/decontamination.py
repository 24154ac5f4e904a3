"""Find the evaluation sets that were kept out of a model's training text, in its run and in the runs before it."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from trainer.data.decisions import decisions_alike, decisions_behind, read_decisions
from trainer.data.shards import KIND as SHARDS
from trainer.data.splits import TEST, TRAIN, VALIDATION
from trainer.records.evaluations import CleanOf
from trainer.records.sealed import read_sealed
from trainer.store.details import KeptOutFile
from trainer.store.manifest import Manifest, read_manifest
from trainer.store.names import CONFIG
from trainer.store.storage import Store


def clean_of(store: Store, run: str, questions: AbstractSet[tuple[str, str]] | None = None) -> CleanOf | None:
    """The evaluation files kept out of all training text of a run's model; None if there are none, or it is not known.

    With `questions`, (SHA-256, field) pairs of files, the result covers only these, and is None unless all were kept
    out. Raises `ArtifactError` if a record is damaged, or decisions that shards reference are missing.
    """
    kept_out = [_kept_out(store, shards) for shards in _sets(store, run) or ()]
    everywhere = set.intersection(*(set(map(_content, found)) for found in kept_out)) if kept_out else set()
    wanted = everywhere if questions is None else everywhere & questions
    if not wanted or (questions is not None and wanted != questions):
        return None
    files = [file for file in kept_out[0] if _content(file) in wanted]
    details = {
        key: each
        for found in kept_out
        for file, by in found.items()
        if _content(file) in wanted
        for key, each in by.items()
    }
    texts, too_short = _count_texts(files, list(details.values()))
    return CleanOf(
        # Texts without a common n-gram have no longer one either.
        ngram=max(each["ngram"] for each in details.values()),
        least_words=max(each["least_words"] for each in details.values()),
        files=sorted(files, key=lambda file: (file.path, file.field)),
        decisions=sorted(details),
        texts=texts,
        too_short=too_short,
    )


Searched = dict[tuple[str, str], int]
"""The texts that were searched for, as (SHA-256 of the file, field), with the least number of words of such a text."""


def read_searched(store: Store, run: str) -> list[Searched] | None:
    """What was kept out of each shard set that a run's model was trained on; None if the sets are not known."""
    sets = _sets(store, run)
    return None if sets is None else [_searched(_kept_out(store, shards)) for shards in sets]


def _searched(kept_out: Mapping[KeptOutFile, Mapping[str, Any]]) -> Searched:
    found: Searched = {}
    for file, details in kept_out.items():
        least = min(each["least_words"] for each in details.values())
        found[_content(file)] = min(least, found.get(_content(file), least))
    return found


def find_kept_out(searched: Sequence[Searched] | None, questions: AbstractSet[tuple[str, str]]) -> dict[str, Any]:
    """Whether all texts in `questions` were `kept_out` of the training text of a model; empty if it is not known.

    `questions` holds (SHA-256 of the file, field) pairs. Texts of fewer than `least_words` words were not searched for.
    """
    if searched is None:
        return {}
    if not all(questions <= each.keys() for each in searched):
        return {"kept_out": False}
    return {"kept_out": True, "least_words": max((each[text] for each in searched for text in questions), default=0)}


def clean_of_splits(store: Store, run: str, details: Mapping[str, Any], fields: Sequence[str]) -> CleanOf | None:
    """The evaluation files of a fine-tuning run, if these fields were kept out of its base model's training text.

    `details` are those of the encoded set. None if some were not kept out, or are in train as well, or it is not known:
    a fork was trained on what its origin read, too.
    """
    config = read_sealed(store, f"{run}/{CONFIG}")
    base = _base_of(config) if config and not config["fork"] else None
    source = details["source"]
    if base is None or not isinstance(source["identity"], dict):
        return None
    if any(details["splits"][split].get("in_train") for split in (VALIDATION, TEST) if split in details["splits"]):
        return None
    splits = {TRAIN if source["validation_cut"] else VALIDATION, TEST} & source["identity"].keys()
    digests = [sha256 for split in splits for sha256, *_ in source["identity"][split]]
    found = clean_of(store, base, {(sha256, column) for sha256 in digests for column in fields})
    return found and found.model_copy(update={"of_base": True})


def _kept_out(store: Store, shards: Manifest) -> dict[KeptOutFile, dict[str, Any]]:
    """The files kept out of a shard set's text, each with the `kept_out` details of the decisions, by their keys."""
    found: dict[KeptOutFile, dict[str, Any]] = {}
    for named in decisions_behind(shards):
        for key in decisions_alike(store, named, shards.details["corpus"]):
            kept_out = read_decisions(store, key).details["kept_out"]
            for file in kept_out["files"] if kept_out else ():
                found.setdefault(KeptOutFile(**{**file, "sha256": _of_file(file["sha256"])}), {})[key] = kept_out
    return found


def _count_texts(files: Sequence[KeptOutFile], details: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """The number of texts in files of different content, and the number that were too short to search for."""
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for each in (each for kept_out in details for each in kept_out["texts"]):
        place = (_of_file(each["sha256"]), each["field"])
        counts[place] = max(counts.get(place, (0, 0)), (each["texts"], each["too_short"]))
    found = [counts.get(place, (0, 0)) for place in set(map(_content, files))]
    return sum(texts for texts, _ in found), sum(too_short for _, too_short in found)


def _content(file: KeptOutFile) -> tuple[str, str]:
    """Identifies a file's texts independently of its path."""
    return file.sha256, file.field


def _of_file(sha256: str) -> str:
    """The digest of a file; for Parquet, the given digest is followed by row group numbers."""
    return sha256.partition(":")[0]


def _sets(store: Store, run: str) -> list[Manifest] | None:
    """The shard sets that a run and the runs before it were trained on; None if some are missing or unknown."""
    runs, keys = [run], dict[str, None]()
    for each in runs:  # grows by the runs before it
        config = read_sealed(store, f"{each}/{CONFIG}")
        if config is None or "shards" not in config["data"]:
            return None  # nothing is kept out of other training data, such as conversations
        keys |= dict.fromkeys(shards["key"] for shards in config["data"]["shards"])
        before = [config["fork"]["run"]] if config.get("fork") else []
        if config["job"]["model"]["pretrained"] is not None:
            before.append(_base_of(config) or "")
        if not all(before):
            return None
        runs += [key for key in before if key not in runs]
    found = [read_manifest(store, key, SHARDS) for key in keys]
    return [shards for shards in found if shards] if all(found) else None


def _base_of(config: Mapping[str, Any]) -> str | None:
    """The run in this store whose model a run started from; None if there is none, or the model is from elsewhere."""
    model = config["inputs"].get("model")
    return model["key"] if model else None
