"""Manifests: whatever happens to an artifact's files is found and said."""

import math
import os
from pathlib import Path

import pytest

from tests.support import flip_bit
from tests.trainer.report_runs import DETAILS, publish
from trainer.common.errors import ArtifactError, ConfigError, RankLost, StorageError
from trainer.store.artifact_files import explaining_removal, fetch_artifact, fetch_files, find_damage, require_intact
from trainer.store.manifest import (
    MANIFEST,
    Manifest,
    digest_file,
    fingerprint,
    make_manifest,
    publish_folder,
    put_published,
    read_manifest,
    write_manifest,
)
from trainer.store.remote import RemoteObjects
from trainer.store.storage import Store

FILES = {"a.bin": bytes(range(256)) * 10, "b.txt": b"text\n", "empty": b""}


@pytest.fixture
def artifact(empty_store: Store) -> Manifest:
    """A published artifact under the key `things/a`."""
    with empty_store.staging() as folder:
        for name, data in FILES.items():
            (folder / name).write_bytes(data)
        return publish_folder(empty_store, folder, "things/a", "thing", "0123", {"n": 1})


def test_a_published_artifact_is_intact_and_its_manifest_lists_every_file(
    empty_store: Store, artifact: Manifest
) -> None:
    assert read_manifest(empty_store, "things/a", "thing") == artifact
    assert {record.name: record.size for record in artifact.files} == {name: len(data) for name, data in FILES.items()}
    assert artifact.size() == sum(map(len, FILES.values()))
    assert empty_store.names("things/a") == sorted([*FILES, MANIFEST])
    assert find_damage(empty_store, "things/a", artifact) == {}
    require_intact(empty_store, "things/a", artifact)


def test_a_missing_a_truncated_and_a_longer_file_are_each_named(empty_store: Store, artifact: Manifest) -> None:
    folder = fetch_artifact(empty_store, "things/a", artifact.kind)
    (folder / "a.bin").write_bytes(FILES["a.bin"][:-1])
    (folder / "b.txt").unlink()
    (folder / "empty").write_bytes(b"x")
    assert find_damage(empty_store, "things/a", artifact) == {
        "a.bin": "has 2559 bytes, its manifest says 2560",
        "b.txt": "is missing",
        "empty": "has 1 bytes, its manifest says 0",
    }


def test_an_artifact_that_must_be_intact_is_refused_by_the_name_of_the_damaged_file(
    empty_store: Store, artifact: Manifest
) -> None:
    empty_store.fetch("things/a/b.txt").unlink()
    with pytest.raises(ArtifactError, match=r"things/a/b\.txt is missing"):
        require_intact(empty_store, "things/a", artifact)


def test_an_artifact_that_is_removed_while_it_is_opened_is_refused(any_store: Store) -> None:
    any_store.write_bytes("things/a/b.txt", b"b")
    manifest = make_manifest("thing", "name", [digest_file(any_store.fetch("things/a/b.txt"), "b.txt")], {})
    any_store.delete("things/a/b.txt")
    with pytest.raises(ArtifactError, match=r"things/a/b\.txt is missing; if another process is removing its folder"):
        fetch_files(any_store, "things/a", manifest)


def test_a_folder_without_a_manifest_does_not_exist(empty_store: Store, artifact: Manifest) -> None:
    empty_store.delete(f"things/a/{MANIFEST}")
    assert read_manifest(empty_store, "things/a", "thing") is None


@pytest.mark.parametrize("value", [None, -1, 1.5, True, math.nan, math.inf, "7"])
@pytest.mark.parametrize("name", ["text_bytes", "validation_bytes", "validation_token_bytes"])
def test_a_count_of_bytes_that_cannot_be_is_damage(empty_store: Store, name: str, value: object) -> None:
    details = DETAILS["shards"]
    key, totals = f"shards/code-{'0' * 16}", {**details["totals"], name: value}
    publish(empty_store, key, "shards", {"sources.json": b"[]"}, {"totals": totals})
    with pytest.raises(ArtifactError, match=rf"{key}/manifest\.json is damaged .*: totals\.{name}"):
        read_manifest(empty_store, key, "shards")


def test_an_artifact_of_another_kind_or_format_is_refused(empty_store: Store, artifact: Manifest) -> None:
    with pytest.raises(ArtifactError, match=r"holds 'thing'; expected 'shards'"):
        read_manifest(empty_store, "things/a", "shards")
    write_manifest(empty_store, "things/a", artifact.model_copy(update={"format": 1, "headrace": "0.0.9"}))
    told = r"it has format 1, of headrace 0\.0\.9; .* reads only format 2: use a new store, or that version of headrace"
    with pytest.raises(ArtifactError, match=told):
        read_manifest(empty_store, "things/a", "thing")


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b"{}", b'{"format": 1, "unknown": 2}'])
def test_a_damaged_manifest_is_refused_by_its_path(damage: bytes, empty_store: Store, artifact: Manifest) -> None:
    empty_store.write_bytes(f"things/a/{MANIFEST}", damage)
    with pytest.raises(ArtifactError, match=r"things/a/manifest\.json is damaged or of another version of headrace"):
        read_manifest(empty_store, "things/a", "thing")


