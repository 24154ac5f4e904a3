"""Trace a model from raw files to its promotion, and check that all inputs still exist unchanged.

The record is lineage.json if there is a report, else it is computed from the store. A base model or forked run is
traced in the same way if it is a run of this store.
"""

import hashlib
import logging
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trainer.common.display import suggest_nearest
from trainer.common.errors import ArtifactError, PipelineError, RunError
from trainer.data.raw_files import digest_range, reading
from trainer.models.pretrained import digest_files, require_one_meaning
from trainer.records.basis import by_file, describe_file, labelled_digests
from trainer.records.run_names import find_run_name, run_at
from trainer.records.sealed import read_listed, read_sealed
from trainer.records.shapes import Move
from trainer.registry.facts import SINGLE, make_lineage, read_config, read_facts
from trainer.registry.promotion import find_champion, find_measured, key_of, moves
from trainer.store.artifact_files import require_intact
from trainer.store.manifest import MANIFEST, parse_manifest, read_manifest
from trainer.store.names import (
    CARD,
    CHAMPION,
    CHECKPOINT_KIND,
    CONFIG,
    EVALUATION,
    FINAL,
    FINAL_KIND,
    HARNESS,
    LINEAGE,
    PLAN,
    TENSORBOARD,
)
from trainer.store.remedies import credentials_explained
from trainer.store.storage import Store
from trainer.training.job_progress import last_step
from trainer.training.metrics_reader import ROLLBACK, read_records

log = logging.getLogger(__name__)


def find_run(store: Store, model: str, exact: bool = False) -> str:
    """The key of a model's run; `model` is runs/NAME, its final folder, models/NAME, or a run, champion or job NAME.

    A prefix of a run's name is enough, unless `exact`. Raises `ArtifactError` if there is none, or if the champion's
    run now holds another model, `ConfigError` if `model` is ambiguous, `RunError` if the champion's run is missing.
    """
    name = model.rstrip("/").removesuffix(f"/{FINAL}").removesuffix(f"/{CHAMPION}")
    kind, _, rest = name.rpartition("/")
    require_one_meaning(store, model.rstrip("/"))
    if kind in ("", "runs") and store.exists(f"runs/{rest}/{CONFIG}"):
        return f"runs/{rest}"
    if kind in ("", "models") and (champion := find_champion(store, rest)):
        _require_model(store, rest, champion)
        return champion.run
    try:
        if kind in ("", "runs"):
            return f"runs/{find_run_name(store, rest, exact)}"
        problem = suggest_nearest(model, [key_of(each) for each in store.names("models")])
    except RunError as error:
        problem = str(error)
    raise ArtifactError(
        f"{store.path('')} holds no model {model!r}: it is neither a run nor a name in {store.path('models')} with a "
        f"champion: {problem}"
    )


def _require_model(store: Store, name: str, champion: Move) -> None:
    """Raise `ArtifactError` if the champion's run now holds another model; `find_model` refuses it too."""
    found = _read_record(store, champion.run)["model"]["fingerprint"]
    if found != champion.fingerprint:
        raise ArtifactError(
            f"{store.path(champion.run)} now holds a different model ({found}) than the one promoted as {key_of(name)} "
            f"({champion.fingerprint}); promote a model again, or give the run's name to trace its present model"
        )


def _read_record(store: Store, run: str) -> dict[str, Any]:
    """The run's lineage record, computed now if there is no report; raises `RunError` if the run is not finished."""
    return read_sealed(store, f"{run}/{LINEAGE}") or make_lineage(store, read_facts(store, run))


def trace(store: Store, run: str) -> dict[str, Any]:
    """Trace the origin of a run's final model; `ancestors` are the runs that it depends on, each before the runs made
    from it. One that cannot be traced has the reason under `untold`. Raises `RunError` if the run is not finished.
    """
    found, ordered, waiting = dict[str, dict[str, Any]](), dict[str, dict[str, Any]](), [run]
    while waiting:
        if (key := waiting[-1]) in found:  # and all runs that it depends on
            ordered[key] = found[waiting.pop()]
            continue
        try:
            found[key] = _trace_alone(store, key)
        except PipelineError as error:
            if key == run:
                raise
            found[key] = {"run": key, "untold": str(error)}
        before = [_run_of(store, found[key].get("base")), (found[key].get("fork") or {}).get("run")]
        waiting += [each for each in before if each and each not in found]
    *ancestors, traced = ordered.values()
    return {**traced, "ancestors": ancestors}


