"""The whole way to a model, from raw files to its promotion: its record of lineage and what the store says besides.

The record is lineage.json if there is a report, else it is made from what the store holds now. A model that the run started
from, or a run that it is a fork of, is traced in the same way if it is a run of this store.
"""

import logging
from pathlib import Path
from typing import Any

from trainer.common.errors import ArtifactError, PipelineError, RunError
from trainer.common.formats import tell_nearest
from trainer.provenance.record import make_lineage
from trainer.records.basis import by_file, describe_file, labelled_digests
from trainer.records.names import find_run_name, run_at
from trainer.records.sealed import read_listed, read_sealed
from trainer.runs.facts import read_facts, require_job
from trainer.store.names import CHAMPION, CONFIG, FINAL, LINEAGE, PLAN, TENSORBOARD
from trainer.store.storage import Store
from trainer.training.records import read_records
from trainer.upkeep.gate import Move, figures
from trainer.upkeep.promotion import find_champion, find_measured, key_of, moves

log = logging.getLogger(__name__)


def find_run(store: Store, model: str) -> str:
    """The key of the run behind a model: runs/NAME or its final folder, models/NAME, or NAME of a run, champion or job.

    A run's name may be its beginning. Raises `ArtifactError` if there is none, or if the champion's run holds another model by
    now, `ConfigError` if several runs may be meant, `RunError` if the champion's run is gone.
    """
    name = model.rstrip("/").removesuffix(f"/{FINAL}").removesuffix(f"/{CHAMPION}")
    kind, _, rest = name.rpartition("/")
    if kind in ("", "runs") and store.exists(f"runs/{rest}/{CONFIG}"):
        return f"runs/{rest}"
    if kind in ("", "models") and (champion := find_champion(store, rest)):
        _require_model(store, rest, champion)
        return champion.run
    try:
        if kind in ("", "runs"):
            return f"runs/{find_run_name(store, rest)}"
        problem = tell_nearest(model, [key_of(each) for each in store.names("models")])
    except RunError as error:
        problem = str(error)
    raise ArtifactError(
        f"{store.path('')} knows no model {model!r}, neither a run nor a name in {store.path('models')} that has a champion: "
        f"{problem}"
    )


def _require_model(store: Store, name: str, champion: Move) -> None:
    """Raise `ArtifactError` if what the champion's run tells of is another model: as for `find_model`, that is no champion."""
    found = _read_record(store, champion.run)["model"]["fingerprint"]
    if found != champion.fingerprint:
        raise ArtifactError(
            f"{store.path(champion.run)} holds another model ({found}) than the one that became {key_of(name)} "
            f"({champion.fingerprint}); promote one anew, or name the run to see where its model comes from"
        )


def _read_record(store: Store, run: str) -> dict[str, Any]:
    """The run's record of lineage, made now if there is no report. Raises `RunError` if the run is not finished."""
    return read_sealed(store, f"{run}/{LINEAGE}") or make_lineage(store, read_facts(store, run))


