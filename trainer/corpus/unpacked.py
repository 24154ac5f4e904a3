"""How many bytes of raw files there are once they are unpacked: about, for estimates before they are read."""

from collections.abc import Sequence
from statistics import median

from fsspec.core import get_compression

from trainer.common.errors import CorpusError
from trainer.config.corpora import CorpusConfig
from trainer.corpus.raw_files import SourceFile, open_bytes, reading, unpack

SAMPLED_FILES = 8
SAMPLED_BYTES = 4 * 2**20
"""Unpacked bytes of each sampled file, from its beginning."""


def unpacked_bytes(corpus: CorpusConfig, sources: Sequence[SourceFile]) -> int:
    """The bytes of a corpus's files, of compressed ones as many as they probably hold; of Parquet, those of the text's column.

    The largest of the compressed files are looked at; of the others it is taken that they are packed as much as the middle one
    of these. Raises `CorpusError` for one that is looked at and damaged.
    """
    packed = [source for source in sources if source.size and (_compression(source) or corpus.format == "parquet")]
    plain = sum(source.size for source in sources if source not in packed)
    if not packed:
        return plain
    largest = sorted(packed, key=lambda source: (-source.size, source.key))
    ratios = [_ratio(corpus, source) for source in largest[:SAMPLED_FILES]]
    looked_at = sum(source.size * ratio for source, ratio in zip(largest, ratios, strict=False))
    return plain + round(looked_at + median(ratios) * sum(source.size for source in largest[SAMPLED_FILES:]))


def _ratio(corpus: CorpusConfig, source: SourceFile) -> float:
    """How many bytes a packed one holds, by the beginning of a file."""
    with reading(source.path):
        if corpus.format == "parquet":
            return _column_bytes(source, corpus.text_field) / source.size
        with open_bytes(source.path) as file, unpack(file, _compression(source) or "") as text:
            held = len(text.read(SAMPLED_BYTES))
            return held / (source.size if held < SAMPLED_BYTES else min(source.size, file.tell()))


def _column_bytes(source: SourceFile, column: str) -> int:
    """What a column takes by a Parquet file's own account; of a missing one, which its reader refuses, all that there is."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_bytes(source.path) as file:
            metadata = pq.ParquetFile(file).metadata
    except pa.ArrowInvalid as error:
        raise CorpusError(f"{source.path} is not a Parquet file: {error}") from error
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    of_text = [each.total_uncompressed_size for each in columns if each.path_in_schema == column]
    return sum(of_text) or source.size


def _compression(source: SourceFile) -> str | None:
    found: str | None = get_compression(source.path, "infer")
    return found
