"""Which evaluation sets the text is clean of that a model was trained on: that of its run, and of the runs before
it.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from trainer.data.decisions import decisions_alike, decisions_behind, read_decisions
from trainer.data.shards import KIND as SHARDS
from trainer.data.splits import TEST, TRAIN, VALIDATION
from trainer.records.evaluations import CleanOf, KeptOutFile
from trainer.records.sealed import read_sealed
from trainer.store.manifest import Manifest, read_manifest
from trainer.store.names import CONFIG
from trainer.store.storage import Store


def clean_of(store: Store, run: str, asked: AbstractSet[tuple[str, str]] | None = None) -> CleanOf | None:
    """What was kept out of all text that a run's model was trained on; None if there is nothing, or it is not known of
    some.

    `asked` are SHA-256 and fields of files: then it is told of these alone, and None if not all of them were kept out.
    Raises `ArtifactError` if what says so is damaged, or decisions that shards name are gone.
    """
    kept_out = [_kept_out(store, shards) for shards in _sets(store, run) or ()]
    everywhere = set.intersection(*(set(map(_content, found)) for found in kept_out)) if kept_out else set()
    wanted = everywhere if asked is None else everywhere & asked
    if not wanted or (asked is not None and wanted != asked):
        return None
    files = [file for file in kept_out[0] if _content(file) in wanted]
    said = {
        key: each
        for found in kept_out
        for file, by in found.items()
        if _content(file) in wanted
        for key, each in by.items()
    }
    texts, too_short = _count_texts(files, list(said.values()))
    return CleanOf(
        ngram=max(each["ngram"] for each in said.values()),  # what shares no shorter n-gram shares no longer one
        least_words=max(each["least_words"] for each in said.values()),
        files=sorted(files, key=lambda file: (file.path, file.field)),
        decisions=sorted(said),
        texts=texts,
        too_short=too_short,
    )


def find_kept_out(store: Store, run: str, asked: AbstractSet[tuple[str, str]]) -> dict[str, Any]:
    """Whether some texts were all `kept_out` of the text that a run's model was trained on, but for those of fewer than
    `least_words` words, which were not looked for; nothing if it is not known.

    They are told by their files' SHA-256 and the fields that hold them.
    """
    sets = _sets(store, run)
    if sets is None:
        return {}
    least_words = 0
    for shards in sets:
        looked_for: dict[tuple[str, str], int] = {}  # each with the words from which on it was looked for
        for file, said in _kept_out(store, shards).items():
            least = min(each["least_words"] for each in said.values())
            looked_for[_content(file)] = min(least, looked_for.get(_content(file), least))
        if not asked <= looked_for.keys():
            return {"kept_out": False}
        least_words = max([least_words, *(looked_for[each] for each in asked)])
    return {"kept_out": True, "least_words": least_words}


def clean_of_splits(store: Store, run: str, details: Mapping[str, Any], fields: Sequence[str]) -> CleanOf | None:
    """The files that a tuned run is measured on, if these fields were kept out of all text that its model began with.

    `details` are those of the encoded set. None if there are others, or it is not known.
    """
    config = read_sealed(store, f"{run}/{CONFIG}")
    base = _base_of(config) if config else None
    source = details["source"]
    if base is None or not isinstance(source["identity"], dict):
        return None
    splits = {TRAIN if source["validation_cut"] else VALIDATION, TEST} & source["identity"].keys()
    digests = [sha256 for split in splits for sha256, *_ in source["identity"][split]]
    return clean_of(store, base, {(sha256, column) for sha256 in digests for column in fields})


def _kept_out(store: Store, shards: Manifest) -> dict[KeptOutFile, dict[str, Any]]:
    """The files of which a set's text is clean, each with what the decisions say that kept it out, by their keys."""
    found: dict[KeptOutFile, dict[str, Any]] = {}
    for named in decisions_behind(shards):
        for key in decisions_alike(store, named, shards.details["corpus"]):
            kept_out = read_decisions(store, key).details["kept_out"]
            for file in kept_out["files"] if kept_out else ():
                found.setdefault(KeptOutFile(**{**file, "sha256": _of_file(file["sha256"])}), {})[key] = kept_out
    return found


def _count_texts(files: Sequence[KeptOutFile], said: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """How many texts files have, each content once, and how many were too short at most."""
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for each in (each for kept_out in said for each in kept_out["texts"]):
        place = (_of_file(each["sha256"]), each["field"])
        counts[place] = max(counts.get(place, (0, 0)), (each["texts"], each["too_short"]))
    found = [counts.get(place, (0, 0)) for place in set(map(_content, files))]
    return sum(texts for texts, _ in found), sum(too_short for _, too_short in found)


def _content(file: KeptOutFile) -> tuple[str, str]:
    """What tells a file's texts from others, wherever it is."""
    return file.sha256, file.field


def _of_file(sha256: str) -> str:
    """The digest of a file, which of Parquet the numbers of its row groups follow."""
    return sha256.partition(":")[0]


def _sets(store: Store, run: str, after: tuple[str, ...] = ()) -> list[Manifest] | None:
    """The sets of shards that a run, and those before it, were trained on; None if some are gone, or it is not
    known.
    """
    config = read_sealed(store, f"{run}/{CONFIG}")
    if config is None or run in after or "shards" not in config["data"]:
        return None  # what else it was trained on, such as conversations, nothing was kept out of
    found = [read_manifest(store, each["key"], SHARDS) for each in config["data"]["shards"]]
    before = [config["fork"]["run"]] if config.get("fork") else []
    if config["job"]["model"]["pretrained"] is not None:
        before.append(_base_of(config) or "")
    for each in before:
        found += (_sets(store, each, (*after, run)) if each else None) or [None]
    return [shards for shards in found if shards] if all(found) else None


def _base_of(config: Mapping[str, Any]) -> str | None:
    """The run of this store whose model a run began with; None if there is none, or it is a model of elsewhere."""
    model = config["inputs"].get("model")
    return model["key"] if model else None
