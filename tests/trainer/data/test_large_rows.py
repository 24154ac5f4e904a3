"""Parquet files of large rows, of which few are held at once."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.config.corpora import CorpusConfig
from trainer.data.readers import read_documents, refuse
from trainer.data.sources import find_pieces
from trainer.store.storage import Store


def test_few_large_rows_are_held_beside_their_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.records.PART_BYTES", 2**20)
    draw = random.Random(1)
    rows = [draw.randbytes(10**5).hex() for _ in range(60)]
    pq.write_table(pa.table({"text": rows}), tmp_path / "a.parquet", use_dictionary=False)
    corpus = CorpusConfig(name="one", paths=[str(tmp_path / "a.parquet")], format="parquet")
    pieces = find_pieces(Store(str(tmp_path / "store")), corpus, 2**28)
    before, most, texts = pa.total_allocated_bytes(), 0, []
    for piece in pieces:
        for document in read_documents(piece, corpus, refuse):
            texts.append(document.text.decode())
            most = max(most, pa.total_allocated_bytes() - before)
    assert texts == rows
    assert most < 1.3 * sum(map(len, rows))
