"""Documents that share n-grams with evaluation sets."""

import csv
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import write_config
from tests.trainer.curating import curated_job, decide, job_on, kept_out, prose, reasons_of, write_documents
from trainer.common.errors import CorpusError
from trainer.config.curation import DecontaminateConfig, EvaluationText
from trainer.config.jobs import PrepareJob
from trainer.curation.contamination import hashes_of
from trainer.curation.showing import StoredDecisions
from trainer.curation.texts import Texts
from trainer.data.decisions import open_decisions, read_decisions
from trainer.data.readers import read_documents, refuse
from trainer.store.storage import Store

EVALUATION = [" ".join(prose(1000 + number, 30)) for number in range(5)]
SHORT = "seven words stand here and nowhere else"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A corpus in which some documents have parts of an evaluation set."""
    words = [prose(number, 60) for number in range(12)]
    words[2][20:33] = EVALUATION[3].upper().split()[10:23]
    words[4][20:32] = EVALUATION[3].split()[10:22]  # one too few
    words[6][5:5] = SHORT.split()
    words[8][:0] = [f"({word})" for word in EVALUATION[0].split()]
    return write_documents(tmp_path / "raw.jsonl", [" ".join(each) for each in words])


def job_of(tmp_path: Path, raw: Path, **options: object) -> PrepareJob:
    return curated_job(tmp_path / "store", {"one": str(raw)}, {"exact": None, "decontaminate": options})


def test_documents_that_share_an_n_gram_go(tmp_path: Path, raw: Path) -> None:
    path = tmp_path / "eval.txt"
    path.write_text("\n".join([*EVALUATION, SHORT, "of a"]))
    job = job_of(tmp_path, raw, files=[{"paths": [str(path)]}])
    made = decide(job)
    assert kept_out(job) == [2, 6, 8]
    details = read_decisions(Store(job.store), made.key).details
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert details["kept_out"]["files"] == [{"path": str(path), "field": "text", "sha256": digest}]
    assert (details["kept_out"]["ngram"], details["kept_out"]["least_words"]) == (13, 5)
    path.write_text("\n".join(EVALUATION[:1]))
    again = decide(job)
    assert again.key != made.key
    assert kept_out(job) == [8]


def test_fewer_texts_are_looked_for_if_more_words_are_required(tmp_path: Path, raw: Path) -> None:
    path = tmp_path / "eval.txt"
    path.write_text("\n".join([*EVALUATION, SHORT]))
    for least, expected in ((7, [2, 6, 8]), (8, [2, 8])):
        job = job_of(tmp_path, raw, files=[{"paths": [str(path)]}], least_words=least)
        decide(job)
        assert kept_out(job) == expected


def test_a_document_that_fails_a_rule_goes_for_that(tmp_path: Path, raw: Path) -> None:
    (tmp_path / "eval.txt").write_text("\n".join(EVALUATION))
    options = {"files": [{"paths": [str(tmp_path / "eval.txt")]}]}
    sizes = [len(json.loads(line)["text"].encode()) for line in raw.read_text().splitlines()]
    rules = {"filters": [{"kind": "length", "least_bytes": sizes[2] + 1}], "exact": None, "decontaminate": options}
    long = write_documents(tmp_path / "long.jsonl", [" ".join(prose(50, 200))])
    job = curated_job(tmp_path / "store", {"one": str(tmp_path / "[rl]*.jsonl")}, rules)
    reasons = reasons_of(job, decide(job).key, "one")
    assert long < raw, "its document is the first"
    assert (reasons[1 + 2], reasons[1 + 8]) == ("length: bytes too low", "contaminated") and sizes[2] < sizes[8]


def test_the_end_of_a_file_and_the_beginning_of_the_next_are_not_one_text(tmp_path: Path) -> None:
    words = [prose(number, 40) for number in range(2)]
    for name, own in zip("ab", words, strict=True):
        (tmp_path / f"{name}.txt").write_text(" ".join(own))
    (tmp_path / "test.jsonl").write_text(json.dumps({"text": " ".join([*words[0][-7:], *words[1][:6]])}))
    named = {"files": [{"paths": [str(tmp_path / "test.jsonl")]}]}
    corpora = [{"name": "one", "paths": [str(tmp_path / "[ab].txt")], "format": "text"}]
    job = curated_job(tmp_path / "store", {}, {"exact": None, "decontaminate": named}, corpora=corpora)
    assert reasons_of(job, decide(job).key, "one") == ["kept", "kept"]


@pytest.mark.parametrize("piece_bytes", [1024, 8 * 2**20])
def test_words_that_begin_in_one_part_of_a_file_and_end_in_the_next_are_looked_for(
    tmp_path: Path, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are those of a large file, or of a piece of one."""
    monkeypatch.setattr("trainer.data.readers.PART_BYTES", 1024)
    (tmp_path / "raw.txt").write_text("\n".join(" ".join(prose(number, 11)) for number in range(200)))
    data: dict[str, Any] = {
        "corpora": [{"name": "one", "paths": [str(tmp_path / "raw.txt")], "format": "text"}],
        "shards": {"num_shards": 1, "piece_bytes": piece_bytes},
    }
    plain = curated_job(tmp_path / "plain", {}, {"exact": None}, **data)
    pieces, (corpus,) = open_decisions(Store(plain.store), decide(plain).key, "one").pieces, plain.data.corpora
    parts = [document.text.decode().split() for piece in pieces for document in read_documents(piece, corpus, refuse)]
    assert len(parts) > 4
    (tmp_path / "test.txt").write_text(" ".join([*parts[1][-7:], *parts[2][:6]]) + "\n")
    named = {"files": [{"paths": [str(tmp_path / "test.txt")]}]}
    job = curated_job(tmp_path / "store", {}, {"exact": None, "decontaminate": named}, **data)
    assert kept_out(job) == [1, 2]
    told = [shown.why for shown in StoredDecisions(Store(job.store), None).examples("contaminated", None, 9)]
    shared = " ".join([*parts[1][-7:], *parts[2][:6]])
    assert [" ".join(each.replace("\\n", " ").split()) for each in told] == [
        f"with the {where} part of its file it shares {shared!r} with {tmp_path}/test.txt#1 (text)"
        for where in ("next", "previous")
    ]


