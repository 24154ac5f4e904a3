"""One random bit flipped in any file of anything published: always found."""

import random
import shutil
from pathlib import Path

import pytest

from tests.depth import once
from tests.support import flipped
from tests.trainer.small_jobs import Finished
from trainer.common.errors import ArtifactError
from trainer.data.shards import KIND as SHARDS
from trainer.store.artifact_files import find_damage
from trainer.store.manifest import read_manifest
from trainer.store.names import CHECKPOINT_KIND, FINAL_KIND
from trainer.store.storage import Store

BITS = 25
"""Tried in each file, one at a time."""


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
            intact = path.read_bytes()
            generator = random.Random(f"{key}/{name}")
            for bit in sorted({generator.randrange(8 * len(intact)) for _ in range(BITS)} if intact else ()):
                path.write_bytes(flipped(intact, bit))
                tried += 1
                if not is_found(store, key, kind):
                    missed.append(f"{key}/{name}: bit {bit}")
            path.write_bytes(intact)
    assert tried > 150
    assert missed == []
