"""Bugs that are planted in the store; a trial must find each of them."""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from trainer.store import local
from trainer.store.local import LocalFiles
from trainer.training.metrics_writer import RunLog


def folders_not_synced() -> None:
    local.sync_folder = lambda path: None


def files_not_synced() -> None:
    local.sync_file = lambda path: None


def new_folders_not_synced() -> None:
    def make_folder(self: LocalFiles, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    LocalFiles.make_folder = make_folder  # type: ignore[method-assign]


def manifest_put_first() -> None:
    """An artifact's folder is filled in place."""

    def put_folder(self: LocalFiles, folder: Path, key: str, last: str, same: bool = False) -> None:
        self.delete(key)
        for name in sorted(os.listdir(folder), key=lambda name: name != last):
            self.put(folder / name, f"{key}/{name}")

    LocalFiles.put_folder = put_folder  # type: ignore[method-assign]


def written_in_place() -> None:
    """A small file is overwritten in place instead of replaced by a rename."""

    def put(self: LocalFiles, path: Path, key: str) -> None:
        target = self.at(key)
        self.make_folder(target.parent)
        shutil.copyfile(path, target)
        local.sync_file(target)
        local.sync_folder(target.parent)

    LocalFiles.put = put  # type: ignore[method-assign]


def removed_without_order() -> None:
    """A folder's manifest is deleted first, but without a sync."""

    def delete(self: LocalFiles, key: str, first: str | None = None) -> None:
        path = self.at(key)
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    LocalFiles.delete = delete  # type: ignore[method-assign]


def removed_for_now() -> None:
    """Deleted files reappear, because the folder is not synced."""

    def delete(self: LocalFiles, key: str, first: str | None = None) -> None:
        path = self.at(key)
        if path.is_dir():
            if first is not None:
                (path / first).unlink(missing_ok=True)
                local.sync_folder(path)
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    LocalFiles.delete = delete  # type: ignore[method-assign]


def removed_before_it_is_replaced() -> None:
    def put(self: LocalFiles, path: Path, key: str) -> None:
        target = self._place(key)
        local.sync_file(path)
        target.unlink(missing_ok=True)
        local.sync_folder(target.parent)
        os.replace(path, target)
        local.sync_folder(target.parent)

    LocalFiles.put = put  # type: ignore[method-assign]


def records_not_synced() -> None:
    RunLog.sync = lambda self: None  # type: ignore[method-assign]


BUGS: Mapping[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        folders_not_synced, files_not_synced, new_folders_not_synced, manifest_put_first, written_in_place,
        removed_without_order, removed_for_now, removed_before_it_is_replaced, records_not_synced,
    )
}  # fmt: skip
