"""Encoded data sets: the ids are those that the model's tokenizer gives, and a set is made anew only if something
changed.
"""

import shutil
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from tests.support import digests
from tests.trainer.labelled_data import (
    Record,
    as_csv,
    as_jsonl,
    encoded_rows,
    job_of,
    load,
    opened,
    pair_rows,
    prepared,
    records,
    written,
)
from tests.trainer.made import find_encoded
from tests.trainer.preparing import leftovers, stamps
from tests.trainer.small_tokenizers import byte_level_bpe, random_texts
from trainer.common.errors import ArtifactError, CorpusError, RecordError
from trainer.common.progress import silent
from trainer.config.labelled import LabelledDataConfig
from trainer.data.encoded import tokenizer_paths
from trainer.data.labelled.encoded import open_encoded
from trainer.data.labelled.encoding import encode_files
from trainer.data.labelled.text_encoder import load_text_encoder
from trainer.data.splits import find_splits
from trainer.store.storage import Store


@pytest.fixture
def files(tmp_path: Path) -> dict[str, list[str]]:
    """Files of 30 training, 10 validation and 10 test records."""
    rows = records(50)
    parts = {"train": rows[:30], "validation": rows[30:40], "test": rows[40:]}
    return {split: [written(tmp_path / "raw" / f"{split}.jsonl", as_jsonl(part))] for split, part in parts.items()}


@pytest.mark.parametrize("ids", [[0, 1, 2], [1, 2]])
def test_files_that_a_model_is_measured_on_number_their_classes_themselves(
    ids: list[int], gpt2: Path, tmp_path: Path
) -> None:
    names = ["1", "2", "3"]
    rows = datasets.Dataset.from_list(records(6, ids)).cast_column("label", datasets.ClassLabel(names=names))
    rows.to_parquet(str(path := tmp_path / "new.parquet"))
    values = {"source": "parquet", "train": [str(path)], "text_columns": ["a", "b"], "classes": names}
    data = LabelledDataConfig.model_validate(values)
    source = find_splits(Store(str(tmp_path / "store")), data)
    with encode_files(data, source, load_text_encoder(gpt2, data), names, silent()) as found:
        assert found.splits["test"].labels.tolist() == [ids[number % len(ids)] for number in range(6)]
    other = data.model_copy(update={"classes": ["2", "1", "3"]})
    with (
        pytest.raises(CorpusError, match="'2' is number 0 of the classes"),
        encode_files(other, source, load_text_encoder(gpt2, data), names, silent()),
    ):
        pass


