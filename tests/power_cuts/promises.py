"""The effects that a store's call guarantees when it returns; every image of a later cut must have them."""

from tests.power_cuts.images import GROWING, WHOLE, Content, Image
from tests.power_cuts.recording import BEGIN, FOLDER, Event
from trainer.store.private_folders import STAGING

ONE_FILE = ("put", "copy", "create", "swap")
"""Calls that replace a file: until they return, either the old or the new file is there, complete."""


class Promises:
    """The files that must exist, and those that must not, after the events so far."""

    def __init__(self) -> None:
        self._files: dict[str, str | None] = {}  # by path, the digest; None if both the old and the new one are allowed
        self._gone: set[str] = set()

    def change(self, event: Event) -> None:
        """Apply a call that begins or has returned."""
        if event.what == BEGIN:
            self._keep(event, "")
        if event.begins is not None:
            name, key, source = event.begins
            if name in ONE_FILE and key in self._files:
                self._files[key] = None
            elif name not in ONE_FILE:
                self._forget(key)
            self._forget_gone(key)
            if source:
                self._forget(source)
        if event.done is not None:
            name, key, source = event.done
            if name == "delete":
                self._gone.add(key)
            else:
                self._keep(event, key)
            if source:
                self._gone.add(source)

    def broken(self, image: Image) -> list[str]:
        """Violated guarantees in an image."""
        found = [f"{key} reappeared" for key in self._gone if key in image and not GROWING.search(f"/{key}/")]
        for path, digest in self._files.items():
            there = image.get(path)
            if not isinstance(there, Content):
                found.append(f"{path} is missing")
            elif there.part != WHOLE or (digest is not None and there.digest != digest):
                found.append(f"{path} has changed")
        return found

    def _keep(self, event: Event, key: str) -> None:
        for path, (_, digest) in event.tree.items():
            if _is_at(path, key) and digest != FOLDER and not path.startswith(STAGING) and not GROWING.search(path):
                self._files[path] = digest

    def _forget(self, key: str) -> None:
        self._files = {path: digest for path, digest in self._files.items() if not _is_at(path, key)}

    def _forget_gone(self, key: str) -> None:
        self._gone = {each for each in self._gone if not _is_at(each, key) and not _is_at(key, each)}


def _is_at(path: str, key: str) -> bool:
    return not key or path == key or path.startswith(f"{key}/")
