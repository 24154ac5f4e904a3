"""What compressed files hold, for the estimates of the preflight."""

import gzip
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import small_job
from tests.trainer.raw_files import PACKINGS, docstrings
from trainer.common.errors import CorpusError
from trainer.common.progress import silent
from trainer.config.corpora import CorpusConfig
from trainer.data.raw_files import SAMPLED_FILES, unpacked_bytes
from trainer.data.sources import find_sources
from trainer.kinds.pretraining.preflight import preflight

TEXT = "\n".join(docstrings(60)).encode()


def held(paths: str, **options: Any) -> int:
    corpus = CorpusConfig(name="corpus", paths=[paths], **options)
    return unpacked_bytes(corpus, find_sources(corpus))


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_small_files_are_counted_to_the_byte(ending: str, tmp_path: Path) -> None:
    for number in range(SAMPLED_FILES):
        (tmp_path / f"{number}.txt{ending}").write_bytes(PACKINGS[ending](TEXT * (number + 1)))
    assert held(f"{tmp_path}/*") == len(TEXT) * sum(range(SAMPLED_FILES + 1))


def test_large_and_many_files_are_estimated_from_some(tmp_path: Path) -> None:
    for number in range(3 * SAMPLED_FILES):
        (tmp_path / f"{number}.txt.gz").write_bytes(gzip.compress(TEXT * 2))
    (tmp_path / "large.txt.gz").write_bytes(gzip.compress(TEXT * 400))
    (tmp_path / "plain.txt").write_bytes(TEXT)
    assert held(f"{tmp_path}/*") == pytest.approx(len(TEXT) * (6 * SAMPLED_FILES + 401), rel=0.2)


def test_of_parquet_files_it_is_what_the_column_with_the_text_takes(tmp_path: Path) -> None:
    texts = [f"{number} {TEXT.decode()[:500]}" for number in range(300)]
    table = pa.table({"text": texts, "other": [bytes(2000)] * 300})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd", use_dictionary=False)
    assert held(f"{tmp_path}/*", format="parquet") == pytest.approx(sum(map(len, texts)), rel=0.1)


def test_a_file_that_is_cut_short_is_refused_before_any_work(tmp_path: Path) -> None:
    packed = gzip.compress(TEXT)
    (tmp_path / "a.txt.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(CorpusError, match=r"a\.txt\.gz cannot be read: .*; check that the file exists, is complete"):
        held(f"{tmp_path}/*")


def test_a_preflight_guesses_as_much_of_packed_text_as_of_plain(raw: Path, tmp_path: Path) -> None:
    packed = Path(shutil.copytree(raw, tmp_path / "packed"))
    for path in (packed / "code").iterdir():
        path.with_suffix(".py.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    corpora = [{"name": "code", "paths": [f"{packed}/code/*"], "format": "source"}]
    corpora.append({"name": "docs", "paths": [f"{packed}/docs.jsonl"], "format": "jsonl"})
    plain, other = (
        preflight(small_job(raw, tmp_path / "store", **changes), silent())
        for changes in ({}, {"data__corpora": corpora})
    )
    assert plain.corpora == other.corpora
    assert (plain.about_windows, plain.about_disk_bytes) == (other.about_windows, other.about_disk_bytes)
