"""Bad records that are skipped: the first three are named, with their lines and reasons, and all are counted."""

import logging
from pathlib import Path

import pytest

from tests.support import write_rows
from tests.trainer.chats import chat_job, chat_model
from tests.trainer.labelled_data import as_jsonl, bert_folder, flat_records, job_of, opened, written
from tests.trainer.made import encode_conversations
from trainer.common.bad_records import skipped_rows
from trainer.common.progress import silent
from trainer.data.encoded import encoded_details
from trainer.store.storage import Store


def test_skipped_rows_of_labelled_data_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = flat_records(40, ["no", "yes"])
    rows[3] |= {"a": None}
    rows[5] |= {"label": "maybe"}
    rows[7] |= {"id": rows[2]["id"]}
    rows[9] |= {"label": "perhaps"}
    path = written(tmp_path / "train.jsonl", as_jsonl(rows))
    good = written(tmp_path / "validation.jsonl", as_jsonl(flat_records(10, ["no", "yes"])))
    job = job_of(
        tmp_path / "store", source="jsonl", train=[path], validation=[good], classes=["no", "yes"], max_bad_records=4
    )
    with caplog.at_level(logging.WARNING):
        details = opened(job, bert_folder(tmp_path / "bert")).details
    assert details["splits"]["train"]["bad_records"] == 4 and "skipped" not in details["splits"]["validation"]
    first = [
        f"{path}: line 4: column 'a' holds no text",
        f"{path}: line 8: column 'id': 'x002' names {path}: line 3 too; ids may not repeat",
        f"{path}: line 6: column 'label': 'maybe' is no class of no, yes",
    ]
    found = details["splits"]["train"]["skipped"]
    assert found[:2] == first[:2] and found[2].startswith(first[2].split(" of ")[0])
    told = f"data set small, train split: skipped 4 bad records ({'; '.join(found)}; and 1 more)"
    assert told in caplog.text
    assert [row["where and why"] for row in skipped_rows(details)] == found
    assert {row["bad records skipped"] for row in skipped_rows(details)} == {4}


def test_skipped_conversations_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = {"prompt": "What is it?", "completion": "A channel."}
    rows = [{**good, "prompt": f"What is number {number}?"} for number in range(30)]
    write_rows(tmp_path / "train.jsonl", [*rows, {"prompt": "alone"}, {"messages": []}])
    for split in ("validation", "test"):
        write_rows(tmp_path / f"{split}.jsonl", rows[:5])
    model = chat_model(tmp_path / "model")
    job = chat_job(tmp_path, tmp_path / "store", model, data__max_bad_records=2)
    with caplog.at_level(logging.WARNING):
        made = encode_conversations(job, silent(), model)
    split = encoded_details(Store(job.store), made.key)["splits"]["train"]
    assert (split["examples"], split["bad_records"]) == (30, 2)
    assert split["skipped"][0].startswith(f"{tmp_path}/train.jsonl: line 31: ")
    assert split["skipped"][1].startswith(f"{tmp_path}/train.jsonl: line 32: `messages` is an empty list")
    assert f"data set chats, train split: skipped 2 bad records ({split['skipped'][0]}; " in caplog.text
