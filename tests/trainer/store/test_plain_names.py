"""A store that others can write to: no name in it leads out of it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.trainer.report_runs import publish
from trainer.common.errors import ArtifactError, PipelineError, StorageError
from trainer.config.jobs import EvaluateJob
from trainer.data.encoded import tokenizer_paths
from trainer.data.shards import read_record, write_record
from trainer.models.pretrained import find_model
from trainer.registry.references import pin
from trainer.store.artifact_files import fetch_artifact
from trainer.store.manifest import MANIFEST, FileRecord, fingerprint, read_manifest, seal
from trainer.store.names import plain_key, plain_name
from trainer.store.storage import Store

ELSEWHERE = (
    "../../escaped", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "..\\a", "a\0b", "x" * 256, "ü" * 128, "\ud800",
    "./a", "a/",
)  # fmt: skip
SHA = "0" * 64


def forge(store: Store, key: str, change: Callable[[dict], None]) -> None:
    """Change a manifest and seal it again, as whoever can write to the store may."""
    manifest = json.loads(store.read_bytes(f"{key}/{MANIFEST}"))
    del manifest["checksum"]
    change(manifest)
    store.write_json(f"{key}/{MANIFEST}", seal(manifest))


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_name_that_is_a_path_is_none(name: str) -> None:
    with pytest.raises(ValueError, match="not a plain file name"):
        plain_name(name)
    with pytest.raises(ValidationError):
        FileRecord(name=name, size=0, sha256=SHA)
    if name != "a/b":
        with pytest.raises(ValueError, match="is not a key of the store"):
            plain_key(f"runs/{name}")


@pytest.mark.parametrize("name", ["a", "...", ".hidden", "shard-00000.bin", "x" * 255, "a b", "ü" * 127, "..a"])
def test_a_name_of_a_file_is_taken(name: str) -> None:
    assert plain_name(name) == name
    assert plain_key(f"runs/{name}/x") == f"runs/{name}/x"


@pytest.mark.parametrize(
    "record", [("a", -1, SHA), ("a", 1, "0" * 63), ("a", 1, "../" + "0" * 61), ("a", 1.0, SHA), ("a", 1, SHA + "\n")]
)
def test_impossible_sizes_and_digests_are_refused(record: tuple[str, int, str]) -> None:
    with pytest.raises(ValidationError):
        FileRecord(name=record[0], size=record[1], sha256=record[2])


@pytest.mark.parametrize("name", ["../../../escaped", "/tmp/escaped"])
def test_a_manifest_that_names_a_path_writes_nothing_outside_the_cache(any_store: Store, name: str) -> None:
    key = publish(any_store, "encoded/pairs-" + "0" * 16, "encoded", {"tokenizer.json": b"{}"}, {"splits": {}}).key
    forge(any_store, key, lambda manifest: manifest["files"][0].update(name=name))
    with pytest.raises(
        ArtifactError, match=r"manifest.json is damaged .*: files.0.name: .*not a plain file name"
    ) as told:
        tokenizer_paths(any_store, key)
    assert key in str(told.value)
    with pytest.raises(ArtifactError, match="not a plain file name"):
        fetch_artifact(any_store, key, "encoded")
    # And where it is used, should something else pass it on:
    with pytest.raises(StorageError, match="is not a key of the store"):
        any_store.fetch_folder(key, {name: SHA})


@pytest.mark.parametrize("key", ["../outside", "/etc/hostname", "runs/../../outside", "runs//a", "runs/a\\..\\b"])
def test_no_key_leads_out_of_a_store(any_store: Store, key: str) -> None:
    any_store.write_bytes("runs/a", b"a")
    for use in (
        any_store.exists, any_store.read_bytes, any_store.names, any_store.size, any_store.fetch, any_store.delete,
        lambda key: any_store.write_bytes(key, b"x"), lambda key: any_store.create(key, b"x"),
        lambda key: any_store.swap(key, b"a", b"x"), lambda key: any_store.copy(key, "runs/b"),
        lambda key: any_store.copy("runs/a", key), lambda key: any_store.rename("runs/a", key),
        lambda key: any_store.rename(key, "runs/b"),
    ):  # fmt: skip
        with pytest.raises(StorageError, match=r"is not a key of the store|not a plain file name"):
            use(key)
    assert any_store.read_bytes("runs/a") == b"a"


def test_a_shard_record_lists_its_own_files_and_no_others(empty_store: Store) -> None:
    from trainer.data.shards import ENDINGS, ShardRecord, shard_file

    names = [shard_file(side, 0, ending) for side in ("shard", "validation") for ending in ENDINGS]
    files = [FileRecord(name=name, size=0, sha256=SHA) for name in names]
    counted = {name for name, field in ShardRecord.model_fields.items() if field.annotation is int} - {"number"}
    record = ShardRecord(
        number=0, fingerprint="f" * 16, validation_digest="0" * 32, files=files, **dict.fromkeys(counted, 0)
    )
    write_record(empty_store, "shards/a", record)
    key = "shards/a/shard-00000.json"
    assert read_record(empty_store, key) == record
    empty_store.write_bytes(key, empty_store.read_bytes(key) + b"\n")
    assert read_record(empty_store, key) is None, "which a set made anew would not have"
    for change in ({"name": "sources.json"}, {"name": "../../x-00000.bin"}, {"size": -1}, {"sha256": "x"}):
        values = record.model_dump()
        values["files"][0].update(change)
        empty_store.write_json(key, seal(values))
        assert read_record(empty_store, key) is None, change
    empty_store.write_json(key, seal({**record.model_dump(), "tokens": -5}))
    assert read_record(empty_store, key) is None


def test_paths_given_for_keys_are_refused(empty_store: Store) -> None:
    for shards in (["shards/../../outside"], ["/etc/passwd"], ["runs/a"], [""]):
        with pytest.raises(ValidationError):
            EvaluateJob(store=empty_store.url, checkpoint="a", shards=shards)
    with pytest.raises(PipelineError, match="cannot be pinned"):
        pin(empty_store, "runs/..")
    for name in ("../outside", "runs/../../outside/final", "models/../champion", "../checkpoint-last"):
        with pytest.raises(ArtifactError, match="no checkpoint"):
            find_model(empty_store, name)


def test_a_file_that_no_manifest_lists_is_not_loaded_as_a_part_of_a_model(empty_store: Store) -> None:
    key = publish(
        empty_store, "runs/a/final", "model", {"model.safetensors": b"w", "config.json": b"{}"}, {"run": "a"}
    ).key
    empty_store.write_bytes(f"{key}/README.md", b"an older card")
    assert Path(find_model(empty_store, key).folder).name == "final"
    empty_store.write_bytes(f"{key}/adapter_config.json", b"{}")
    with pytest.raises(
        ArtifactError, match=r"final/adapter_config.json is not listed in the folder's manifest.json; move it"
    ):
        find_model(empty_store, key)


@pytest.mark.parametrize("kind", ["tokenizer", "shards", "encoded"])
def test_a_manifest_of_another_artifact_does_not_count(empty_store: Store, kind: str) -> None:
    folder = {"tokenizer": "tokenizers"}.get(kind, kind)
    mine, other = (
        publish(empty_store, f"{folder}/a-{fingerprint(n)}", kind, {"x": b"x"}, {"n": n}).key for n in (1, 2)
    )
    empty_store.write_bytes(f"{mine}/{MANIFEST}", empty_store.read_bytes(f"{other}/{MANIFEST}"))
    with pytest.raises(ArtifactError, match=rf"{mine}/manifest.json belongs to another"):
        read_manifest(empty_store, mine, kind)