def _trace_alone(store: Store, run: str) -> dict[str, Any]:
    """The record of one run, without those of the runs that it depends on."""
    config = read_config(store, run)
    record = _read_record(store, run)
    return {
        "run": run,
        "lineage": record,
        "raw_files": _raw_files(store, record, config),
        "base": record.get("pretrained"),
        "fork": config.get("fork"),
        "training": _describe_training(store, run, record["model"]),
        "scores": _scores(store, run, record["evaluation"]),
        "promotions": _promotions(store, run),
    }


def _scores(store: Store, run: str, recorded: dict[str, Any] | None) -> dict[str, float] | None:
    """The figures of the evaluation in the record; None if there was none, or if it was replaced or removed since."""
    found = find_measured(store, run)
    if recorded is None or found is None or found.fingerprint != recorded["fingerprint"]:
        return None
    harness = recorded.get("harness") or {}
    is_same = found.harness is not None and found.harness.fingerprint == harness.get("fingerprint")
    return found.figures() if is_same else dict(found.judged.figures)


def _pieces(store: Store, shards: dict[str, Any]) -> list[dict[str, Any]] | None:
    """A shard set's raw files; None if their list is missing or has changed."""
    try:
        pieces = read_listed(store, shards["sources"], shards["sources_sha256"])
    except ArtifactError as error:
        log.warning("%s", error)
        return None
    sizes = {piece["path"]: piece["file_bytes"] for piece in pieces or ()}
    return pieces and [describe_file(path, each, sizes[path]) for path, each in by_file(pieces, "path").items()]


def _run_of(store: Store, base: dict[str, Any] | None) -> str | None:
    """The run of this store that holds the base model, also if the job gave its folder."""
    if base is None or (base["key"] is None and base["origin"] != "folder"):
        return None
    return run_at(store, base["key"] or str(Path(base["name"]).absolute()))


def _raw_files(store: Store, record: dict[str, Any], config: dict[str, Any]) -> dict[str, list[dict[str, Any]] | None]:
    """The raw files of each corpus, or of the labelled set, with their digests; None if the list is missing."""
    found = {shards["corpus"]: _pieces(store, shards) for shards in record.get("shards", ())}
    if encoded := record.get("encoded"):
        data = config["job"]["data"]
        found[data["name"]] = _labelled_files(encoded["details"]["source"], data)
    return found


def _labelled_files(source: dict[str, Any], data: dict[str, Any]) -> list[dict[str, Any]]:
    """The files of a labelled set; sources that are not files have a name instead of a path."""
    digests = labelled_digests(source["identity"], source.get("paths", {}))
    if data["source"] == "disk":
        return [{"path": f"{data['path'].rstrip('/')}/{key}", "sha256": digest} for key, digest in digests.items()]
    field = "name" if data["source"] == "hub" or "paths" not in source else "path"
    return [{field: name, "sha256": digest} for name, digest in digests.items()]


def _describe_training(store: Store, run: str, model: dict[str, Any]) -> dict[str, Any]:
    """Figures from the run's metric records: steps, batches taken, continuations, rollbacks and checkpoints."""
    records, plan = read_records(store, run), read_sealed(store, f"{run}/{PLAN}") or {}
    trained = [record for record in records if record["kind"] == "train"]
    steps = max([last_step(store, run), *(record["step"] for record in records)])
    processes = sum(name.startswith("events.") for name in store.names(f"{run}/{TENSORBOARD}"))
    return {
        "steps": steps or plan.get("total_steps"),
        "planned_steps": plan.get("total_steps"),
        "attempts": trained[-1]["attempts"] if trained else None,
        "continuations": max(processes - 1, 0),
        "rollbacks": sum(record["kind"] == ROLLBACK for record in records),
        "checkpoints": sum(record["kind"] == "checkpoint" for record in records),
        "published": model["created"],
    }


def _promotions(store: Store, run: str) -> dict[str, list[dict[str, Any]]]:
    """The promotions and rollbacks of this run, by champion name."""
    names = store.names("models")
    found = {name: [move.model_dump() for move in moves(store, name) if move.run == run] for name in names}
    return {name: part for name, part in found.items() if part}


State = Literal["same", "changed", "gone", "not here"]


class Finding(NamedTuple):
    """The state of an artifact or raw file compared with the lineage record; `not here` cannot be checked."""

    kind: Literal["artifact", "raw file"]
    name: str
    state: State
    note: str = ""


def check(store: Store, traced: dict[str, Any]) -> list[Finding]:
    """Compare a traced model and its inputs with their present state; reads every raw file, and those files of
    artifacts that this machine has not verified since they last changed.

    Raises `CorpusError` if a raw file cannot be read.
    """
    runs = [*traced["ancestors"], traced]
    listed = (files for each in runs for files in each.get("raw_files", {}).values())
    unique = {repr(file): file for files in listed for file in files or []}  # runs may share their text
    with ThreadPoolExecutor() as pool:
        raw = list(pool.map(check_file, unique.values()))
    return list(dict.fromkeys([*raw, *(finding for each in runs for finding in _check_artifacts(store, each))]))


