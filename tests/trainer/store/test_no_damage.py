"""What is no damage, and is not taken for any: figures that are no numbers, outages, files that strangers left."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.report_runs import DETAILS, publish, safetensors
from trainer.common.errors import ArtifactError, StorageError
from trainer.config.runs import PromotionConfig
from trainer.models.tensor_files import read_tensors
from trainer.models.tokenizer import keeps_text
from trainer.records.sealed import read_listed, write_pointer
from trainer.records.shapes import folder_name
from trainer.registry.gate import judge
from trainer.registry.promotion import moves, pass_through
from trainer.store.manifest import publish_folder, read_manifest
from trainer.store.names import CHECKPOINT_KIND, FINAL, FINAL_KIND
from trainer.store.storage import Store
from trainer.training.checkpoint import TrainState
from trainer.training.run_repair import repair_pointers

NAN = float("nan")


def test_a_checkpoints_manifest_keeps_a_score_that_is_no_number(empty_store: Store) -> None:
    """The correlation with a constant, say: a checkpoint with one was taken for damaged, as its state.json says
    otherwise.
    """
    details = {**DETAILS[CHECKPOINT_KIND], "scores": {"loss": 1.0, "pearsonr": NAN}}
    key = f"runs/a/{folder_name(1)}"
    publish(empty_store, key, CHECKPOINT_KIND, {"state.json": b"{}"}, details)
    manifest = read_manifest(empty_store, key, CHECKPOINT_KIND)
    assert manifest is not None and math.isnan(manifest.details["scores"]["pearsonr"])
    write_pointer(empty_store, "runs/a/checkpoint-last", 1, manifest.details["scores"])


def test_a_champion_with_a_figure_that_is_no_number_keeps_its_history(empty_store: Store) -> None:
    with empty_store.staging() as folder:
        (folder / "config.json").write_text("{}")
        publish_folder(empty_store, folder, f"runs/a/{FINAL}", FINAL_KIND, "f" * 16, {"run": "f" * 16})
    gate = PromotionConfig(name="lm", threshold=3.0)
    assert pass_through(empty_store, gate, "runs/a", {"loss": 2.0, "pearsonr": NAN}).passed
    assert math.isnan(moves(empty_store, "lm")[0].scores["pearsonr"])


def test_a_figure_that_is_no_number_passes_no_gate_even_where_there_is_no_champion() -> None:
    verdict = judge(PromotionConfig(name="lm", better_by=0.1), "runs/a", "f", {"loss": NAN}, [])
    assert not verdict.passed and "is not a finite number" in verdict.reason


def test_a_store_that_is_away_is_not_taken_for_a_damaged_file(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = safetensors({"w": [0]})
    empty_store.write_bytes("runs/a/model.safetensors", data)
    assert set(read_tensors(empty_store, "runs/a/model.safetensors", len(data))) == {"w"}

    def away(*_: Any) -> bytes:
        raise StorageError("connection reset")

    monkeypatch.setattr(empty_store, "read_bytes", away)
    with pytest.raises(StorageError, match="connection reset"):
        read_tensors(empty_store, "runs/a/model.safetensors", len(data))


def test_a_stray_file_among_folders_holds_no_run_and_no_epoch(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write_bytes("runs/.DS_Store", b"")
    with pytest.raises(FileNotFoundError):
        store.read_bytes("runs/.DS_Store/config.json")
    publish(store, f"runs/a/{folder_name(1)}", CHECKPOINT_KIND, {"state.json": b"{}"}, {})
    store.write_bytes("runs/a/epochs/.DS_Store", b"")
    assert repair_pointers(store, "runs/a", [1], TrainState(step=1), lambda step: None, "loss") == {1}


def test_a_listed_file_that_is_no_json_is_refused_by_name(empty_store: Store) -> None:
    publish(empty_store, "things/a", "thing", {"x.json": b"{"}, {})
    manifest = read_manifest(empty_store, "things/a", "thing")
    assert manifest is not None
    with pytest.raises(ArtifactError, match=r"things/a/x\.json is damaged: it is not valid JSON"):
        read_listed(empty_store, "things/a/x.json", manifest.digests()["x.json"])


@pytest.mark.parametrize(
    ("normalizer", "kept"),
    [
        ("null", True),
        ('{"type": "Lowercase"}', False),
        ('{"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"}]}', True),
        ('{"type": "Replace", "pattern": {"String": " "}, "content": "_"}', True),
        ('{"type": "Sequence", "normalizers": [{"type": "NFC"}]}', False),
    ],
)
def test_a_tokenizer_keeps_a_text_unless_it_normalises_more_than_spaces(normalizer: str, kept: bool) -> None:
    assert keeps_text(f'{{"normalizer": {normalizer}}}') is kept
