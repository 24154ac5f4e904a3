"""A store with artifacts, runs, champions and pins, made up: what is in it reaches what its names say."""

from typing import Any

from tests.trainer.report_runs import publish
from trainer.config.jobs import GarbageJob
from trainer.records.sealed import write_sealed
from trainer.registry.garbage import collect
from trainer.registry.leftovers import Garbage
from trainer.store.manifest import Input
from trainer.store.manifest import fingerprint as name_of
from trainer.store.storage import Store
from trainer.training.identity import inputs_at

OLD, NEW = "0" * 16, "f" * 16


def job(store: Store, **values: Any) -> GarbageJob:
    """Everything is old enough for it."""
    return GarbageJob(store=store.url, **{"older_than_days": 0, **values})


def found(store: Store, **values: Any) -> list[Garbage]:
    return list(collect(job(store, **values)))


def keys(garbage: list[Garbage]) -> list[str]:
    return [each.key for each in garbage]


def contents(store: Store) -> dict[str, bytes]:
    return {entry.key: store.read_bytes(entry.key) for entry in store.walk()}


def add_tokenizer(store: Store, name: str, **inputs: str) -> str:
    return publish(store, f"tokenizers/{name}-{OLD}", "tokenizer", {"tokenizer.json": b"{}"}, {}, inputs).key


def add_encoded(store: Store, name: str) -> str:
    return publish(store, f"encoded/{name}-{OLD}", "encoded", {"train.arrow": b"rows"}, {}).key


def add_decisions(store: Store, name: str, **details: Any) -> str:
    return publish(store, f"decisions/{name}-{OLD}", "decisions", {"pieces.json": b"{}"}, details).key


def add_shards(store: Store, corpus: str, fingerprint: str = OLD, **inputs: str) -> str:
    """A set with a tokenizer of its own; one with the fingerprint NEW is the newest of its corpus."""
    tokenizer = add_tokenizer(store, f"{corpus}-{fingerprint[0]}")
    files = {"shard-00000.bin": b"tokens", "shard-00000.idx": b"where", "shard-00000.sums": b"sums"}
    made_from = {"tokenizer": tokenizer, **inputs}
    return publish(store, f"shards/{corpus}-{fingerprint}", "shards", files, {"corpus": corpus}, made_from).key


def add_superseded(store: Store, corpus: str) -> str:
    """A set that is not the newest of its corpus."""
    key = add_shards(store, corpus)
    add_shards(store, corpus, NEW)
    return key


def add_run(store: Store, name: str, data: str, final: bool = True, **config: Any) -> str:
    """A run that was made from shards, with their tokenizer, or from an encoded set."""
    ref: dict[str, Any] = {"key": data, "fingerprint": OLD, "size": 1}
    role = "shards of a corpus" if data.startswith("shards/") else "encoded set"
    inputs = {role: Input(key=data, content="")}
    if data.startswith("shards/"):
        tokenizer = data.replace("shards/", "tokenizers/").replace(f"-{OLD}", f"-0-{OLD}")
        ref = {"tokenizer": {"key": tokenizer}, "shards": [ref]}
        inputs["tokenizer"] = Input(key=tokenizer, content="")
    named, start = config.get("job", {}).get("model", {}).get("pretrained"), config.get("start")
    fork = config["fork"]["run"] if config.get("fork") else None
    inputs |= inputs_at(store, {"model": (start and start["key"]) or named, "fork of": fork})
    identity = {"name": name}
    record = {
        "fingerprint": name_of(identity),
        "identity": identity,
        "job": {},
        "data": ref,
        "fork": None,
        "start": None,
    }
    record["inputs"] = {role: each.model_dump() for role, each in inputs.items()}
    write_sealed(store, f"runs/{name}/config.json", {**record, **config})
    store.write_bytes(f"runs/{name}/metrics.jsonl", b"{}\n")
    publish(
        store, f"runs/{name}/checkpoints/step-00000001", "checkpoint", {"model.safetensors": b"weights"}, {"step": 1}
    )
    if final:
        publish(store, f"runs/{name}/final", "model", {"model.safetensors": b"weights"}, {"run": name})
    return f"runs/{name}"
