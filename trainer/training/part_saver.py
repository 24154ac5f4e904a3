"""Checkpoints of a sharded model: every rank writes its part, rank 0 commits them with one manifest.

Each rank has a `PartSaver` with its own process group, through which the ranks coordinate in parallel with training:
first all parts are put in place, then the manifest that lists them is written. The names of parts and state contain
digests of their content. So if a step is saved again, or parts of an interrupted save remain, no file is overwritten:
the older commit stays intact until its manifest is replaced, and unlisted files are deleted afterwards.

At the end of a run, the parts become one folder that `from_pretrained` loads, one file at a time.
"""

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import GENERATION_CONFIG_NAME

from trainer.common.stopping import defer_stop
from trainer.models import tensor_files
from trainer.models.tensor_files import part_name
from trainer.models.tensor_rows import Tensors, write_part
from trainer.models.weights import INDEX, WEIGHTS, weight_files
from trainer.records.shapes import folder_name
from trainer.store.artifact_files import named_by_content
from trainer.store.manifest import MANIFEST, FileRecord, digest_file, make_manifest, read_manifest, write_manifest
from trainer.store.names import CHECKPOINT_KIND
from trainer.store.storage import Store
from trainer.training.checkpoint import STATE, TrainState
from trainer.training.runtime import Runtime
from trainer.training.saver import Commit, Saver, SaverOptions, Snapshot, as_storage_errors

log = logging.getLogger(__name__)


class PartSaver(Saver):
    """A `Saver` for every rank of a sharded model. The result of a save, a commit or an error, is the same on all."""

    def __init__(
        self, store: Store, run: str, model: PreTrainedModel, options: SaverOptions, runtime: Runtime,
        settings: Mapping[str, bytes],
    ) -> None:  # fmt: skip
        """`runtime` has a process group that nothing else uses; `settings` are the model's small files, by name."""
        super().__init__(store, run, model, options)
        self._runtime, self._settings = runtime, settings

    def complete(self, state: TrainState) -> None:
        """Only rank 0 writes the pointers of a committed checkpoint."""
        self._on_first(lambda: Saver.complete(self, state))

    def _write_patiently(self, snapshot: Snapshot) -> Commit:
        started = time.monotonic()
        with defer_stop():
            self._on_first(self._require_lease)
            # Ranks other than 0 log errors only, and rank 0 does not know what they wait for.
            level = logging.WARNING if self._runtime.rank == 0 else logging.ERROR
            warn = partial(
                log.log, level, "rank %d: step %d is not saved yet: %s", self._runtime.rank, snapshot.state.step
            )
            parts_put = self._runtime.on_each(lambda: self._put_part(snapshot), warn)
            records = [record for each in parts_put for record in each]
            self._on_first(lambda: self._commit_parts(snapshot, records))
            self._on_first(self._mark)
        return Commit(snapshot.state.step, time.monotonic() - started)

    def _on_first(self, work: Callable[[], object]) -> None:
        """Run `work` on rank 0; if the store refuses it, every rank raises the same `StorageError`."""
        first = self._runtime.rank == 0
        self._runtime.on_each(lambda: work() if first else None)

    def _put_part(self, snapshot: Snapshot) -> list[FileRecord]:
        """Write this rank's part, put it in place, and return its size and checksum."""
        place, rank, ranks = self._place(snapshot), self._runtime.rank, self._runtime.ranks
        records = []
        with as_storage_errors(self._store.path(place)), self._store.staging(snapshot.size(), place) as folder:
            for stem, tensors in ((tensor_files.MODEL, snapshot.weights), (tensor_files.OPTIMIZER, snapshot.optimizer)):
                path = folder / stem
                write_part(path, tensors, {name: rows for name, rows in snapshot.row_ranges.items() if name in tensors})
                record = digest_file(path)
                records.append(self._put(path, place, record, part_name(stem, rank, ranks, record.sha256)))
        return records

    def _commit_parts(self, snapshot: Snapshot, records: list[FileRecord]) -> None:
        """Put the files without tensors in place, and then the manifest, which is the commit.

        The files beside the model never change within a run: if there is a commit, they stay as it lists them.
        """
        place, state = self._place(snapshot), snapshot.state
        committed = read_manifest(self._store, place, CHECKPOINT_KIND)
        present = {record.name: record for record in committed.files} if committed else {}
        found = list(records)
        with as_storage_errors(self._store.path(place)), self._store.staging(key=place) as folder:
            for name, content in self._settings.items():
                (folder / name).write_bytes(content)
            self._write_settings(snapshot, folder)
            self._require_lease()
            for path in sorted(folder.iterdir()):
                record = digest_file(path)
                if path.name == STATE:
                    found.append(self._put(path, place, record, named_by_content(STATE, record.sha256)))
                else:
                    found.append(present.get(path.name) or self._put(path, place, record, path.name))
            manifest = make_manifest(CHECKPOINT_KIND, self._options.fingerprint, found, self._details(state))
            write_manifest(self._store, place, manifest)
        self._unmarked.append((state, snapshot.epoch))

    def _put(self, path: Path, place: str, record: FileRecord, name: str) -> FileRecord:
        """Put a file in place under a name, and return its size and checksum."""
        self._store.put(path, f"{place}/{name}")
        return record.model_copy(update={"name": name})

    def _delete_unneeded(self, state: TrainState) -> None:
        """Also delete the files that the newest manifest does not list: those of an interrupted or replaced save."""
        super()._delete_unneeded(state)
        place = f"{self._run}/{folder_name(state.step)}"
        committed = read_manifest(self._store, place, CHECKPOINT_KIND)
        if committed is not None:
            unlisted = sorted({*self._store.names(place)} - {MANIFEST, *committed.digests()})
            self._delete_listed([f"{place}/{name}" for name in unlisted])


