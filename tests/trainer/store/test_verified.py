"""Files compared with their digests, once as long as they do not change."""

import hashlib
import os
import time
from pathlib import Path

import fsspec
import pytest

from tests.s3 import S3Server
from tests.support import flip_bit
from trainer.common.errors import ConfigError, WrongContent
from trainer.store import checked_files
from trainer.store.checked_files import UNUSED_SECONDS, forget_unused, machine_cache, require_content

CONTENT = b"some text\n" * 100
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A memory of the test's own."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "verified"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are read whole, in order."""
    found: list[str] = []
    digest = checked_files.digest_bytes

    def spy(path: str | Path) -> str:
        found.append(Path(path).name)
        return digest(path)

    monkeypatch.setattr(checked_files, "digest_bytes", spy)
    return found


@pytest.fixture
def settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose last change is old enough to be told from the next one."""
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    monkeypatch.setattr(checked_files, "RACY_SECONDS", -1.0)
    return path


def flip(path: Path) -> None:
    """Flip a bit, later by the file system's clock than what was written before."""
    before = path.stat()
    flip_bit(path)
    while path.stat().st_mtime_ns == before.st_mtime_ns:
        os.utime(path)


def records(memory: Path) -> list[Path]:
    return [path for path in memory.iterdir() if path.suffix != ".lock"]


def test_what_has_not_changed_is_read_once(settled: Path, reads: list[str]) -> None:
    for _ in range(3):
        require_content(settled, SHA256)
    assert reads == ["file"]
    require_content(settled, SHA256, recheck=True)
    assert reads == ["file", "file"]


def test_a_flipped_bit_is_found_though_the_files_time_was_set_back(settled: Path) -> None:
    require_content(settled, SHA256)
    before = settled.stat()
    flip(settled)
    os.utime(settled, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (settled.stat().st_size, settled.stat().st_mtime_ns, settled.stat().st_ino) == (
        before.st_size, before.st_mtime_ns, before.st_ino,
    )  # fmt: skip
    for _ in range(2):
        with pytest.raises(WrongContent, match="does not match its checksum"):
            require_content(settled, SHA256)


def test_a_bit_that_rotted_without_a_trace_stays_found_once_it_was_looked_at(settled: Path) -> None:
    require_content(settled, SHA256, linked=True)
    before = settled.stat()
    flip(settled)
    os.utime(settled, ns=(before.st_atime_ns, before.st_mtime_ns))
    require_content(settled, SHA256, linked=True)  # it looks unchanged
    for recheck in (True, False):
        with pytest.raises(WrongContent, match="does not match its checksum"):
            require_content(settled, SHA256, recheck, linked=True)


def test_a_file_that_was_just_written_is_not_remembered(tmp_path: Path, reads: list[str], memory: Path) -> None:
    path = tmp_path / "new"
    path.write_bytes(CONTENT)
    require_content(path, SHA256)
    assert records(memory) == []
    require_content(path, SHA256)
    assert reads == ["new", "new"]


def test_what_was_verified_with_one_digest_is_not_taken_for_another(settled: Path) -> None:
    require_content(settled, SHA256)
    with pytest.raises(WrongContent):
        require_content(settled, "0" * 64)


def test_another_file_in_the_same_place_is_read(settled: Path, reads: list[str]) -> None:
    require_content(settled, SHA256)
    other = settled.with_name("other")
    other.write_bytes(CONTENT)
    os.utime(other, ns=(settled.stat().st_atime_ns, settled.stat().st_mtime_ns))
    os.replace(other, settled)
    require_content(settled, SHA256)
    assert len(reads) == 2


@pytest.mark.parametrize("damage", [b"", b"\xff", b"0" * 64])
def test_a_damaged_memory_costs_another_look_only(damage: bytes, settled: Path, reads: list[str], memory: Path) -> None:
    require_content(settled, SHA256)
    (record,) = records(memory)
    record.write_bytes(damage)
    require_content(settled, SHA256)
    require_content(settled, SHA256)
    assert len(reads) == 2
    flip(settled)
    with pytest.raises(WrongContent):
        require_content(settled, SHA256)


def test_what_cannot_be_remembered_is_verified_each_time(
    settled: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(settled))  # a file, where no folder can be made
    require_content(settled, SHA256)
    require_content(settled, SHA256)
    assert len(reads) == 2


def test_an_object_in_a_bucket_is_read_once_as_long_as_its_entity_tag_is_the_same(
    s3: S3Server, reads: list[str]
) -> None:
    url = f"{s3.new_store()}/a.parquet"
    with fsspec.open(url, "wb") as file:
        file.write(CONTENT)
    require_content(url, SHA256)
    require_content(url, SHA256)
    assert reads == ["a.parquet"]
    with fsspec.open(url, "wb") as file:
        file.write(CONTENT.replace(b"some", b"same"))
    with pytest.raises(WrongContent):
        require_content(url, SHA256)


def test_without_a_home_a_folder_that_another_user_prepared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expanduser(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HEADRACE_CACHE")
    monkeypatch.setattr(Path, "expanduser", expanduser)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own = machine_cache()
    assert own.parent == tmp_path and own.stat().st_mode & 0o777 == 0o700 and machine_cache() == own
    own.chmod(0o777)
    with pytest.raises(ConfigError, match=f"{own}, the cache of a user .* set HEADRACE_CACHE to such a folder"):
        machine_cache()
    own.rmdir()
    for target in (tmp_path, tmp_path / "missing"):
        own.symlink_to(target)
        with pytest.raises(ConfigError, match="is not a folder that only this user can change"):
            machine_cache()
        own.unlink()


def test_what_nobody_has_used_for_long_is_forgotten(settled: Path, memory: Path) -> None:
    require_content(settled, SHA256)
    forget_unused()
    (record,) = records(memory)
    long_ago = time.time() - UNUSED_SECONDS - 60
    os.utime(record, (0, long_ago))
    require_content(settled, SHA256)
    forget_unused()
    assert records(memory) == [record], "it was used again"
    os.utime(record, (0, long_ago))
    forget_unused()
    assert records(memory) == []
