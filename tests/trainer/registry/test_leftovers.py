"""What killed processes left in a store is found and removed; what is committed, young or held stays."""

import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import fsspec
import pytest

from tests.faults import faulty
from tests.headrace import headrace
from tests.s3 import S3Server, fresh_clients
from tests.support import small_job
from tests.trainer.made import prepare
from trainer.common.errors import StorageError
from trainer.common.progress import silent
from trainer.data import tokenization
from trainer.records.lease import Lease
from trainer.registry import print_store
from trainer.registry.leftovers import find_leftovers, remove_leftover
from trainer.store.manifest import MANIFEST
from trainer.store.storage import Store

NOW = timedelta(seconds=-5)
"""Everything is older than that."""

UNCOMMITTED = [
    "decisions/text-1", "encoded/pairs-1", "runs/a/checkpoints/step-00000003", "runs/a/final", "shards/code-1",
    "tokenizers/t-1",
]  # fmt: skip
KEPT = [
    "shards/code-0/manifest.json", "shards/code-0/shard-00000.bin", "runs/a/checkpoints/step-00000002/manifest.json",
    "runs/a/checkpoints/step-00000002/model.safetensors",
    "runs/a/checkpoints/damaged-step-00000001-0/model.safetensors",
    "runs/a/metrics.jsonl", "runs/a/config.json", ".staging/host_kernel_0123456789ab.lock",
]  # fmt: skip


@pytest.fixture
def littered(any_store: Store) -> Store:
    for folder in UNCOMMITTED:
        any_store.write_bytes(f"{folder}/half.bin", b"half")
        any_store.write_bytes(f"{folder}/deeper/more.bin", b"more")
    for key in KEPT:
        any_store.write_bytes(key, b"{}")
    return any_store


def test_what_has_no_manifest_is_found_with_its_size_and_removed(littered: Store) -> None:
    found = find_leftovers(littered, NOW)
    assert [(left.key, left.size) for left in found] == [(key, 8) for key in UNCOMMITTED]
    assert all(remove_leftover(littered, left) for left in found)
    assert find_leftovers(littered, NOW) == []
    assert {entry.key for entry in littered.walk()} == set(KEPT)


def test_what_is_young_stays(littered: Store) -> None:
    assert find_leftovers(littered) == []


def test_a_run_that_is_held_stays_whole(littered: Store) -> None:
    with Lease(littered, "runs/a"):
        assert not any(left.key.startswith("runs/") for left in find_leftovers(littered, NOW))


def test_what_was_committed_in_the_meantime_stays(littered: Store) -> None:
    left = next(left for left in find_leftovers(littered, NOW) if left.key == "shards/code-1")
    littered.write_bytes(f"shards/code-1/{MANIFEST}", b"{}")
    assert not remove_leftover(littered, left)
    assert littered.read_bytes("shards/code-1/half.bin") == b"half"


def test_a_set_of_old_shards_that_is_being_made_again_is_young(raw: Path, empty_store: Store) -> None:
    job = small_job(raw, empty_store.url).preparation()
    prepare(job, silent())
    (name,) = [name for name in empty_store.names("shards") if name.startswith("code")]
    assert "started.json" not in empty_store.names(f"shards/{name}")
    empty_store.delete(f"shards/{name}/{MANIFEST}")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tokenization, "finished_shards", interrupted)
        prepare(job, silent())
    assert "started.json" in empty_store.names(f"shards/{name}")


def test_half_an_upload_is_found_and_given_up(s3: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    url = s3.new_store()
    fs = fsspec.filesystem("s3")
    bucket, prefix, _ = fs.split_path(url)
    for key in (f"{prefix}/shards/code-1/shard-00000.bin", f"{prefix}-other/x"):
        upload = fs.call_s3("create_multipart_upload", Bucket=bucket, Key=key)["UploadId"]
        fs.call_s3("upload_part", Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"x" * 5_000_000)
    assert headrace("leftovers", url, "--older-than", "0") == 0
    assert "partial upload       4.8 MiB" in capsys.readouterr().out
    assert len(Store(url).unfinished_uploads()) == 1
    assert headrace("leftovers", url, "--older-than", "0", "--remove") == 0
    assert "1 leftover, 4.8 MiB: removed" in capsys.readouterr().out
    assert Store(url).unfinished_uploads() == []
    assert len(Store(f"{url}-other").unfinished_uploads()) == 1


def test_leftovers_are_found_where_uploads_may_not_be_listed(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with faulty(s3.address, share=0, latency=0) as (address, faults), fresh_clients():
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        store = Store(s3.new_store())
        store.write_bytes("shards/code-1/half.bin", b"half")
        faults.always, faults.only = "denied", b"?uploads"
        assert [left.key for left in find_leftovers(store, NOW)] == ["shards/code-1"]
    assert "Access Denied" in caplog.text and "s3:ListBucketMultipartUploads" in caplog.text


def test_the_command_removes_only_when_it_is_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = tmp_path / "shards" / "code-1" / "shard-00000.bin"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half")
    assert headrace("leftovers", str(tmp_path)) == 0
    assert capsys.readouterr().out == "0 leftovers, 0 bytes\n"
    os.utime(half, (0, time.time() - 2 * 86400))
    assert headrace("leftovers", str(tmp_path)) == 0
    assert half.exists() and "1 leftover, 4 bytes; --remove removes them" in capsys.readouterr().out
    assert headrace("leftovers", str(tmp_path), "--remove") == 0
    assert not half.parent.exists() and "uncommitted" in capsys.readouterr().out
    assert headrace("leftovers", "s3://no-such-bucket-anywhere") == 2


@pytest.mark.parametrize("hours", ["nan", "inf", "-inf", "1e9", "-5"])
def test_an_age_that_is_none_is_refused(hours: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert headrace("leftovers", str(tmp_path), f"--older-than={hours}") == 2
    assert "--older-than: expected a number of hours from 0 to 876000, found" in capsys.readouterr().err


def test_what_was_removed_before_an_error_is_told(
    littered: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    delete = Store.delete

    def fail_at_the_last(store: Store, key: str) -> None:
        if key == UNCOMMITTED[-1]:
            raise StorageError("the store is away", transient=True)
        delete(store, key)

    monkeypatch.setattr("trainer.registry.print_store.Store", lambda url: littered)
    monkeypatch.setattr(Store, "delete", fail_at_the_last)
    assert headrace("leftovers", littered.url, "--older-than", "0", "--remove", "--json") == 75
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert told["removed"] and [each["key"] for each in told["found"]] == UNCOMMITTED[:-1]
    assert "StorageError: the store is away" in printed.err


def test_gc_tells_the_first_error_where_the_store_is_away_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def go_away(*_: object) -> None:
        monkeypatch.setattr(print_store, "pinned", go_away)
        raise StorageError("the store is away", transient=True)

    monkeypatch.setattr(print_store, "collect", lambda job: (go_away() for _ in range(1)))
    assert headrace("gc", str(tmp_path), "--json") == 75
    printed = capsys.readouterr()
    assert json.loads(printed.out)["found"] == [] and "the store is away" in printed.err


@pytest.mark.deep
@pytest.mark.parametrize("words", [["leftovers", "{}"], ["pin", "{}", "runs/a"], ["new", "text", "{}/text.yaml"]])
def test_a_reader_of_a_command_that_stops_early_is_no_error(words: list[str], tmp_path: Path) -> None:
    Store(str(tmp_path)).write_bytes("runs/a/config.json", b"{}")
    command = [sys.executable, "-m", "flows.command", *(word.format(tmp_path) for word in words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        said = process.stderr.read().decode()
    assert process.returncode == 0, said