def trace(store: Store, run: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """All that is known of how a run's final model came to be. Raises `RunError` if the run is not finished."""
    config = read_sealed(store, f"{run}/{CONFIG}")
    if config is None:
        raise RunError(f"{store.path(run)} holds no run: it has no {CONFIG}")
    require_job(store, run, config)
    record = _read_record(store, run)
    base = _find_base(config, record)
    before = [key for key in (_run_of(store, base), (config.get("fork") or {}).get("run")) if key and key not in (*seen, run)]
    return {
        "run": run,
        "lineage": record,
        "raw_files": _raw_files(store, record, config),
        "base": base,
        "fork": config.get("fork"),
        "training": _describe_training(store, run, record["model"]),
        "scores": figures(found) if (found := find_measured(store, run)) else None,
        "promotions": _promotions(store, run),
        "ancestors": [_trace_ancestor(store, key, (*seen, run)) for key in before],
    }


def _trace_ancestor(store: Store, run: str, seen: tuple[str, ...]) -> dict[str, Any]:
    """The same of a run behind the run; only why not, if it cannot be told."""
    try:
        return trace(store, run, seen)
    except PipelineError as error:
        return {"run": run, "untold": str(error)}


def _find_base(config: dict[str, Any], record: dict[str, Any]) -> dict[str, Any] | None:
    """The pretrained model that training started from, if there is one: its name, origin, key and files' digests."""
    if "pretrained" in record:
        return dict(record["pretrained"])
    name, identity = config["job"]["model"]["pretrained"], config["identity"]["model"]["pretrained"]
    if name is None:
        return None
    local = isinstance(identity, dict)
    return {"name": name, "origin": "folder" if local else "hub", "key": None, "files": identity if local else {}}


def _pieces(store: Store, shards: dict[str, Any]) -> Any:
    """The list of a shard set's raw files; None where it is gone, or another one by now."""
    try:
        return read_listed(store, shards["sources"], shards["sources_sha256"])
    except ArtifactError as error:
        log.warning("%s", error)
        return None


def _run_of(store: Store, base: dict[str, Any] | None) -> str | None:
    """The run of this store that a base is of, also if it was named by its folder."""
    if base is None:
        return None
    if base["key"] is None and base["origin"] != "folder":
        return None
    return run_at(store, base["key"] or str(Path(base["name"]).absolute()))


def _raw_files(store: Store, record: dict[str, Any], config: dict[str, Any]) -> dict[str, list[dict[str, Any]] | None]:
    """The raw files of each corpus, or of the labelled set, with their digests; None where the list is gone."""
    listed = {shards["corpus"]: _pieces(store, shards) for shards in record.get("shards", ())}
    found: dict[str, list[dict[str, Any]] | None] = {corpus: pieces and _described(pieces) for corpus, pieces in listed.items()}
    if encoded := record.get("encoded"):
        data = config["job"]["data"]
        found[data["name"]] = _labelled_files(encoded["details"]["source"], data)
    return found


def _described(pieces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    sizes = {piece["path"]: piece.get("file_bytes") for piece in pieces}
    return [describe_file(path, each, sizes[path]) for path, each in by_file(pieces, "path").items()]


def _labelled_files(source: dict[str, Any], data: dict[str, Any]) -> list[dict[str, Any]]:
    """A labelled set's files. What is no file has a name in place of a path."""
    digests = labelled_digests(source["identity"], source.get("paths", {}))
    if data["source"] == "disk":
        return [{"path": f"{data['path'].rstrip('/')}/{key}", "sha256": digest} for key, digest in digests.items()]
    field = "name" if data["source"] == "hub" or "paths" not in source else "path"
    return [{field: name, "sha256": digest} for name, digest in digests.items()]


def _describe_training(store: Store, run: str, model: dict[str, Any]) -> dict[str, Any]:
    """What the run's log says: steps, batches taken, returns to a checkpoint, and how many processes had a part in it."""
    records, plan = read_records(store, run), read_sealed(store, f"{run}/{PLAN}") or {}
    trained = [record for record in records if record["kind"] == "train"]
    processes = sum(name.startswith("events.") for name in store.names(f"{run}/{TENSORBOARD}"))
    return {
        "steps": max((record["step"] for record in records), default=plan.get("total_steps")),
        "planned_steps": plan.get("total_steps"),
        "attempts": trained[-1]["attempts"] if trained else None,
        "continuations": max(processes - 1, 0),
        "rollbacks": sum(record["kind"] == "rollback" for record in records),
        "checkpoints": sum(record["kind"] == "checkpoint" for record in records),
        "published": model["created"],
    }


def _promotions(store: Store, run: str) -> dict[str, list[dict[str, Any]]]:
    """The moves that this run was a part of, by the name under which models are used."""
    names = [name for name in store.names("models") if store.exists(key_of(name))]
    found = {name: [move.model_dump() for move in moves(store, name) if move.run == run] for name in names}
    return {name: part for name, part in found.items() if part}