FILE_BYTES = 5 * 10**9
"""Most bytes of a file, unless a single layer, whose tensors stay together, is larger."""

Named = dict[str, torch.Tensor]
"""Tensors by name."""


def publish_parts(model: PreTrainedModel, checkpoint: Path, folder: Path) -> None:
    """Write a sharded model's checkpoint into a folder in the format of `save_pretrained`."""
    consolidate(Tensors(weight_files(checkpoint)), folder, saved_form(model))
    for name in ("config.json", GENERATION_CONFIG_NAME):
        if (checkpoint / name).is_file():
            (folder / name).write_bytes((checkpoint / name).read_bytes())


def saved_form(model: PreTrainedModel) -> Callable[[Named], Named]:
    """A function that converts the tensors of a layer to the format of `save_pretrained`, which may rename tensors and
    split experts.
    """
    plain = cast(type[PreTrainedModel], next(kind for kind in type(model).__mro__ if not issubclass(kind, FSDPModule)))
    with torch.device("meta"):
        whole = plain(model.config)
    for name in ("_weight_conversions", "_keys_to_ignore_on_save"):
        if hasattr(model, name):
            setattr(whole, name, getattr(model, name))
    left_out = set(whole._keys_to_ignore_on_save or ())
    return lambda layer: revert_weight_conversion(
        whole, {name: each for name, each in layer.items() if name not in left_out}
    )


def consolidate(
    tensors: Tensors, folder: Path, convert: Callable[[Named], Named], file_bytes: int = FILE_BYTES
) -> None:
    """Write whole tensors into a folder, converted layer by layer: one file, or several with an index, like
    transformers.
    """
    groups = list(_groups(tensors, file_bytes))
    names = [WEIGHTS] if len(groups) == 1 else [
        f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)
    ]  # fmt: skip
    placed: dict[str, str] = {}
    parameters = size = 0
    for file, layers in zip(names, groups, strict=True):
        whole: Named = {}
        for layer in layers:
            whole |= {
                name: each.contiguous() for name, each in convert({name: tensors.read(name) for name in layer}).items()
            }
        placed |= dict.fromkeys(whole, file)
        parameters += sum(map(torch.Tensor.numel, whole.values()))
        size += sum(each.nbytes for each in whole.values())
        save_file(whole, folder / file, metadata={"format": "pt"})
        del whole  # before the next file is read
    if len(groups) > 1:
        index = {
            "metadata": {"total_parameters": parameters, "total_size": size},
            "weight_map": dict(sorted(placed.items())),
        }
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _groups(tensors: Tensors, most: int) -> Iterator[list[list[str]]]:
    """The layers of each file, each as the names of its tensors."""
    group: list[list[str]] = []
    total = 0
    for _, names in groupby(sorted(tensors.shapes()), _layer):
        layer = list(names)
        size = sum(map(tensors.size, layer))
        if group and total + size > most:
            yield group
            group, total = [], 0
        group.append(layer)
        total += size
    yield group


def _layer(name: str) -> str:
    """The layer of a tensor, from its name: everything up to the first number; without one, the tensor alone."""
    found = re.match(r".*?\.\d+\.", name)
    return found[0] if found else name
