"""Temporary folders whose disk is full, and machines without a folder for temporary files."""

import tempfile
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from trainer.common.errors import StorageError
from trainer.common.temporary import temporary_folder


def test_a_full_disk_of_temporary_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told = f"temporary files to {tmp_path}: No space left on device.*TMPDIR"
    with pytest.raises(StorageError, match=told) as full, temporary_folder() as folder:
        Path(folder, "tokenizer.json").symlink_to("/dev/full")
        Tokenizer(models.BPE()).save(f"{folder}/tokenizer.json")  # its error names no file
    assert full.value.transient
    assert not list(tmp_path.iterdir())


def test_other_errors_pass_through(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), temporary_folder() as folder:
        Path(folder).write_text("")


def test_a_machine_without_a_folder_for_temporary_files_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(StorageError, match="set TMPDIR to a writable folder") as missing, temporary_folder():
        pass
    assert not missing.value.transient
