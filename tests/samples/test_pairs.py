"""The labelled pairs that `make finetune` trains on."""

import json
from pathlib import Path

import pytest

from samples.pairs import main


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    assert main([str(folder)]) == 0
    return folder


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_every_example_has_an_id_of_its_own(pairs: Path, split: str) -> None:
    ids = [json.loads(line)["id"] for line in (pairs / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]
    assert ids
    assert len(set(ids)) == len(ids)


def test_the_test_split_does_not_tell_its_labels(pairs: Path) -> None:
    for line in (pairs / "test.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        assert record.keys() == {"id", "summary", "code"}
        assert not record["id"].endswith(("match", "other"))