def test_texts_of_many_scripts_are_encoded_in_blocks(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.data.labelled.encoding.BLOCK_CHARACTERS", 500)
    rows = [row for row in pair_rows(random_texts(120, 5)) if row["b"].strip()]
    found = encoded_rows(tmp_path, rows, gpt2, text_columns=["b"])
    backend = byte_level_bpe()
    backend.encode_special_tokens = True
    for split in found.splits.values():
        for number, row in enumerate(rows):
            assert split.read([number])["input_ids"][0].tolist() == backend.encode(row["b"]).ids[:64]
        assert split.ids == [row["id"] for row in rows]
        assert split.labelled.all()
        assert split.labels.tolist() == [row["label"] for row in rows]


def test_the_manifest_says_what_the_set_holds(files: dict[str, list[str]], bert: Path, tmp_path: Path) -> None:
    job = job_of(tmp_path / "store", source="jsonl", **files, max_length=16, id_column=None, classes=["no", "yes"])
    found = opened(job, bert)
    tokenizer = load(bert)
    splits = found.details.pop("splits")
    source = found.details.pop("source")
    assert not source["validation_cut"]
    assert [len(source["identity"][split]) for split in splits] == [1, 1, 1]
    assert found.details.pop("tokenizer") == load_text_encoder(bert, job.data).digest
    assert found.details.pop("tokenizer_sha256") == digests(tmp_path / "store" / "encoded")[
        next(name for name in digests(tmp_path / "store" / "encoded") if name.endswith("tokenizer.json"))
    ]  # fmt: skip
    assert found.details == {
        "name": "small", "task": "classification", "classes": ["no", "yes"], "text_columns": ["a", "b"],
        "label_column": "label", "dropped_columns": ["id"], "max_length": 16, "pad_token": "[PAD]", "pad_id": 0,
        "pad_is_end": False, "divider": None, "vocab_size": len(tokenizer),
    }  # fmt: skip
    assert list(splits) == ["train", "validation", "test"]
    for name, split in found.splits.items():
        count = len(split)
        assert splits[name] == {
            "examples": count, "tokens": int(split.lengths.sum()), "longest": int(split.lengths.max()),
            "bad_records": 0,
            "truncated": splits[name]["truncated"], "labelled": count,
            "class_counts": {"no": count // 2, "yes": count // 2}, **({} if name == "train" else {"in_train": 0}),
        }  # fmt: skip


def test_numbers_are_kept_as_they_are(tmp_path: Path, bert: Path) -> None:
    rows = records(12, [0.5, 2.25, -1])
    found = encoded_rows(tmp_path, rows, bert, task="regression")
    labels = found.splits["train"].labels
    assert labels.dtype == np.float64
    assert labels.tolist() == [row["label"] for row in rows]
    assert found.details["classes"] is None
    assert found.details["splits"]["train"]["target"] == {"mean": pytest.approx(1.75 / 3), "min": -1.0, "max": 2.25}


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_split_without_labels_is_predicted_only(
    task: str, files: dict[str, list[str]], bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(Path(files["test"][0]), as_jsonl(records(10, [-1])))
    found = opened(job_of(tmp_path / "store", source="jsonl", **files, task=task), bert)
    assert not found.splits["test"].labelled.any()
    assert found.splits["train"].labelled.all()
    assert found.details["splits"]["test"]["labelled"] == 0
    assert not caplog.messages
    written(Path(files["test"][0]), as_jsonl(records(60, [None, 1])[50:]))
    found = opened(job_of(tmp_path / "store", source="jsonl", **files, task=task), bert)
    assert found.splits["test"].labelled.tolist() == [False, True] * 5
    assert found.splits["test"].labels[1::2].tolist() == [1] * 5
    assert found.details["splits"]["test"]["labelled"] == 5
    assert caplog.messages == [
        "data set small: 5 of 10 examples of the test split have no label: all are predicted, but metrics use "
        "only the other 5"
    ]


def test_a_second_encoding_does_nothing(files: dict[str, list[str]], bert: Path, tmp_path: Path) -> None:
    job = job_of(tmp_path / "store", source="jsonl", **files)
    assert find_encoded(job, bert) is None
    first = prepared(job, bert)
    before = stamps(tmp_path / "store" / "encoded")
    assert not first.reused
    again = first.model_copy(update={"reused": True})
    assert find_encoded(job, bert) == again
    assert prepared(job, bert) == again
    moved = {split: [str(shutil.copy(paths[0], tmp_path / f"moved-{split}.jsonl"))] for split, paths in files.items()}
    assert (
        prepared(job_of(tmp_path / "store", source="jsonl", **moved, max_bad_records=3, max_length=64), bert) == again
    )
    assert prepared(job, Path(shutil.copytree(bert, tmp_path / "copy"))) == again
    assert stamps(tmp_path / "store" / "encoded") == before
    assert leftovers(tmp_path / "store") == []


CHANGES: list[dict[str, Any]] = [
    {"max_length": 16}, {"classes": ["no", "yes"]}, {"task": "regression"}, {"text_columns": ["a"]},
    {"id_column": None},
    {"text_columns": ["b", "a"]}, {"test": None}, {"validation": None},
    {"validation": None, "validation_fraction": 0.4},
]  # fmt: skip


def test_whatever_changes_the_bytes_makes_another_set(
    files: dict[str, list[str]], bert: Path, gpt2: Path, tmp_path: Path
) -> None:
    keys = {
        prepared(job_of(tmp_path / "store", source="jsonl", **{**files, **change}), bert).key
        for change in [{}, *CHANGES]
    }
    job = job_of(tmp_path / "store", source="jsonl", **files)
    keys.add(prepared(job, gpt2).key)
    text = Path(files["validation"][0]).read_text()
    written(Path(files["validation"][0]), text.replace("x030", "x999"))
    ref = prepared(job, bert)
    assert open_encoded(Store(job.store), ref.key).splits["validation"].ids[0] == "x999"
    assert len({*keys, ref.key}) == len(CHANGES) + 3


def test_a_saved_data_set_is_made_anew_when_its_files_changed(bert: Path, tmp_path: Path) -> None:
    rows = records(20)

    def save(part: list[Record]) -> None:
        shutil.rmtree(tmp_path / "saved", ignore_errors=True)
        sets = {"train": datasets.Dataset.from_list(part), "validation": datasets.Dataset.from_list(rows[15:])}
        datasets.DatasetDict(sets).save_to_disk(str(tmp_path / "saved"))

    job = job_of(tmp_path / "store", source="disk", path=str(tmp_path / "saved"))
    save(rows[:15])
    first = prepared(job, bert)
    datasets.load_from_disk(str(tmp_path / "saved"))["train"].map(lambda row: {"a": row["a"].upper()})
    assert prepared(job, bert).reused
    save(rows[:14])
    second = prepared(job, bert)
    assert (second.reused, second.key == first.key) == (False, False)
    assert len(open_encoded(Store(job.store), second.key).splits["train"]) == 14


@pytest.mark.parametrize("name", ["train.arrow", "tokenizer.json", "manifest.json"])
def test_a_damaged_set_is_found_and_made_anew(
    name: str, files: dict[str, list[str]], bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = job_of(tmp_path / "store", source="jsonl", **files)
    first = prepared(job, bert)
    path = tmp_path / "store" / first.key / name
    before = path.read_bytes()
    path.write_bytes(before[:-100] + bytes([before[-100] ^ 1]) + before[-99:])
    assert find_encoded(job, bert) is None
    assert "rebuilding it" in caplog.text
    assert not prepared(job, bert).reused
    assert name == "manifest.json" or path.read_bytes() == before
    assert find_encoded(job, bert) is not None


def test_a_budget_that_was_lowered_refuses_what_it_let_pass(
    files: dict[str, list[str]], bert: Path, tmp_path: Path
) -> None:
    with open(files["train"][0], "a") as file:
        file.write("{\n")
    prepared(job_of(tmp_path / "store", source="jsonl", **files, max_bad_records=1), bert)
    with pytest.raises(RecordError, match="line 31: not valid JSON"):
        prepared(job_of(tmp_path / "store", source="jsonl", **files), bert)


def test_bad_input_leaves_nothing_behind(files: dict[str, list[str]], bert: Path, tmp_path: Path) -> None:
    written(Path(files["test"][0]), as_csv(records(3)))
    with pytest.raises(CorpusError, match=r"test\.jsonl: line 1: not valid JSON"):
        prepared(job_of(tmp_path / "store", source="jsonl", **files), bert)
    assert Store(str(tmp_path / "store")).names("encoded") == []
    assert leftovers(tmp_path / "store") == []


def test_a_set_can_be_kept_in_a_remote_store(files: dict[str, list[str]], bert: Path, tmp_path: Path) -> None:
    job = job_of(tmp_path / "unused", source="jsonl", **files).model_copy(update={"store": f"memory://{tmp_path.name}"})
    found = opened(job, bert)
    assert find_encoded(job, bert) is not None
    local = opened(job_of(tmp_path / "store", source="jsonl", **files), bert)
    for name, split in local.splits.items():
        for part, values in split.read(range(len(split))).items():
            np.testing.assert_array_equal(found.splits[name].read(range(len(split)))[part], values)


def test_a_set_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    for look in (open_encoded, tokenizer_paths):
        with pytest.raises(ArtifactError, match="encoded/none holds no encoded data set; run its fine-tuning job"):
            look(Store(str(tmp_path)), "encoded/none")