def test_a_file_in_parts_goes_if_the_whole_of_it_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the evaluation set is read in parts. Sentences are looked for that stand anywhere, some in no file."""
    draw = random.Random(5)
    lines = [draw.randrange(5, 60) for _ in range(24)]
    texts = [
        "\n".join(" ".join(prose(100 * file + line, 9)) for line in range(count)) for file, count in enumerate(lines)
    ]
    for number, text in enumerate(texts):
        (tmp_path / "raw").mkdir(exist_ok=True)
        (tmp_path / "raw" / f"{number:02}.txt").write_text(text)
    held: list[str] = []
    for number, text in enumerate(texts[::2]):
        words = text.split()
        at = draw.randrange(len(words) - 13)
        held += ["\n", *prose(draw.randrange(10**6), 40), *words[at : at + (13 if number % 2 else 12)]]
    (tmp_path / "test.txt").write_text(" ".join(held))
    named = {"files": [{"paths": [str(tmp_path / "test.txt")], "format": "text"}]}
    going = []
    for part_bytes in (2**20, 256):
        monkeypatch.setattr("trainer.data.readers.PART_BYTES", part_bytes)
        job = curated_job(
            tmp_path / f"store-{part_bytes}", {}, {"exact": None, "decontaminate": named},
            corpora=[{"name": "one", "paths": [str(tmp_path / "raw" / "*.txt")], "format": "text"}],
            shards={"num_shards": 1, "piece_bytes": 1024 if part_bytes == 256 else 2**20},
        )  # fmt: skip
        key = decide(job).key
        decisions = open_decisions(Store(job.store), key, "one")
        paths = np.repeat([piece.path for piece in decisions.pieces], decisions.counts)
        reasons = reasons_of(job, key, "one")
        going.append({str(path) for path, reason in zip(paths, reasons, strict=True) if reason == "contaminated"})
    assert len(paths) > 3 * len(texts) and len(going[0]) == 6
    assert going[0] == going[1]


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_every_field_of_an_evaluation_set_counts(tmp_path: Path, raw: Path, ending: str) -> None:
    path = tmp_path / f"eval.{ending}"
    records = [{"question": EVALUATION[0], "answer": EVALUATION[3], "id": "1"}]
    if ending == "jsonl":
        write_documents(path, records)
    else:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, records[0])
            writer.writeheader()
            writer.writerows(records)
    for fields, expected in ((["question"], [8]), (["answer"], [2]), (["question", "answer"], [2, 8])):
        job = job_of(tmp_path, raw, files=[{"paths": [str(path)], "format": ending, "fields": fields}])
        assert kept_out(job) == expected


def test_the_labelled_text_of_a_job_is_kept_out(tmp_path: Path, raw: Path) -> None:
    for name, text in (("train", EVALUATION[0]), ("validation", EVALUATION[3]), ("test", SHORT)):
        (tmp_path / f"{name}.csv").write_text(f"sentence,label\n{text},yes\n")
    data = {
        "source": "csv",
        "text_columns": ["sentence"],
        **{s: [str(tmp_path / f"{s}.csv")] for s in ("train", "validation", "test")},
    }
    values = {"store": "s", "data": data, "model": {"pretrained": "x"}, "training": {"max_steps": 1, "global_batch": 1}}
    path = write_config(tmp_path / "finetune.yaml", values)
    job = job_of(tmp_path, raw, jobs=[str(path)])
    assert kept_out(job) == [2, 6]
    del data["validation"]
    write_config(path, {**values, "data": data})
    job = job_of(tmp_path, raw, jobs=[str(path)])
    assert kept_out(job) == [6, 8], "it is cut from train"


def test_n_grams_may_be_shorter_than_the_examples_that_count(tmp_path: Path, raw: Path) -> None:
    texts = Texts([b"one two three four five six", b"seven eight nine"])
    found = hashes_of(texts, DecontaminateConfig(ngram=3, least_words=5, files=[EvaluationText(paths=["any"])]))
    assert {length: len(hashes) for length, (hashes, _) in found.hashes.items()} == {3: 4}
    assert found.too_short.tolist() == [False, True]


def test_a_missing_evaluation_file_is_an_error_before_anything_is_measured(tmp_path: Path, raw: Path) -> None:
    with pytest.raises(CorpusError, match=r"data.curation.decontaminate: .*no file matches '.*none.txt'"):
        decide(job_of(tmp_path, raw, files=[{"paths": [str(tmp_path / "none.txt")]}]))
    assert not (tmp_path / "store" / "measures").exists()


def test_an_evaluation_set_is_compared_as_documents_are_made(tmp_path: Path) -> None:
    line = " ".join([*prose(5, 6), "someone@example.org", *prose(6, 6)])
    (tmp_path / "eval.txt").write_text(line + "\n")
    options = {
        "exact": None,
        "transform": {"mask": ["email"]},
        "decontaminate": {"files": [{"paths": [str(tmp_path / "eval.txt")]}]},
    }
    job = job_on(tmp_path, [line, "something else"], options)
    assert reasons_of(job, decide(job).key, "one") == ["contaminated", "kept"]


def test_how_an_evaluation_set_is_read_names_what_is_looked_for(tmp_path: Path, raw: Path) -> None:
    path = tmp_path / "eval.csv"
    path.write_text(f"text;other\n{EVALUATION[0]};{EVALUATION[3]}\n")
    one = {"paths": [str(path)], "format": "csv", "delimiter": ";"}
    job = job_of(tmp_path, raw, files=[one])
    assert 8 in kept_out(job)
    path.write_text(f"text,other\n{EVALUATION[0]},{EVALUATION[3]}\n")
    job = job_of(tmp_path, raw, files=[{**one, "delimiter": ","}])
    assert 8 in kept_out(job)
    path.write_text("text;other,text\n" + f"short;{EVALUATION[3]},{EVALUATION[0]}\n")
    for mark, field, document in ((",", "text", 8), (";", "other,text", 2)):
        assert document in kept_out(job_of(tmp_path, raw, files=[{**one, "delimiter": mark, "fields": [field]}]))
