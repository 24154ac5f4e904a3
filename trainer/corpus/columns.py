"""The names of what records have beside their text."""

import json
from contextlib import suppress
from itertools import islice

from trainer.config.corpora import CorpusConfig
from trainer.corpus.pieces import Piece
from trainer.corpus.raw_files import csv_header, open_bytes, open_raw, reading

LOOKED_AT = 1000
"""Records that may each have other fields."""


def column_names(piece: Piece, corpus: CorpusConfig) -> list[str]:
    """The columns of a piece's file; of JSON Lines the fields of its first records. None for a format without any."""
    with reading(piece.path):
        if corpus.format == "csv":
            return list(csv_header(piece.path, corpus)[0])
        if corpus.format == "parquet":
            import pyarrow.parquet as pq

            with open_bytes(piece.path) as file:
                return list(pq.ParquetFile(file).schema_arrow.names)
        return _first_fields(piece.path) if corpus.format == "jsonl" else []


def _first_fields(path: str) -> list[str]:
    found: dict[str, None] = {}
    with open_raw(path) as file:
        for line in islice(file, LOOKED_AT):
            with suppress(ValueError, RecursionError):
                if isinstance(record := json.loads(line), dict):
                    found.update(dict.fromkeys(record))
    return list(found)
