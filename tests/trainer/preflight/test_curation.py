"""What a preflight says of curation before anything is decided."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import small_job
from tests.trainer.curating import prose, write_documents
from tests.trainer.made import prepare
from trainer.common.display import size
from trainer.common.errors import ConfigError, CorpusError
from trainer.common.progress import silent
from trainer.config.jobs import PipelineJob
from trainer.kinds.pretraining.preflight import preflight
from trainer.preflight import curation


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A corpus of which a fifth is short and a fifth repeats one line."""
    texts = [" ".join(prose(number, 70)) for number in range(60)]
    short = [f"number {number}" for number in range(20)]
    repeated = ["the same line again\n" * 20 + str(number) for number in range(20)]
    write_documents(
        tmp_path / "raw" / "a.jsonl", [text for each in zip(texts[:20], short, repeated, strict=True) for text in each]
    )
    write_documents(tmp_path / "raw" / "b.jsonl", texts[20:])
    return tmp_path / "raw"


def job_of(raw: Path, store: Path, **options: Any) -> PipelineJob:
    corpora = [{"name": "docs", "paths": [f"{raw}/*.jsonl"], "format": "jsonl"}]
    filters = [{"kind": "length", "least_bytes": 50}, {"kind": "gopher_repetition"}]
    shards = {"data__shards": options.pop("data__shards")} if "data__shards" in options else {}
    return small_job(raw, store, data__corpora=corpora, data__curation={"filters": filters, **options}, **shards)


def test_it_tells_what_share_of_a_sample_each_bound_drops(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curation, "FROM_A_PIECE", 1000)
    found = preflight(job_of(raw, tmp_path / "store"), silent())
    dropped = {share.reason: (share.dropped, share.of) for share in found.curation if share.dropped}
    assert dropped["length: bytes too low"] == (20, 100)
    assert dropped["gopher_repetition: duplicate_lines too high"] == (20, 100), "the first that a document breaks"
    lines, short = "\n".join(found.lines()), next(share for share in found.curation if "bytes too low" in share.reason)
    assert 0 < 50 * short.dropped_bytes < 50 * short.dropped * 50 and short.of_bytes > 10 * short.dropped_bytes
    told = f"({size(short.dropped_bytes)} of {size(short.of_bytes)}) dropped: length: bytes too low"
    assert f"docs: 20 of 100 sampled documents {told}" in lines
    assert not (tmp_path / "store" / "measures").exists()


def test_it_tells_what_share_shares_words_with_an_evaluation_set_and_guesses_no_duplicates(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curation, "FROM_A_PIECE", 1000)
    lines = [" ".join(prose(number, 70)) for number in range(0, 60, 4)]
    (tmp_path / "test.txt").write_text(
        "\n".join([*lines, "number 3", "the same line again the same line again"]) + "\n"
    )
    kept_out = {"files": [{"paths": [str(tmp_path / "test.txt")]}]}
    found = preflight(job_of(raw, tmp_path / "store", decontaminate=kept_out, near={}), silent())
    dropped = {share.reason: (share.dropped, share.of) for share in found.curation if share.dropped}
    assert dropped["length: bytes too low"] == (20, 100) and dropped["contaminated"] == (15, 100)
    assert found.unestimated == ["exact duplicate", "near duplicate"]
    told = "\n".join(found.lines())
    assert "docs: 15 of 100 sampled documents (" in told and ") dropped: contaminated" in told
    assert "not estimated, as a sample does not show it: exact duplicate, near duplicate" in told
    assert not (tmp_path / "store" / "measures").exists()
    without = preflight(job_of(raw, tmp_path / "store", exact=None), silent())
    assert without.unestimated == [] and "not estimated" not in "\n".join(without.lines())


def test_of_many_documents_a_thousand_are_looked_at(raw: Path, tmp_path: Path) -> None:
    for number in range(150):
        write_documents(raw / f"more-{number}.jsonl", [f"document {number} {each}" for each in range(20)])
    (share, *_) = preflight(job_of(raw, tmp_path / "store"), silent()).curation
    assert share.of == 1000


def test_one_file_is_sampled_as_many_are(tmp_path: Path) -> None:
    write_documents(tmp_path / "raw" / "a.jsonl", [f"document {number}" for number in range(3000)])
    (share, *_) = preflight(
        job_of(tmp_path / "raw", tmp_path / "store", data__shards={"piece_bytes": 2**20}), silent()
    ).curation
    assert share.of == 1000


def test_what_is_decided_already_is_not_guessed(raw: Path, tmp_path: Path) -> None:
    job = job_of(raw, tmp_path / "store")
    prepare(job.preparation(), silent())
    found = preflight(job, silent())
    assert found.curation == found.unestimated == [] and found.plan is not None


def test_what_cannot_be_used_is_refused_before_long_work(raw: Path, tmp_path: Path) -> None:
    missing = {"files": [{"paths": [str(tmp_path / "none.txt")]}]}
    with pytest.raises(CorpusError, match="no file matches"):
        preflight(job_of(raw, tmp_path / "store", decontaminate=missing), silent())
    with pytest.raises(ConfigError, match="function 'nowhere:none' cannot be loaded"):
        preflight(job_of(raw, tmp_path / "store", filters=[{"kind": "function", "function": "nowhere:none"}]), silent())


def test_a_misspelt_column_of_scores_is_refused_before_all_text_is_measured(raw: Path, tmp_path: Path) -> None:
    score = {"kind": "score", "column": "qualty", "least_score": 1.0}
    with pytest.raises(CorpusError, match=r"no document has a number in the column 'qualty'.*has the columns text"):
        preflight(job_of(raw, tmp_path / "store", filters=[score]), silent())
    assert not (tmp_path / "store" / "measures").exists()