def _check_artifacts(store: Store, traced: dict[str, Any]) -> Iterator[Finding]:
    if "untold" in traced:
        yield Finding("artifact", traced["run"], "gone", traced["untold"])
        return
    record, run = traced["lineage"], traced["run"]
    single = [record[name] for name in SINGLE if name in record]
    for artifact in [*single, *record.get("shards", []), *record.get("decisions", [])]:
        yield _check_artifact(store, artifact)
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
    def now() -> bool | None:
        found = read_sealed(store, key)
        return None if found is None else found["fingerprint"] == fingerprint

    return _compare(key, now)


def _compare(key: str, now: Callable[[], bool | None], note: Callable[[], str] = lambda: "") -> Finding:
    """The state of an artifact; `now` returns whether it is unchanged (None if missing), `note` explains a change."""
    try:
        same = now()
    except ArtifactError as error:
        return Finding("artifact", key, "changed", str(error))
    if same is None:
        return Finding("artifact", key, "gone")
    return Finding("artifact", key, "same") if same else Finding("artifact", key, "changed", note())


def _check_bytes(store: Store, key: str, sha256: str) -> Finding:
    def now() -> bool | None:
        found = store.find_bytes(key)
        return None if found is None else hashlib.sha256(found).hexdigest() == sha256

    return _compare(key, now)


def _check_artifact(store: Store, artifact: dict[str, Any]) -> Finding:
    """Compare an artifact's manifest, and its files with the manifest."""
    place = f"{artifact['key']}/{MANIFEST}"

    def now() -> bool | None:
        found = store.find_bytes(place)
        if found is None or hashlib.sha256(found).hexdigest() != artifact["manifest_sha256"]:
            return None if found is None else False
        require_intact(store, artifact["key"], parse_manifest(found), depth="changed")
        return True

    return _compare(place, now, partial(_remade, store, artifact))


def _remade(store: Store, artifact: dict[str, Any]) -> str:
    """Explain a changed manifest: damaged, or rebuilt from the same or other inputs."""
    try:
        manifest = parse_manifest(store.read_bytes(f"{artifact['key']}/{MANIFEST}"))
    except (ValueError, RecursionError):
        return "its manifest is damaged"
    same = manifest.fingerprint == artifact["fingerprint"]
    return f"rebuilt at {manifest.created}, from {'the same inputs' if same else 'other inputs'}"


def _check_model(store: Store, key: str, expected: dict[str, str]) -> Finding:
    """Compare the files of a published model or checkpoint, without the model card."""
    kind = FINAL_KIND if key.endswith(f"/{FINAL}") else CHECKPOINT_KIND

    def now() -> bool | None:
        manifest = read_manifest(store, key, kind)
        if manifest is None:
            return None
        files = [each for each in manifest.files if each.name != CARD]
        if {each.name: each.sha256 for each in files} != expected:
            return False
        require_intact(store, key, manifest.model_copy(update={"files": files}), depth="changed")
        return True

    return _compare(key, now)


def _check_base(store: Store, base: dict[str, Any]) -> Finding:
    """Compare the model that training started from, by the digests of its files."""
    if base["key"] is not None:
        return _check_model(store, base["key"], base["files"])
    if base["origin"] == "hub":
        return Finding("artifact", base["name"], "not here", "a model of the hub")
    folder = Path(base["name"])
    return _compare(base["name"], lambda: digest_files(folder) == base["files"] if folder.is_dir() else None)


def check_file(file: dict[str, Any]) -> Finding:
    """Compare a raw file by its digest, or by those of its pieces; the last piece extends to the end of the file."""
    if "path" not in file:
        return Finding("raw file", file["name"], "not here", "its path is not recorded, or it is on the hub")
    path = file["path"]
    pieces = file.get("pieces") or [{"start": 0, "end": sys.maxsize, "sha256": file["sha256"]}]
    bounds = [(piece["start"], piece["end"], piece["sha256"]) for piece in pieces]
    bounds[-1] = (bounds[-1][0], sys.maxsize, bounds[-1][2])
    with reading(path):
        try:
            with credentials_explained():  # a missing file that provides them is not a missing raw file
                same = all(digest_range(path, start, end) == sha256 for start, end, sha256 in bounds)
        except FileNotFoundError:
            return Finding("raw file", path, "gone")
        except IsADirectoryError:
            return Finding("raw file", path, "changed", "it is a folder now")
    return Finding("raw file", path, "same" if same else "changed")
