"""Whether what a lineage names is still there, and the same."""

import hashlib
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trainer.common.errors import ArtifactError
from trainer.data.raw_files import digest_stretch, unreadable
from trainer.models.pretrained import digest_files
from trainer.records.sealed import read_sealed
from trainer.store.manifest import MANIFEST, parse_manifest, read_manifest
from trainer.store.names import CARD, CONFIG, EVALUATION, FINAL, FINAL_KIND, HARNESS
from trainer.store.storage import Store

State = Literal["same", "changed", "gone", "not here"]


class Finding(NamedTuple):
    """An artifact or a raw file, and whether it is the one that the lineage names; `not here` cannot be looked at."""

    kind: Literal["artifact", "raw file"]
    name: str
    state: State
    note: str = ""


def check(store: Store, traced: dict[str, Any]) -> list[Finding]:
    """Compare all that a traced model names with what is there now; reads every raw file. Raises `CorpusError` if it cannot."""
    if "untold" in traced:
        return [Finding("artifact", traced["run"], "gone", traced["untold"])]
    before = [finding for ancestor in traced["ancestors"] for finding in check(store, ancestor)]
    files = [file for listed in traced["raw_files"].values() for file in listed or []]
    with ThreadPoolExecutor() as pool:
        raw = list(pool.map(check_file, files))
    return list(dict.fromkeys([*before, *raw, *_check_artifacts(store, traced)]))


def _check_artifacts(store: Store, traced: dict[str, Any]) -> Iterator[Finding]:
    record, run = traced["lineage"], traced["run"]
    single = [record[name] for name in ("tokenizer", "encoded") if name in record]
    for artifact in [*single, *record.get("shards", []), *record.get("decisions", [])]:
        yield _check_bytes(store, f"{artifact['key']}/{MANIFEST}", artifact["manifest_sha256"], _remade(store, artifact))
    for shards in record.get("shards", []):
        if shards["sources_sha256"]:
            yield _check_bytes(store, shards["sources"], shards["sources_sha256"])
    if traced["base"]:
        yield _check_base(store, traced["base"])
    yield _check_bytes(store, f"{run}/{CONFIG}", record["run"]["config_sha256"])
    expected = {file["name"]: file["sha256"] for file in record["model"]["files"]}
    yield _check_model(store, f"{run}/{FINAL}", expected)
    if record["evaluation"]:
        yield _check_evaluation(store, f"{run}/{EVALUATION}", record["evaluation"]["fingerprint"])
        if harness := record["evaluation"].get("harness"):
            yield _check_evaluation(store, f"{run}/{HARNESS}", harness["fingerprint"])


def _check_evaluation(store: Store, key: str, fingerprint: str) -> Finding:
    try:
        now = read_sealed(store, key)
    except ArtifactError as error:
        return Finding("artifact", key, "changed", str(error))
    if now is None:
        return Finding("artifact", key, "gone")
    return Finding("artifact", key, "same" if now["fingerprint"] == fingerprint else "changed")


def _check_bytes(store: Store, key: str, sha256: str, note: Callable[[], str] = lambda: "") -> Finding:
    try:
        found = hashlib.sha256(store.read_bytes(key)).hexdigest()
    except FileNotFoundError:
        return Finding("artifact", key, "gone")
    return Finding("artifact", key, "same") if found == sha256 else Finding("artifact", key, "changed", note())


def _remade(store: Store, artifact: dict[str, Any]) -> Callable[[], str]:
    """What to say of an artifact with another manifest: it may have been made again, from the same."""

    def note() -> str:
        try:
            manifest = parse_manifest(store.read_bytes(f"{artifact['key']}/{MANIFEST}"))
        except (ValueError, RecursionError):
            return "its manifest is damaged"
        same = manifest.fingerprint == artifact["fingerprint"]
        return f"made again at {manifest.created}, from {'the same' if same else 'something else'}"

    return note


def _check_model(store: Store, key: str, expected: dict[str, str]) -> Finding:
    """A published model by the digests of its files; its model card may be another."""
    try:
        manifest = read_manifest(store, key, FINAL_KIND)
    except ArtifactError as error:
        return Finding("artifact", key, "changed", str(error))
    if manifest is None:
        return Finding("artifact", key, "gone")
    now = {name: sha256 for name, sha256 in manifest.digests().items() if name != CARD}
    return Finding("artifact", key, "same" if now == expected else "changed")


def _check_base(store: Store, base: dict[str, Any]) -> Finding:
    """The model that training started from, by its files' digests."""
    if base["key"] is not None and base["key"].endswith(f"/{FINAL}"):
        return _check_model(store, base["key"], base["files"])
    if base["key"] is not None:
        return Finding("artifact", base["key"], "same" if store.exists(f"{base['key']}/{MANIFEST}") else "gone")
    if base["origin"] == "hub":
        return Finding("artifact", base["name"], "not here", "a model of the hub")
    if not Path(base["name"]).is_dir():
        return Finding("artifact", base["name"], "gone")
    return Finding("artifact", base["name"], "same" if digest_files(Path(base["name"])) == base["files"] else "changed")


def check_file(file: dict[str, Any]) -> Finding:
    """A raw file by its digest; one that was cut by those of its pieces, the last of which ends with the file."""
    if "path" not in file:
        return Finding("raw file", file["name"], "not here", "its place is not recorded, or is the hub")
    path = file["path"]
    pieces = file.get("pieces") or [{"start": 0, "end": sys.maxsize, "sha256": file["sha256"]}]
    bounds = [(piece["start"], piece["end"], piece["sha256"]) for piece in pieces]
    bounds[-1] = (bounds[-1][0], sys.maxsize, bounds[-1][2])
    try:
        same = all(digest_stretch(path, start, end) == sha256 for start, end, sha256 in bounds)
    except FileNotFoundError:
        return Finding("raw file", path, "gone")
    except OSError as error:
        raise unreadable(path, error) from error
    return Finding("raw file", path, "same" if same else "changed")
