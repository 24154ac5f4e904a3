"""Models of a store, by name: the files that whoever loads them needs."""

from pathlib import Path

import pytest

from tests.trainer.report_runs import publish
from trainer.common.errors import ArtifactError
from trainer.models.pretrained import find_model
from trainer.models.tensor_files import MODEL, OPTIMIZER, find_parts, part_name
from trainer.store.names import CHECKPOINT_KIND, FINAL_KIND
from trainer.store.storage import Store

KEY = "runs/a/checkpoints/step-00000001"
DETAILS = {"step": 1, "scores": None}
PART, OTHER, MOMENTS = (
    part_name(stem, 0, 1, digit * 64) for stem, digit in ((MODEL, "0"), (MODEL, "1"), (OPTIMIZER, "2"))
)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("files", "needed"),
    [
        (["config.json", "model.safetensors", "optimizer.safetensors"], ["config.json", "model.safetensors"]),
        (["config.json", PART, MOMENTS], ["config.json", PART]),
    ],
    ids=["whole", "in parts"],
)
def test_of_a_remote_checkpoint_its_optimizer_is_not_fetched(
    remote_store: Store, files: list[str], needed: list[str]
) -> None:
    publish(remote_store, KEY, CHECKPOINT_KIND, dict.fromkeys(files, b"{}"), DETAILS)
    remote_store.release(KEY)
    found = find_model(remote_store, KEY)
    assert sorted(path.name for path in Path(found.folder).iterdir()) == needed
    assert sorted(found.files) == sorted(files), "which name the model all the same"


def test_parts_that_a_manifest_does_not_list_are_none_of_its_checkpoint(any_store: Store) -> None:
    any_store.write_bytes(f"{KEY}/{OTHER}", b"of a save that was broken off")
    any_store.write_bytes(f"{KEY}/model.safetensors", b"what the parts have replaced")
    publish(any_store, KEY, CHECKPOINT_KIND, {"config.json": b"{}", PART: b""}, DETAILS)
    folder = Path(find_model(any_store, KEY).folder)
    assert [path.name for path in find_parts(folder, MODEL)] == [PART]


def test_files_that_a_library_would_load_are_refused_beside_a_whole_model(empty_store: Store) -> None:
    publish(empty_store, KEY, CHECKPOINT_KIND, {"config.json": b"{}", "model.safetensors": b""}, DETAILS)
    empty_store.write_bytes(f"{KEY}/{OTHER}", b"which is named by what it holds")
    find_model(empty_store, KEY)
    empty_store.write_bytes(f"{KEY}/model.safetensors.index.json", b"{}")
    with pytest.raises(ArtifactError, match=r"model.safetensors.index.json is not listed in the folder's manifest"):
        find_model(empty_store, KEY)


def test_a_run_is_found_by_its_name_its_key_and_the_path_of_its_folder(empty_store: Store) -> None:
    publish(empty_store, "runs/books-12345678/final", FINAL_KIND, {"config.json": b"{}", "model.safetensors": b""}, {})
    for name in ("books", "books-12345678", "runs/books-12345678", f"{empty_store.local}/runs/books-12345678/"):
        assert find_model(empty_store, name).key == "runs/books-12345678/final", name
