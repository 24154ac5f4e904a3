"""One random bit flipped in any file of anything published: always found."""

import random
import shutil
from pathlib import Path

import pytest

from tests.depth import once
from tests.trainer.small_jobs import Finished
from trainer.common.errors import ArtifactError
from trainer.data.shards import KIND as SHARDS
from trainer.store.artifact_files import find_damage
from trainer.store.manifest import MANIFEST, read_manifest
from trainer.store.names import CHECKPOINT_KIND, FINAL_KIND
from trainer.store.storage import Store
from trainer.training.checkpoint import find_checkpoint

BITS = 25
"""Tried in each file, one at a time."""


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def is_found(store: Store, key: str, kind: str) -> bool:
    try:
        manifest = read_manifest(store, key, kind)
    except ArtifactError:
        return True
    return manifest is None or bool(find_damage(store, key, manifest))


@pytest.mark.parametrize("kind", once(CHECKPOINT_KIND, FINAL_KIND, SHARDS))
def test_every_flipped_bit_is_found(kind: str, finished: Finished, tmp_path: Path) -> None:
    store = Store(str(shutil.copytree(finished.store, tmp_path / "store")))
    assert store.local is not None
    folders = {SHARDS: "shards", CHECKPOINT_KIND: f"{finished.run}/checkpoints", FINAL_KIND: finished.run}
    keys = [f"{folders[kind]}/{name}" for name in store.names(folders[kind]) if kind != FINAL_KIND or name == "final"]
    tried, missed = 0, []
    for key in keys:
        assert not is_found(store, key, kind)
        for name in store.names(key):
            path = store.local / key / name
            size = 8 * path.stat().st_size
            generator = random.Random(f"{key}/{name}")
            for bit in sorted({generator.randrange(size) for _ in range(BITS)} if size else ()):
                flip(path, bit)
                tried += 1
                if not is_found(store, key, kind):
                    missed.append(f"{key}/{name}: bit {bit}")
                flip(path, bit)
    assert tried > 150
    assert missed == []


def test_a_checkpoint_with_any_file_flipped_is_not_continued_from(finished: Finished, tmp_path: Path) -> None:
    source = finished.store / finished.run
    newest = sorted((source / "checkpoints").iterdir())[-1].name
    generator = random.Random(0)
    for path in sorted((source / "checkpoints" / newest).iterdir()):
        store = Store(str(tmp_path / path.name))
        run = Path(shutil.copytree(source, tmp_path / path.name / finished.run))
        flip(run / "checkpoints" / newest / path.name, generator.randrange(8 * path.stat().st_size))
        found = find_checkpoint(store, finished.run)
        assert found is not None and not found.endswith(newest), path.name
        assert any(name.startswith(f"damaged-{newest}") for name in store.names(f"{finished.run}/checkpoints"))
    assert MANIFEST in {path.name for path in (source / "checkpoints" / newest).iterdir()}