def test_a_cached_copy_that_has_changed_is_fetched_again_and_not_taken_for_damage_of_the_store(
    remote_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with remote_store.staging() as folder:
        (folder / "a.bin").write_bytes(FILES["a.bin"])
        manifest = publish_folder(remote_store, folder, "things/a", "thing", "0123", {})
    assert find_damage(remote_store, "things/a", manifest) == {}
    sha256 = manifest.digests()["a.bin"]
    flip_bit(remote_store.fetch("things/a/a.bin", sha256), 100)  # the same file as in the cache
    assert remote_store.fetch("things/a/a.bin", sha256).read_bytes() == FILES["a.bin"]
    assert "copy on this machine's disk was changed" in caplog.text


def test_a_cached_copy_that_rots_without_a_trace_is_found_by_a_look_at_the_artifact(
    remote_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    remote_store.write_bytes("a/x", FILES["a.bin"])
    manifest = make_manifest("thing", "name", [digest_file(remote_store.fetch("a/x"), "x")], {})
    copy = remote_store.fetch("a/x", manifest.digests()["x"])
    modified = copy.stat().st_mtime_ns
    flip_bit(copy, 100)
    os.utime(copy, ns=(modified, modified))
    assert find_damage(remote_store, "a", manifest) == {}
    assert "copy on this machine's disk was changed" in caplog.text
    assert remote_store.fetch("a/x", manifest.digests()["x"]).read_bytes() == FILES["a.bin"]


def test_sizes_are_read_off_one_listing_and_what_it_lacks_is_asked_for(
    any_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = []
    for name, data in {"x": b"0123", "y": b"4", "z": b""}.items():
        any_store.write_bytes(f"a/{name}", data)
        records.append(digest_file(any_store.fetch(f"a/{name}"), name))
    manifest = make_manifest("thing", "name", records, {})
    asked: list[str] = []
    size = Store.size
    monkeypatch.setattr(Store, "size", lambda store, key: asked.append(key) or size(store, key))
    assert find_damage(any_store, "a", manifest, depth="sizes") == {}
    assert asked == []
    sizes = Store.sizes
    old = {"x": 4, "y": 3}  # an old listing: it lacks a file, and has another size of one
    monkeypatch.setattr(Store, "sizes", lambda store, key: old)
    assert find_damage(any_store, "a", manifest, depth="sizes") == {}
    assert sorted(asked) == ["a/y", "a/z"]
    monkeypatch.setattr(Store, "sizes", sizes)
    any_store.write_bytes("a/x", b"01")
    any_store.delete("a/y")
    assert find_damage(any_store, "a", manifest, depth="sizes") == {
        "x": "has 2 bytes, its manifest says 4", "y": "is missing",
    }  # fmt: skip


def test_a_file_that_is_damaged_in_the_store_and_in_the_cache_or_is_gone_is_found(remote_store: Store) -> None:
    remote_store.write_bytes("a/x", b"0123")
    manifest = make_manifest("thing", "name", [digest_file(remote_store.fetch("a/x"), "x")], {})
    flip_bit(remote_store.fetch("a/x", manifest.digests()["x"]), 0)
    remote_store.write_bytes("a/x", b"0124")
    assert "does not match its checksum" in find_damage(remote_store, "a", manifest)["x"]
    remote_store.delete("a/x")
    assert find_damage(remote_store, "a", manifest) == {"x": "is missing"}


def test_equal_values_have_equal_fingerprints_and_others_have_others() -> None:
    assert fingerprint({"a": 1, "b": [None, "ü"]}) == fingerprint({"b": [None, "ü"], "a": 1})
    others = [{"a": 1}, {"a": "1"}, {"a": 1.5}, {"a": [1]}, ["a", 1], {"b": 1}, {"a": None}, {"a": True}]
    assert len({fingerprint(value) for value in others}) == len(others)


def test_what_is_published_once_more_with_the_same_files_never_lacks_its_manifest(
    remote_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[bool] = []

    def send(data: bytes) -> None:
        with remote_store.staging() as folder:
            (folder / "a.bin").write_bytes(data)
            publish_folder(remote_store, folder, "things/a", "thing", "0123", {})

    send(b"1")
    put = RemoteObjects.put

    def noted(files: RemoteObjects, path: Path, key: str) -> None:
        there.append(remote_store.exists(f"things/a/{MANIFEST}"))
        put(files, path, key)

    monkeypatch.setattr(RemoteObjects, "put", noted)
    send(b"1")
    assert there == [True, True]
    send(b"2")
    assert there[2:] == [False, False]


def test_a_disk_that_is_full_when_a_manifest_is_staged_is_named_there(empty_store: Store) -> None:
    with empty_store.staging() as folder:
        (folder / MANIFEST).symlink_to("/dev/full")
        with pytest.raises(StorageError, match=f"cannot write .*things/a/{MANIFEST}: No space left on device"):
            put_published(empty_store, folder, "things/a", make_manifest("thing", "0123", [], {}))
    assert not empty_store.exists("things/a")


@pytest.mark.parametrize("error", [RankLost("lost", 75), StorageError("away", True)])
def test_an_error_of_another_kind_is_not_hidden_by_the_removal_of_what_was_read(
    error: Exception, tmp_path: Path
) -> None:
    with pytest.raises(type(error)), explaining_removal(Store(str(tmp_path)), "runs/a/checkpoints/step-000001"):
        raise error


def test_an_artifact_that_was_removed_while_it_was_read_is_named(tmp_path: Path) -> None:
    removed = pytest.raises(ArtifactError, match=r"runs/a was removed while it was read: .* \(a task fails\); run this")
    with removed, explaining_removal(Store(str(tmp_path)), "runs/a"):
        raise ConfigError("a task fails")
