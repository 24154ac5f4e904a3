"""What is decided is about the documents that are tokenized, however their files are named and read."""

from pathlib import Path

import pytest

from tests.trainer.curating import curated_job, decide, job_on, prose, reasons_of, write_documents
from tests.trainer.made import prepare
from trainer.common.errors import RecordError
from trainer.common.progress import silent
from trainer.data.decisions import open_decisions
from trainer.data.shards import open_shards
from trainer.store.storage import Store

LOW = "length: bytes too low"
SHORT = {"exact": None, "filters": [{"kind": "length", "least_bytes": 50}]}


def text(seed: int) -> str:
    return " ".join(prose(seed, 20))


def test_files_of_one_name_in_two_folders_are_told_apart(tmp_path: Path) -> None:
    write_documents(tmp_path / "x" / "part.jsonl", [text(number) if number % 2 else "short" for number in range(30)])
    write_documents(tmp_path / "y" / "part.jsonl", [text(100 + number) for number in range(30)])
    corpora = [{"name": "one", "paths": [f"{tmp_path}/{name}/*.jsonl" for name in "xy"], "format": "jsonl"}]
    job = curated_job(tmp_path / "store", {}, SHORT, corpora=corpora)
    data = prepare(job, silent())
    totals = open_shards(Store(job.store), data.shards[0].key).details["totals"]
    assert totals["documents"] + totals["validation_documents"] == 45
    assert reasons_of(job, decide(job).key, "one").count(LOW) == 15


def test_a_file_that_is_read_otherwise_under_another_name_is_measured_anew(tmp_path: Path) -> None:
    content = "text\tother\n" + "".join(f"{text(number)}\tshort, very short\n" for number in range(4))
    (tmp_path / "q.tsv").write_text(content)
    corpora = [{"name": "one", "paths": [f"{tmp_path}/q.*"], "format": "csv"}]
    job = curated_job(tmp_path / "store", {}, SHORT, corpora=corpora)
    assert reasons_of(job, decide(job).key, "one") == ["kept"] * 4
    (tmp_path / "q.tsv").rename(tmp_path / "q.csv")
    (tmp_path / "q.csv").write_text(content.replace("text\tother", "a\tb,text", 1))
    fresh = curated_job(
        tmp_path / "fresh", {}, {**SHORT, "filters": [{"kind": "length", "least_bytes": 5}]}, corpora=corpora
    )
    again = fresh.model_copy(update={"store": job.store})
    assert reasons_of(again, decide(again).key, "one") == reasons_of(fresh, decide(fresh).key, "one")


def test_the_delimiter_that_a_name_tells_before_its_last_endings_counts(tmp_path: Path) -> None:
    rows = [f"{text(number)}\tx,{text(number) if number % 2 else 'short'}\n" for number in range(4)]
    (tmp_path / "q.tsv.part.1").write_text("text\tother,text\n" + "".join(rows))
    corpora = [{"name": "one", "paths": [f"{tmp_path}/q.*"], "format": "csv"}]
    job = curated_job(tmp_path / "store", {}, SHORT, corpora=corpora)
    assert reasons_of(job, decide(job).key, "one") == ["kept"] * 4
    (tmp_path / "q.tsv.part.1").rename(tmp_path / "q.csv.part.1")
    assert reasons_of(job, decide(job).key, "one") == [LOW, "kept"] * 2


def test_a_piece_is_not_made_anew_for_what_is_decided_of_the_next_ones_records(tmp_path: Path) -> None:
    job = job_on(tmp_path, [text(number) for number in range(40)], SHORT, shards={"num_shards": 2, "piece_bytes": 1024})
    decided = open_decisions(Store(job.store), decide(job).key, "one")
    decided.reasons[int(decided.counts[0])] = 1
    found = decided.of_pieces(decided.pieces, job.data.corpora[0])
    assert set(found) == {decided.pieces[1]}


def test_a_bad_record_is_refused_when_it_is_met_first(tmp_path: Path) -> None:
    path = write_documents(tmp_path / "a.jsonl", [text(number) for number in range(4)])
    with open(path, "a") as file:
        file.write("no json\n")
    job = curated_job(tmp_path / "store", {"one": str(path)}, SHORT)
    with pytest.raises(RecordError, match=r"a.jsonl: line 5: not valid JSON.*max_bad_records"):
        decide(job)
    corpora = [{**job.data.corpora[0].model_dump(), "max_bad_records": 1}]
    some = curated_job(tmp_path / "store", {}, SHORT, corpora=corpora)
    assert reasons_of(some, decide(some).key, "one") == ["kept"] * 4
    prepare(some, silent())
