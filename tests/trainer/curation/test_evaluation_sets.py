"""What jobs that tune a model measure it on is kept out as they read it; what is too short to be looked for is
counted.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import write_config
from tests.trainer.chats import chat_values
from tests.trainer.curating import decide, job_on, kept_out, prose, write_documents
from tests.trainer.labelled_pairs import finetune_values
from tests.trainer.labelled_words import word_values
from trainer.common.errors import ConfigError, CorpusError, RecordError
from trainer.config.curation import DecontaminateConfig
from trainer.config.jobs import PrepareJob
from trainer.curation.contamination import name_evaluation
from trainer.curation.evaluation_sets import find_evaluation
from trainer.data.decisions import read_decisions
from trainer.store.storage import Store

SENTENCES = [" ".join(prose(2000 + number, 20)) for number in range(6)]
SHORT = "three words only"


def write_splits(folder: Path, **records: Sequence[Mapping[str, Any]]) -> None:
    for split in ("train", "validation", "test"):
        write_documents(folder / f"{split}.jsonl", records.get(split, []))


def job_of(folder: Path, values: dict[str, Any], **options: Any) -> PrepareJob:
    """Six documents, each with another one of the sentences, and what keeps out the data of a job that tunes a
    model.
    """
    documents = [" ".join([*prose(n, 20), each]) for n, each in enumerate(SENTENCES)]
    named = {"jobs": [str(write_config(folder / "tuning.yaml", values))], **options}
    return job_on(folder, documents, {"exact": None, "decontaminate": named})


def conversation(*said: str) -> dict[str, Any]:
    """A record with messages of a user and an assistant in turn."""
    return {"messages": [{"role": ("user", "assistant")[n % 2], "content": each} for n, each in enumerate(said)]}


def words(sentence: str, **changes: Any) -> dict[str, Any]:
    """A record of labelled words."""
    tokens = sentence.split()
    return {"id": tokens[0], "tokens": tokens, "ner_tags": ["O"] * len(tokens), **changes}


def pair(summary: Any, code: str, **changes: Any) -> dict[str, Any]:
    """A record of a labelled pair."""
    return {"id": str(summary), "summary": summary, "code": code, "label": 1, **changes}


def test_every_message_of_the_conversations_that_a_chat_is_measured_on_is_kept_out(tmp_path: Path) -> None:
    write_splits(
        tmp_path,
        train=[conversation(SENTENCES[0], "yes")],
        validation=[conversation(SENTENCES[1], SENTENCES[2]), conversation("why", "so")],
        test=[{"prompt": SENTENCES[3], "completion": SENTENCES[4]}],
    )
    values = chat_values(tmp_path, "s", "x")
    job = job_of(tmp_path, values)
    assert kept_out(job) == [1, 2, 3, 4]
    told = read_decisions(Store(job.store), decide(job).key).details["kept_out"]
    assert [(Path(file["path"]).name, file["field"]) for file in told["files"]] == [
        ("test.jsonl", "messages"), ("validation.jsonl", "messages"),
    ]  # fmt: skip
    assert sorted((file["texts"], file["too_short"]) for file in told["texts"]) == [(2, 0), (4, 2)]
    del values["data"]["validation"]
    assert kept_out(job_of(tmp_path, values)) == [0, 3, 4], "it is cut from train"


@pytest.mark.parametrize("source", ["jsonl", "parquet"])
def test_labelled_words_are_kept_out_as_the_sentences_that_they_make(tmp_path: Path, source: str) -> None:
    unlabelled = {key: value for key, value in words(SENTENCES[3]).items() if key != "ner_tags"}
    splits = {
        "train": [words(SENTENCES[0])],
        "validation": [words(SENTENCES[1]), words(SENTENCES[2])],
        "test": [unlabelled],
    }
    for split, rows in splits.items():
        write_documents(tmp_path / f"{split}.jsonl", rows)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{split}.parquet")
    files = {f"data__{split}": [str(tmp_path / f"{split}.{source}")] for split in splits}
    assert kept_out(job_of(tmp_path, word_values(tmp_path, "s", "x", data__source=source, **files))) == [1, 2, 3]


BAD: dict[str, tuple[Any, list[dict[str, Any]], str]] = {
    "chat": (
        chat_values, [conversation(SENTENCES[1], "yes"), {"messages": [{"role": "user", "content": SENTENCES[2]}]}],
        "line 2: there is no assistant message",
    ),
    "words": (
        word_values, [words(SENTENCES[1]), words(SENTENCES[2], ner_tags=["O"])], "line 2: column 'tokens' holds 20 "
                                                                                 "words, but"
    ),
    "pairs": (
        finetune_values, [pair(SENTENCES[1], SHORT), pair(7, SENTENCES[2])],
        "line 2: column 'summary' holds int, not text",
    ),
    "ids": (
        finetune_values, [pair(SENTENCES[1], SENTENCES[3], id="a"), pair(SENTENCES[2], SHORT, id="a")],
        "line 2: column 'id': 'a' is also the id of .* line 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_record_is_refused_or_passed_over_as_the_job_itself_does(tmp_path: Path, kind: str) -> None:
    values_of, records, said = BAD[kind]
    good, *_ = records
    write_splits(tmp_path, train=[good], validation=records, test=[good])
    with pytest.raises(
        RecordError, match=rf"decontaminate.jobs: .*tuning.yaml: .*validation split: .*{said}.*max_bad_records"
    ):
        decide(job_of(tmp_path, values_of(tmp_path, "s", "x"), least_words=2))
    passed = job_of(tmp_path, values_of(tmp_path, "s", "x", data__max_bad_records=1), least_words=1)
    assert kept_out(passed) == ([1, 3] if kind == "ids" else [1])


def test_bad_records_are_counted_in_each_split_by_itself(tmp_path: Path) -> None:
    bad: dict[str, Any] = {"messages": []}
    write_splits(
        tmp_path, validation=[conversation(SENTENCES[1], "yes"), bad], test=[bad, conversation(SENTENCES[2], "yes")]
    )
    assert kept_out(job_of(tmp_path, chat_values(tmp_path, "s", "x", data__max_bad_records=1))) == [1, 2]
    write_documents(tmp_path / "validation-more.jsonl", [conversation(SENTENCES[3], "yes"), bad])
    several = chat_values(
        tmp_path, "s", "x", data__max_bad_records=1, data__validation=[str(tmp_path / "validation*.jsonl")]
    )  # fmt: skip
    with pytest.raises(
        RecordError, match=r"line 2: `messages` is an empty list.*more than the 1 that max_bad_records allows"
    ):
        decide(job_of(tmp_path, several))
    several["data"]["max_bad_records"] = 2
    assert kept_out(job_of(tmp_path, several)) == [1, 2, 3]


def test_what_a_job_measures_on_must_be_there_and_in_files(tmp_path: Path) -> None:
    write_splits(tmp_path, validation=[conversation(SENTENCES[1], "yes")])
    with pytest.raises(CorpusError, match=r"data.curation.decontaminate: .*test.jsonl"):
        decide(job_of(tmp_path, chat_values(tmp_path, "s", "x", data__test=[f"{tmp_path}/none/test.jsonl"])))
    hub = {"task": "chat", "source": "hub", "path": "a/b"}
    with pytest.raises(ConfigError, match="its data has source hub; list its files in"):
        decide(job_of(tmp_path, {**chat_values(tmp_path, "s", "x"), "data": hub}))
    with pytest.raises(
        CorpusError, match=r"decontaminate.jobs: .*tuning.yaml: .*validation.jsonl has no column 'tokens'"
    ):
        decide(job_of(tmp_path, word_values(tmp_path, "s", "x", data__test=None)))


def test_a_file_without_the_field_of_its_text_names_the_setting_for_it(tmp_path: Path) -> None:
    asked = write_documents(tmp_path / "asked.jsonl", [{"question": SENTENCES[0]}])
    kept = {"decontaminate": {"files": [{"paths": [str(asked)], "format": "jsonl"}]}}
    said = (
        f"^data.curation.decontaminate.files: {asked}: line 1: no field 'text'; it has question; specify the fields "
        "that hold its text$"
    )
    with pytest.raises(RecordError, match=said):
        decide(job_on(tmp_path, SENTENCES, kept))


def test_a_file_that_is_of_two_splits_is_counted_once(tmp_path: Path) -> None:
    write_splits(tmp_path, validation=[conversation(SENTENCES[1], "yes")])
    values = chat_values(tmp_path, "s", "x", data__test=[str(tmp_path / "validation.jsonl")])
    job = job_of(tmp_path, values)
    assert kept_out(job) == [1]
    (told,) = read_decisions(Store(job.store), decide(job).key).details["kept_out"]["texts"]
    assert (told["texts"], told["too_short"]) == (2, 1)


def test_files_without_a_header_are_read_by_the_columns_that_the_job_names(tmp_path: Path) -> None:
    for number, split in enumerate(("train", "validation", "test")):
        (tmp_path / f"{split}.csv").write_text(f"1,{SENTENCES[number]}\n")
    data = {
        "source": "csv", "columns": ["label", "text"], "text_columns": ["text"],
        **{split: [str(tmp_path / f"{split}.csv")] for split in ("train", "validation", "test")},
    }  # fmt: skip
    values = {"store": "s", "data": data, "model": {"pretrained": "x"}, "training": {"max_steps": 1, "global_batch": 1}}
    assert kept_out(job_of(tmp_path, values)) == [1, 2]


def test_sets_of_plain_text_are_named_as_those_of_files_unless_records_may_be_passed_over(tmp_path: Path) -> None:
    write_splits(tmp_path, validation=[pair(SENTENCES[1], SENTENCES[2])], test=[pair(SENTENCES[3], SENTENCES[4])])
    store = Store(str(tmp_path / "store"))
    paths = [str(tmp_path / f"{split}.jsonl") for split in ("validation", "test")]
    files = [{"paths": paths, "format": "jsonl", "fields": ["summary", "code"]}]

    def name(**options: Any) -> str:
        wanted = DecontaminateConfig.model_validate(options)
        return name_evaluation(wanted, None, find_evaluation(store, wanted))

    def of_job(**changes: Any) -> str:
        path = write_config(tmp_path / "tuning.yaml", finetune_values(tmp_path, "s", "x", **changes))
        return name(jobs=[str(path)])

    assert of_job() == of_job(data__max_length=9) == name(files=files)
    assert len({of_job(), of_job(data__max_bad_records=1), of_job(data__max_bad_records=1, data__id_column=None)}) == 3


def test_files_in_another_order_are_read_again_if_the_first_of_equal_ids_stays(tmp_path: Path) -> None:
    write_splits(tmp_path, test=[pair(SENTENCES[4], SHORT, id="b")])
    values = finetune_values(
        tmp_path, "s", "x", data__max_bad_records=1, data__validation=[str(tmp_path / "validation[12].jsonl")]
    )
    found = []
    for first, second in ((1, 2), (2, 1)):
        for number, sentence in ((first, SENTENCES[1]), (second, SENTENCES[2])):
            write_documents(tmp_path / f"validation{number}.jsonl", [pair(sentence, SHORT, id="a")])
        found.append(kept_out(job_of(tmp_path, values)))
    assert found == [[1, 4], [2, 4]]


def test_examples_that_are_too_short_to_be_looked_for_are_counted(tmp_path: Path) -> None:
    path = write_documents(
        tmp_path / "test.jsonl", [{"q": each, "a": SHORT} for each in (SENTENCES[0], SHORT, "", SENTENCES[1])]
    )
    files = [{"paths": [str(path)], "format": "jsonl", "fields": fields} for fields in (["q"], ["q", "a"])]
    job = job_on(tmp_path, [SENTENCES[0], SENTENCES[2]], {"exact": None, "decontaminate": {"files": files[:1]}})
    store, key = Store(job.store), decide(job).key
    told = read_decisions(store, key).details["kept_out"]
    digest = told["files"][0]["sha256"]
    assert told["texts"] == [{"sha256": digest, "field": "q", "texts": 3, "too_short": 1}]
    others = [SENTENCES[0], SENTENCES[3]]
    write_documents(tmp_path / "a.jsonl", others)
    assert read_decisions(store, decide(job).key).details["kept_out"] == told, "it is remembered with the hashes"
    both = job_on(tmp_path, others, {"exact": None, "decontaminate": {"files": files[1:], "least_words": 3}})
    (q, a) = read_decisions(store, decide(both).key).details["kept_out"]["texts"]
    assert (q["texts"], q["too_short"], a["texts"], a["too_short"]) == (3, 0, 4, 0)


def test_a_field_of_short_answers_does_not_stop_the_search_for_the_questions(tmp_path: Path) -> None:
    path = write_documents(tmp_path / "test.jsonl", [{"q": each, "a": SHORT} for each in SENTENCES[1:3]])
    files = [{"paths": [str(path)], "format": "jsonl", "fields": ["q", "a"]}]
    job = job_on(tmp_path, SENTENCES[:3], {"exact": None, "decontaminate": {"files": files}})
    assert kept_out(job) == [1, 2]
    told = read_decisions(Store(job.store), decide(job).key).details["kept_out"]["texts"]
    assert [(each["field"], each["texts"], each["too_short"]) for each in told] == [("q", 2, 0), ("a", 2, 2)]
    files[0]["fields"] = ["a"]
    only = job_on(tmp_path, SENTENCES[:3], {"exact": None, "decontaminate": {"files": files}})
    with pytest.raises(CorpusError, match=r"no text in .*test.jsonl has 5 words or more, so nothing of it would"):
        decide(only)
    write_splits(tmp_path, **{split: [pair(SENTENCES[3], SHORT)] for split in ("train", "validation", "test")})
    assert kept_out(job_of(tmp_path, finetune_values(tmp_path, "s", "x"))) == [3]
