"""What names a labelled set's training and validation: whatever lies in them, and nothing of the test split."""

from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.labelled_data import as_jsonl, flat_records, job_of, prepared, read, records, saved_set, written
from trainer.config.labelled import FinetuneJob
from trainer.data.encoded import encoded_details
from trainer.records.basis import split_content, without_test
from trainer.store.storage import Store

ROWS = records(60)
PARTS = {"train": ROWS[:30], "validation": ROWS[30:40], "test": ROWS[40:]}
OTHER = {**PARTS, "test": ROWS[40:50]}
NONE = {split: rows for split, rows in PARTS.items() if split != "test"}


def as_files(folder: Path, parts: dict[str, Any]) -> dict[str, Any]:
    """The options of labelled files."""
    paths = {split: [written(folder / f"{split}.jsonl", as_jsonl(rows))] for split, rows in parts.items()}
    return {"source": "jsonl", **paths}


def as_folder(folder: Path, parts: dict[str, Any]) -> dict[str, Any]:
    """The options of a folder that `save_to_disk` wrote."""
    return {"source": "disk", "path": saved_set(folder, parts)}


@pytest.fixture(params=[as_files, as_folder], ids=["files", "disk"])
def write(request: pytest.FixtureRequest) -> Any:
    return request.param


def job(store: Path, options: dict[str, Any]) -> FinetuneJob:
    return job_of(store, **options)


def test_the_test_split_names_the_set_and_not_what_is_trained(write: Any, gpt2: Path, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("first", "other", "none")]
    jobs = [
        job(tmp_path / "store", write(place, parts)) for place, parts in zip(places, (PARTS, OTHER, NONE), strict=True)
    ]
    refs = [prepared(each, gpt2) for each in jobs]
    assert len({ref.key for ref in refs}) == 3 and len({ref.fingerprint for ref in refs}) == 1
    assert [prepared(each, gpt2).fingerprint for each in jobs] == [refs[0].fingerprint] * 3, (
        "found again, it is the same"
    )
    details = [encoded_details(Store(str(tmp_path / "store")), ref.key) for ref in refs]
    said = [each.data.model_dump() for each in jobs]
    first, *others = [split_content(*each, "validation") for each in zip(details, said, strict=True)]
    assert others == [first] * 2
    assert split_content(details[0], said[0], "test") != split_content(details[1], said[1], "test")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_other_splits_name_both(write: Any, gpt2: Path, tmp_path: Path, split: str) -> None:
    changed = {**PARTS, split: [*PARTS[split][:-1], {**PARTS[split][-1], "a": "another text"}]}
    places = (tmp_path / "first", PARTS), (tmp_path / "changed", changed)
    one, other = (prepared(job(tmp_path / "store", write(*place)), gpt2) for place in places)
    assert one.key != other.key and one.fingerprint != other.fingerprint


def test_a_split_of_a_folder_that_is_both_tested_and_trained_on_counts(tmp_path: Path) -> None:
    files = [["dataset_dict.json", "a"], ["train/data.arrow", "b"], ["extra/data.arrow", "c"], ["test/data.arrow", "d"]]
    splits = {"train": ["train", "extra"], "test": ["test", "extra"]}
    assert without_test([files, splits]) == [[files[1], files[2]], {"train": ["train", "extra"]}]
    assert without_test([[["data.arrow", "a"]], {"train": ["train"]}]) == [[["data.arrow", "a"]], {"train": ["train"]}]


def test_of_the_hub_the_prints_of_the_other_splits_count() -> None:
    prints = {"train": ["a"], "validation": ["b"], "test": ["c"]}
    assert without_test(["nyu-mll/glue", "mrpc", prints]) == [
        "nyu-mll/glue",
        "mrpc",
        {"train": ["a"], "validation": ["b"]},
    ]


def test_a_test_file_alone_does_not_name_the_classes(tmp_path: Path) -> None:
    rows = flat_records(20)
    named = datasets.Dataset.from_list(rows).cast_column("label", datasets.ClassLabel(names=["no", "yes"]))
    named.to_parquet(tmp_path / "named.parquet")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "plain.parquet")
    plain, with_names = str(tmp_path / "plain.parquet"), str(tmp_path / "named.parquet")
    found = {test: read(source="parquet", train=[plain], test=[test]) for test in (plain, with_names)}
    assert found[plain].classes == found[with_names].classes == ["0", "1"]
    assert found[plain].labels["train"] == found[with_names].labels["train"]
    assert read(source="parquet", train=[with_names], test=[plain]).classes == ["no", "yes"]
