"""The background writer of checkpoints of a sharded model: every rank writes its part, rank 0 commits them with one manifest.

Each rank has such a writer, with a process group of its own, on which they agree beside the training: the place is emptied of
what an interrupted save left there, the parts are put in place, and only then is the manifest written, which lists them.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from trainer.common.stopping import finishing
from trainer.pretrained import parts
from trainer.pretrained.opened import write_part
from trainer.pretrained.parts import part_name
from trainer.store.manifest import MANIFEST, FileRecord, digest_file, make_manifest, read_manifest, write_manifest
from trainer.store.places import CHECKPOINT_KIND
from trainer.training.checkpoint import TrainState
from trainer.training.runtime import Runtime
from trainer.training.saver import Commit, Saver, told
from trainer.training.snapshot import Snapshot


class PartSaver(Saver):
    """As `Saver`, on every rank of a sharded model. What comes of a save, a commit or an error, comes on all ranks."""

    def __init__(self, *arguments: Any, runtime: Runtime, settings: Mapping[str, bytes], **options: Any) -> None:
        """`runtime` has a process group that nothing else uses; `settings` are the small files of the model, by name."""
        super().__init__(*arguments, **options)
        self._runtime, self._settings = runtime, settings

    def complete(self, state: TrainState) -> None:
        """Rank 0 alone points to what is committed; every rank must know which step is to be replaced."""
        if self._runtime.rank == 0:
            super().complete(state)
        else:
            self._replaced = state.step if state.unmeasured else None

    def _write_patiently(self, snapshot: Snapshot) -> Commit:
        started = time.monotonic()
        with finishing():
            self._on_first(lambda: self._empty(snapshot))
            records = [record for each in self._runtime.on_each(lambda: self._put_part(snapshot)) for record in each]
            self._on_first(lambda: self._seal(snapshot, records))
            self._on_first(self._mark)
        return Commit(snapshot.state.step, time.monotonic() - started)

    def _on_first(self, work: Callable[[], object]) -> None:
        """Do something on rank 0; where the store refuses it, every rank raises the same `StorageError`."""
        first = self._runtime.rank == 0
        self._runtime.on_each(lambda: work() if first else None)

    def _empty(self, snapshot: Snapshot) -> None:
        """Remove what an interrupted save has left in the place, or the step that is saved anew.

        Parts of as many ranks stay: the same step has the same ones, so the older commit is whole until the new one.
        """
        self._check()
        place, step = self._place(snapshot), snapshot.state.step
        ranks = self._runtime.ranks
        mine = {part_name(stem, rank, ranks) for stem in (parts.MODEL, parts.OPTIMIZER) for rank in range(ranks)}
        committed = read_manifest(self._store, place, CHECKPOINT_KIND) if step == self._replaced else None
        if committed is None or {name for name in committed.digests() if name.endswith(".safetensors")} - mine:
            self._make_room(snapshot.state)
            self._store.delete(place, first=MANIFEST)

    def _put_part(self, snapshot: Snapshot) -> list[FileRecord]:
        """Write this rank's part, put it in place, and tell its size and checksum."""
        place, rank, ranks = self._place(snapshot), self._runtime.rank, self._runtime.ranks
        records = []
        with told(self._store.path(place)), self._store.staging(snapshot.size(), place) as folder:
            for stem, tensors in ((parts.MODEL, snapshot.weights), (parts.OPTIMIZER, snapshot.optimizer)):
                path = folder / part_name(stem, rank, ranks)
                write_part(path, tensors, {name: rows for name, rows in snapshot.stretches.items() if name in tensors})
                records.append(digest_file(path))
                self._store.put(path, f"{place}/{path.name}")
        return records

    def _seal(self, snapshot: Snapshot, records: list[FileRecord]) -> None:
        """Put what is no tensor in place, and then the manifest, which is the commit."""
        place, state = self._place(snapshot), snapshot.state
        found = list(records)
        with told(self._store.path(place)), self._store.staging(key=place) as folder:
            for name, content in self._settings.items():
                (folder / name).write_bytes(content)
            self._write_settings(snapshot, folder)
            self._check()
            self._make_room(state)
            for path in sorted(folder.iterdir()):
                found.append(digest_file(path))
                self._store.put(path, f"{place}/{path.name}")
            manifest = make_manifest(CHECKPOINT_KIND, self._fingerprint, found, self._details(state))
            write_manifest(self._store, place, manifest)
        self._unmarked.append((state, snapshot.epoch))
