"""Preparation that cannot end well: one clear error out of the worker processes, and published artifacts as they
were.
"""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.made import prepare_tokenizer
from tests.trainer.preparing import job_of, leftovers, run, set_folder, stamps, write_old
from tests.trainer.raw_files import FORMATS, docstrings, pieces_of
from tests.trainer.small_tokenizers import saved, word_piece
from trainer.common.errors import CorpusError, RecordError
from trainer.common.progress import silent
from trainer.config.corpora import DataConfig
from trainer.config.jobs import PrepareJob
from trainer.data.decisions import Reader
from trainer.data.sources import RECORDS
from trainer.data.tokenization import STARTED, deal, shard_count
from trainer.models.tokenizer import TokenizerInfo
from trainer.store.manifest import MANIFEST


def jsonl_job(raw: Path, store: Path, budget: int = 0, **data: Any) -> PrepareJob:
    corpus = {"name": "docs", "paths": [f"{raw}/*.jsonl"], "format": "jsonl", "max_bad_records": budget}
    return job_of(raw, store, corpora=[corpus], **{"shards": {"num_shards": 2}, **data})


def write_docs(raw: Path, bad: dict[str, list[str]]) -> Path:
    """Files of good records, more than are looked at before work starts, each with some bad lines at its end."""
    raw.mkdir()
    good = "".join(json.dumps({"text": text}) + "\n" for text in (docstrings(100) * 3)[:RECORDS])
    for name, lines in bad.items():
        write_old(raw / name, good + "".join(line + "\n" for line in lines))
    return raw


def manifests(store: Path) -> list[Path]:
    return list(store.glob(f"shards/*/{MANIFEST}"))


def test_bad_records_of_all_shards_together_are_held_against_the_budget_and_the_first_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = write_docs(tmp_path / "raw", {"a.jsonl": ["{", "[]"], "c.jsonl": ['{"text": 1}', "{}"], "d.jsonl": []})
    store = tmp_path / "store"
    prepare_tokenizer(jsonl_job(raw, store, budget=4), silent())
    said = rf"corpus 'docs': max_bad_records allows 3, found 4 bad records \({raw}/.*: line 257: .*; and 1 more\)"
    with pytest.raises(RecordError, match=said):  # no shard alone has so many
        run(jsonl_job(raw, store, budget=3))
    assert manifests(store) == []
    finished = {name: stamp for name, stamp in stamps(store / "shards").items() if not name.endswith(STARTED)}
    job = jsonl_job(raw, store, budget=4)
    with caplog.at_level(logging.WARNING):
        folder = set_folder(job, run(job))
    details = json.loads((folder / MANIFEST).read_text())["details"]
    assert details["totals"]["bad_records"] == 4
    skipped = details["skipped"]
    assert len(skipped) == 3 and all(re.match(rf"{raw}/[ac].jsonl: line 25[78]: ", each) for each in skipped)
    assert f"corpus docs: skipped 4 bad records ({skipped[0]}; " in caplog.text
    assert finished.items() <= stamps(store / "shards").items()
    with pytest.raises(CorpusError, match=said):
        run(jsonl_job(raw, store, budget=3))


def test_an_error_in_a_worker_names_file_and_line_and_leaves_what_was_published(tmp_path: Path) -> None:
    raw = write_docs(tmp_path / "raw", {"a.jsonl": [], "b.jsonl": []})
    store = tmp_path / "store"
    first = run(jsonl_job(raw, store))
    published = stamps(store / first.shards[0].key)
    write_old(raw / "b.jsonl", '{"text": "good"}\n{"text": \n')
    with pytest.raises(RecordError, match=rf"{raw}/b\.jsonl: line 2: not valid JSON"):
        run(jsonl_job(raw, store))
    assert stamps(store / first.shards[0].key) == published
    assert len(manifests(store)) == 1
    assert leftovers(store) == []


def test_a_corpus_all_of_whose_documents_are_held_out_is_refused(tmp_path: Path) -> None:
    raw = write_docs(tmp_path / "raw", {"a.jsonl": []})
    with pytest.raises(
        CorpusError, match=r"no training text: 256 of 256 documents were held out.*lower validation_fraction"
    ):
        run(jsonl_job(raw, tmp_path / "store", validation_fraction=1 - 1e-12))
    assert manifests(tmp_path / "store") == []


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("*.jsonl", r"corpus 'docs': no file matches '.*/raw/\*\.jsonl'; check the path"),
        ("a.jsonl", "corpus 'docs' is empty: 1 file, 0 bytes"),
    ],
)
def test_missing_or_empty_raw_files_are_refused_before_anything_is_written(
    missing: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "raw").mkdir()
    if missing == "a.jsonl":
        (tmp_path / "raw" / missing).touch()
    with pytest.raises(CorpusError, match=said):
        run(jsonl_job(tmp_path / "raw", tmp_path / "store"))
    assert not (tmp_path / "store" / "tokenizers").exists()


def test_a_tokenizer_that_the_fast_engine_cannot_take_is_used_with_the_reference(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = write_docs(tmp_path / "raw", {"a.jsonl": []})
    path = saved(word_piece(), tmp_path / "given" / "tokenizer.json")
    job = jsonl_job(raw, tmp_path / "store", tokenizer={"path": str(path), "eos_token": "[SEP]"})
    with caplog.at_level(logging.WARNING):
        folder = set_folder(job, run(job))
    assert "does not support this tokenizer" in caplog.text
    assert json.loads((folder / MANIFEST).read_text())["details"]["engine"] == "tokenizers"


@pytest.mark.parametrize("name", ["jsonl", "parquet"])
def test_the_number_of_shards_follows_from_the_bytes_where_it_is_not_given(name: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    data = form.pack(form.texts(100))
    (tmp_path / f"a.{form.ending}").write_bytes(data)
    corpus, pieces = pieces_of(tmp_path / f"a.{form.ending}", 1024, **form.options)
    values = {"corpora": [corpus.model_dump()], "tokenizer": {"vocab_size": 400}, "shards": {"shard_bytes": 2048}}
    options = DataConfig.model_validate(values)
    work = deal(pieces, Reader(corpus, None, {}), options, TokenizerInfo("{}", "", 0, 399))
    size = sum(piece.size for piece in pieces)
    assert len(work) == shard_count(options.shards, size) == -(-size // 2048) > 3
    assert sorted(piece.index for shard in work for piece in shard.pieces) == [piece.index for piece in pieces]


def test_bad_records_that_the_tokenizer_would_be_trained_without_are_refused_before_it_is_published(
    tmp_path: Path,
) -> None:
    raw = write_docs(tmp_path / "raw", {"a.jsonl": ["{", "[]"]})
    with pytest.raises(RecordError, match=rf"{raw}/a\.jsonl: line 258: .*more than the 1 that max_bad_records allows"):
        run(jsonl_job(raw, tmp_path / "store", budget=1))
    assert not list((tmp_path / "store").glob("tokenizers/*/*.json"))
