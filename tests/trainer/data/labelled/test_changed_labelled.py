"""Labelled files that change after they were looked at, and encoded sets that change after they were made."""

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.support import digests, settled
from tests.trainer.data.test_changed_raw import rot
from tests.trainer.labelled_data import (
    Record,
    as_csv,
    as_jsonl,
    as_parquet,
    job_of,
    prepared,
    records,
    saved_set,
    written,
)
from tests.trainer.made import find_encoded
from tests.trainer.preparing import leftovers
from trainer.common.errors import ArtifactError, ChangedFile
from trainer.common.progress import silent
from trainer.config.labelled import LabelledDataConfig
from trainer.data.encoded import tokenizer_paths
from trainer.data.labelled import rows as labelled_rows
from trainer.data.labelled.encoded import open_encoded
from trainer.data.labelled.examples import open_labelled
from trainer.data.labelled.rows import read_rows
from trainer.data.splits import find_splits
from trainer.store.storage import Store

pytestmark = pytest.mark.usefixtures("rotting")

PACK: dict[str, Callable[[list[Record]], bytes]] = {"csv": as_csv, "jsonl": as_jsonl, "parquet": as_parquet}


def data_in(folder: Path, source: str) -> tuple[dict[str, Any], Path]:
    """The settings of a data set whose files were last changed long ago, and one of these."""
    if source == "disk":
        path = saved_set(folder, {"train": records(20), "validation": records(10)})
        options: dict[str, Any] = {"source": source, "path": path}
        chosen = next(Path(path, "train").glob("*.arrow"))
    else:
        parts = {"train": records(20), "validation": records(10)}
        paths = {split: [written(folder / f"{split}.{source}", PACK[source](rows))] for split, rows in parts.items()}
        options, chosen = {"source": source, **paths}, Path(paths["train"][0])
    settled(folder)
    return options, chosen


def flip(path: Path) -> None:
    """Make another letter of one that only a text has."""
    rot(path, path.read_bytes().index(b"hello"))


SOURCES = ["csv", "jsonl", "parquet", "disk"]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("moment", ["before it is checked", "before it is encoded"])
def test_labelled_data_that_changes_after_the_look_is_refused_by_its_file(
    moment: str, source: str, tmp_path: Path
) -> None:
    options, path = data_in(tmp_path / "raw", source)
    data = LabelledDataConfig.model_validate(
        {"name": "small", "text_columns": ["a", "b"], "id_column": "id", **options}
    )
    found = find_splits(Store(str(tmp_path / "store")), data)
    if moment == "before it is checked":
        flip(path)
    with pytest.raises(ChangedFile, match="has changed since it was read first") as refused:  # noqa: SIM117
        with open_labelled(data, found, silent()) as labelled:
            if moment == "before it is encoded":
                flip(path)
            list(labelled.splits["train"].examples())
    assert refused.value.path == str(path)


def test_a_csv_file_that_is_replaced_by_one_without_the_text_is_refused_as_changed(tmp_path: Path) -> None:
    options, path = data_in(tmp_path / "raw", "csv")
    data = LabelledDataConfig.model_validate({"name": "small", "text_columns": ["a"], "max_bad_records": 99, **options})
    found = find_splits(Store(str(tmp_path / "store")), data)
    rows = read_rows(data, found.parts["train"], watch=True)
    look = labelled_rows.look_at_columns

    def replaced(*arguments: Any) -> Any:
        seen = look(*arguments)
        path.write_text("c,id,label\n1,2,0\n")
        return seen

    with pytest.MonkeyPatch.context() as patch, pytest.raises(ChangedFile):
        patch.setattr(labelled_rows, "look_at_columns", replaced)
        list(rows)


def test_a_folder_read_as_a_data_set_of_the_hub_is_recognised_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    path, store = Path(written(tmp_path / "set" / "train.jsonl", as_jsonl(records(20)))), Store(str(tmp_path / "store"))
    data = LabelledDataConfig(source="hub", path=str(tmp_path / "set"), text_columns=["a", "b"], id_column="id")

    def found() -> tuple[Any, list[str]]:
        source = find_splits(store, data)
        with open_labelled(data, source, silent()) as opened:
            examples = (example for split in opened.splits.values() for example in split.examples())
            return source.identity, sorted("".join(example.texts) for example in examples)

    first, times, text = found(), path.stat(), path.read_text()
    path.write_text(text.replace(" the ", " teh "))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    changed = found()
    assert first[0] != changed[0]
    assert changed[1] == sorted(row["a"] + row["b"] for row in map(json.loads, path.read_text().splitlines()))
    path.write_text(text)
    assert found() == first, "whatever the modification time"


def test_a_remote_file_that_changes_after_the_look_is_refused_by_its_address(tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}/a.jsonl"
    rows = records(20)
    with fsspec.open(url, "wb") as file:
        file.write(as_jsonl(rows))
    values = {"name": "small", "text_columns": ["a", "b"], "source": "jsonl", "train": [url], "validation": [url]}
    data = LabelledDataConfig.model_validate(values)
    found = find_splits(Store(str(tmp_path / "store")), data)
    with fsspec.open(url, "wb") as file:
        file.write(as_jsonl(rows[::-1]))
    with pytest.raises(ChangedFile) as refused, open_labelled(data, found, silent()):
        pass
    assert refused.value.path == found.parts["train"][0].path


@pytest.mark.parametrize("source", SOURCES)
def test_no_set_is_published_under_the_name_of_other_bytes_and_the_next_run_is_right(
    source: str, bert: Path, tmp_path: Path
) -> None:
    options, path = data_in(tmp_path / "raw", source)
    job = job_of(tmp_path / "store", **options)
    assert find_encoded(job, bert) is None
    flip(path)
    with pytest.raises(ChangedFile):
        prepared(job, bert)
    assert Store(job.store).names("encoded") == []
    assert leftovers(tmp_path / "store") == []
    fresh = job_of(tmp_path / "fresh", **options)
    key = prepared(fresh, bert).key
    assert prepared(job, bert).key == key
    sets = [digests(tmp_path / store / key) for store in ("store", "fresh")]
    assert [each.pop("manifest.json") for each in sets]
    assert sets[0] == sets[1]


@pytest.fixture
def encoded(bert: Path, tmp_path: Path) -> tuple[Store, str]:
    options, _ = data_in(tmp_path / "raw", "jsonl")
    job = job_of(tmp_path / "store", **options)
    return Store(job.store), prepared(job, bert).key


@pytest.mark.parametrize(("name", "read"), [("validation.arrow", open_encoded), ("tokenizer.json", tokenizer_paths)])
def test_a_file_of_an_encoded_set_whose_bits_flipped_is_not_handed_on(
    name: str, read: Callable[[Store, str], object], encoded: tuple[Store, str]
) -> None:
    store, key = encoded
    read(store, key)
    path = Path(store.path(f"{key}/{name}"))
    rot(path, path.stat().st_size // 2)
    with pytest.raises(ArtifactError, match=rf"{name} does not match its checksum .* prepare the data again"):
        read(store, key)


def test_a_missing_split_says_what_to_do(encoded: tuple[Store, str]) -> None:
    store, key = encoded
    store.delete(f"{key}/train.arrow")
    with pytest.raises(ArtifactError, match=r"train\.arrow is missing; prepare the data again"):
        open_encoded(store, key)
