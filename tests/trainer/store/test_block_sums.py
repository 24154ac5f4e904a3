"""Blocks of shards are compared when they are first read, so that a start reads no shard and no flipped bit is trained
on.
"""

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from tests.processes import start_warm
from tests.s3 import S3Server
from tests.support import flip_bit, flipped, small_job, small_values, write_config
from tests.trainer.data.test_changed_raw import rot
from tests.trainer.made import prepare
from tests.trainer.shard_files import whole
from trainer.common.errors import ArtifactError, StorageError
from trainer.common.progress import silent
from trainer.config.jobs import PipelineJob
from trainer.data.dataset import open_dataset, read_batch
from trainer.data.shard_files import ShardFiles, is_marked
from trainer.data.shards import open_shards
from trainer.data.step_plan import make_plan
from trainer.data.tokenization import shard_manifests
from trainer.records.plans import PreparedData
from trainer.store import checked_files, manifest, private_folders
from trainer.store.checked_files import BLOCK_BYTES, write_sums
from trainer.store.manifest import digest_file
from trainer.store.private_folders import OpenFiles
from trainer.store.storage import Store

TOKENS = 4 * BLOCK_BYTES
"""Of a shard of two bytes a token: eight blocks."""


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the blocks that are compared, in order."""
    found: list[int] = []
    sum_of = checked_files.sum_of

    def spy(block: bytes | memoryview) -> bytes:
        found.append(len(block))
        return sum_of(block)

    monkeypatch.setattr(checked_files, "sum_of", spy)
    return found


def shards_in(folder: Path, count: int, tokens: int = TOKENS) -> tuple[Path, ShardFiles]:
    """Some shards of random tokens, and their folder."""
    place = folder / "shards" / "a"
    place.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for number in range(count):
        path = place / f"shard-{number:05d}.bin"
        path.write_bytes(draw.integers(0, 2**16, tokens, dtype=np.uint16).tobytes())
        write_sums(path, path.with_suffix(".sums"))
    files, sums = ([digest_file(path) for path in sorted(place.glob(f"*.{ending}"))] for ending in ("bin", "sums"))
    return place, ShardFiles(Store(str(folder)), "shards/a", files, sums, np.dtype("<u2"))


def keep_open(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    few = OpenFiles(limit)
    monkeypatch.setattr(checked_files, "open_files", lambda: few)


def tokens_of(folder: Path, number: int) -> np.ndarray:
    return np.fromfile(folder / f"shard-{number:05d}.bin", dtype="<u2")


def test_stretches_of_any_length_are_those_of_the_file(tmp_path: Path) -> None:
    folder, shards = shards_in(tmp_path, 1, tokens=TOKENS - 7)
    expected, draw = tokens_of(folder, 0), np.random.default_rng(1)
    for _ in range(300):
        start, length = int(draw.integers(0, TOKENS)), int(draw.integers(1, 3 * BLOCK_BYTES))
        assert shards.read(0, start, start + length).tolist() == expected[start : start + length].tolist()
    assert np.array_equal(*whole(shards), expected)


def test_a_block_is_compared_when_it_is_first_read_and_not_again(tmp_path: Path, compared: list[int]) -> None:
    _, shards = shards_in(tmp_path, 2)
    compared.clear()
    for _ in range(3):
        shards.read(1, 100, 200)
    assert compared == [BLOCK_BYTES]
    shards.read(1, BLOCK_BYTES // 2 - 1, BLOCK_BYTES // 2 + 1)
    assert compared == [BLOCK_BYTES] * 2, "of the two blocks one was compared before"


@pytest.mark.parametrize("place", [0, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 17, 2 * TOKENS - 1])
def test_a_flipped_bit_is_refused_where_it_is_read(place: int, tmp_path: Path) -> None:
    folder, shards = shards_in(tmp_path, 1)
    rot(folder / "shard-00000.bin", place)
    other = (place // BLOCK_BYTES + 2) % 8 * BLOCK_BYTES // 2
    assert len(shards.read(0, other, other + 10)) == 10
    with pytest.raises(ArtifactError, match=r"shard-00000\.bin does not match its checksum .*; prepare the data again"):
        shards.read(0, place // 2, place // 2 + 1)


def test_a_shard_that_is_replaced_while_others_are_read_is_compared_again(
    tmp_path: Path, compared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_open(2, monkeypatch)
    folder, shards = shards_in(tmp_path, 3)
    for number in (0, 1, 2):
        shards.read(number, 0, 10)
    path = folder / "shard-00000.bin"
    shutil.copy2(path, folder / "copy")
    os.replace(folder / "copy", path)
    compared.clear()
    shards.read(0, 0, 10)
    assert compared == [BLOCK_BYTES]
    rot(path, 5)
    for number in (1, 2):
        shards.read(number, 0, 10)
    with pytest.raises(ArtifactError, match="does not match its checksum"):
        shards.read(0, 0, 10)


def test_a_shard_that_is_cut_short_after_it_was_compared_gives_no_fewer_tokens(tmp_path: Path) -> None:
    folder, shards = shards_in(tmp_path, 1)
    shards.read(0, 0, TOKENS)
    os.truncate(folder / "shard-00000.bin", TOKENS)
    with pytest.raises(ArtifactError, match=r"shard-00000\.bin does not match its checksum"):
        shards.read(0, TOKENS // 2 - 5, TOKENS // 2 + 5)


@pytest.mark.parametrize("damage", ["cut short", "missing", "sums rotten", "sums missing"])
def test_what_is_cut_short_or_missing_is_refused_by_name(damage: str, tmp_path: Path) -> None:
    folder, shards = shards_in(tmp_path, 1)
    path, sums = folder / "shard-00000.bin", folder / "shard-00000.sums"
    if damage == "cut short":
        os.truncate(path, TOKENS)
    elif damage == "missing":
        path.unlink()
    elif damage == "sums rotten":
        rot(sums, 3)
    else:
        sums.unlink()
    name = r"shard-00000\.sums" if "sums" in damage else r"shard-00000\.bin"
    with pytest.raises(
        ArtifactError, match=rf"{name} (is missing|does not match its checksum).*; prepare the data again"
    ):
        shards.read(0, TOKENS - 10, TOKENS)
    assert is_marked(Store(str(tmp_path)), "shards/a")


def test_a_disk_that_does_not_read_is_an_error_of_the_store(tmp_path: Path) -> None:
    folder, shards = shards_in(tmp_path, 1)
    (folder / "shard-00000.bin").unlink()
    (folder / "shard-00000.bin").mkdir()
    with pytest.raises(StorageError, match=r"cannot read .*shard-00000\.bin: Is a directory"):
        shards.read(0, 0, 10)


def test_no_more_files_are_open_than_the_limit_and_released_ones_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_open(3, monkeypatch)
    folder, shards = shards_in(tmp_path, 20, tokens=64)
    expected = [tokens_of(folder, number).tolist() for number in range(20)]

    def opened() -> int:
        links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        return sum(os.path.exists(link) and os.readlink(link).startswith(str(folder)) for link in links)

    for number in np.random.default_rng(0).integers(0, 20, 200).tolist():
        assert shards.read(number, 0, 64).tolist() == expected[number]
        assert opened() <= 3
    shards.use(())
    assert opened() == 0


def test_a_limit_of_open_files_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_folders.resource, "getrlimit", lambda which: (256, 4096))
    assert private_folders.open_files.__wrapped__()._limit == 64


def test_a_start_reads_no_shard_that_was_prepared(
    stocked: Path, raw: Path, monkeypatch: pytest.MonkeyPatch, compared: list[int]
) -> None:
    hashed: list[str] = []
    digest = manifest.digest_stream

    def spy(file: Any, *size: int) -> str:
        hashed.append(Path(file.name).name)
        return digest(file, *size)

    for module in (manifest, checked_files):
        monkeypatch.setattr(module, "digest_stream", spy)
    job, store = small_job(raw, stocked), Store(str(stocked))
    data = prepare(job.preparation(), silent())
    assert all(ref.reused for ref in data.shards)
    plan = make_plan(job.training, shard_manifests(store, data), 1)
    dataset = open_dataset(store, data, job.training, plan, None)
    read_batch(0, plan, dataset.order, dataset.windows, 0)
    assert [name for name in hashed if name.endswith((".bin", ".idx", ".sums"))] == []
    assert 0 < len(compared) <= 4, "the blocks of four shards, each smaller than a block"


def test_damage_that_training_finds_is_mended_by_the_next_preparation(
    stocked: Path, raw: Path, data: PreparedData, caplog: pytest.LogCaptureFixture
) -> None:
    store, key, job = Store(str(stocked)), data.shards[0].key, small_job(raw, stocked).preparation()
    path = stocked / key / "shard-00001.bin"
    before = path.read_bytes()
    rot(path, len(before) // 2)
    assert all(ref.reused for ref in prepare(job, silent()).shards), "nobody has read it yet"
    for _ in range(2):
        with pytest.raises(ArtifactError, match=r"shard-00001\.bin does not match its checksum"):
            whole(open_shards(store, key).train)
    with caplog.at_level(logging.WARNING):
        again = prepare(job, silent())
    assert f"{path} does not match its checksum" in caplog.text and "rebuilding it" in caplog.text
    assert path.read_bytes() == before
    assert [ref.reused for ref in again.shards] == [False, True]
    assert not is_marked(store, key)
    whole(open_shards(store, key).train)


def job_on(s3: S3Server, raw: Path) -> tuple[PipelineJob, Store, str]:
    """A prepared job in a bucket, and the key of its first shards."""
    job = small_job(raw, s3.new_store())
    return job, Store(job.store), prepare(job.preparation(), silent()).shards[0].key


@pytest.mark.deep
def test_a_rotten_copy_of_a_remote_shard_is_fetched_anew(
    s3: S3Server, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    _, store, key = job_on(s3, raw)
    expected = whole(open_shards(store, key).train)
    shards = open_shards(store, key).train
    copy = store.fetch(f"{key}/shard-00000.bin", shards._files[0].sha256)
    state = copy.stat()
    flip_bit(copy, 7)
    os.utime(copy, ns=(state.st_atime_ns, state.st_mtime_ns))  # rot below the file system, of which nothing else tells
    with caplog.at_level(logging.WARNING):
        assert all(map(np.array_equal, whole(shards), expected))
    assert "the copy on this machine's disk was changed; fetching it again" in caplog.text
    assert not is_marked(store, key)


@pytest.mark.deep
def test_an_object_of_a_bucket_that_is_not_the_one_that_was_published_is_mended_by_the_next_preparation(
    s3: S3Server, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    job, store, key = job_on(s3, raw)
    url, expected = f"{store.url}/{key}/shard-00000.bin", whole(open_shards(store, key).train)
    with fsspec.open(url, "rb") as file:
        data = file.read()
    with fsspec.open(url, "wb") as file:
        file.write(flipped(data, 0))
    with pytest.raises(ArtifactError, match=r"shard-00000\.bin does not match its checksum .*; prepare the data again"):
        whole(open_shards(store, key).train)
    prepare(job.preparation(), silent())
    assert all(map(np.array_equal, whole(open_shards(store, key).train), expected))


@pytest.mark.deep
@pytest.mark.slow
def test_a_command_with_verify_reads_all_shards_and_mends_what_nothing_reads(
    stocked: Path, raw: Path, tmp_path: Path
) -> None:
    path = next(stocked.glob("shards/code-*/shard-00000.idx"))
    before = path.read_bytes()
    rot(path, 9)
    config = write_config(tmp_path / "job.yaml", small_values(raw, stocked))
    plain = start_warm(tmp_path / "plain", "trainer.__main__", config).wait(120)
    assert plain.status == 0 and path.read_bytes() != before
    verifying = start_warm(tmp_path / "verifying", "trainer.__main__", config, "--verify").wait(120)
    assert verifying.status == 0, verifying
    assert f"{path} does not match its checksum" in verifying.stderr
    assert path.read_bytes() == before
