"""Temporary folders whose disk is full, and machines without a folder for temporary files."""

import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from trainer.common.errors import StorageError
from trainer.common.temporary import temporary_folder


def test_a_full_disk_of_temporary_files_is_named(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    told = f"temporary files to {small_disk}: No space left on device.*TMPDIR"
    with pytest.raises(StorageError, match=told) as full, temporary_folder() as folder:
        with suppress(OSError):
            Path(folder, "others").write_bytes(bytes(2**21))
        Tokenizer(models.BPE()).save(f"{folder}/tokenizer.json")  # its error names no file
    assert full.value.transient
    assert not list(small_disk.iterdir())


def test_another_full_disk_is_not_taken_for_that_of_temporary_files(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(Exception, match="No space left on device") as full, temporary_folder():
        Tokenizer(models.BPE()).save(str(tmp_path / "full"))
    assert not isinstance(full.value, StorageError)


def test_other_errors_pass_through() -> None:
    with pytest.raises(IsADirectoryError), temporary_folder() as folder:
        Path(folder).write_text("")


def test_a_machine_without_a_folder_for_temporary_files_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(StorageError, match="set TMPDIR to a writable folder") as missing, temporary_folder():
        pass
    assert not missing.value.transient
