"""Raw files of every format, written from the same texts, each with a reading that owes nothing to the readers."""

import csv
import gzip
import io
import json
import sysconfig
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from samples.corpora import all_docstrings
from trainer.common.errors import RecordError
from trainer.config.corpora import CorpusConfig
from trainer.data.pieces import Piece
from trainer.data.readers import read_documents
from trainer.data.sources import find_pieces
from trainer.store.storage import Store

WHOLE = 2**20
"""A `piece_bytes` that leaves the small files of these tests uncut."""


@cache
def sources() -> dict[str, str]:
    """Names and texts of some modules of the standard library."""
    names = ("abc", "bisect", "calendar", "fractions", "heapq", "shlex", "statistics", "string", "textwrap")
    folder = Path(sysconfig.get_path("stdlib"))
    return {f"{name}.py": (folder / f"{name}.py").read_text(encoding="utf-8") for name in names}


def docstrings(count: int) -> list[str]:
    """Docstrings of the standard library, with line ends, quotes and commas in them, and some text in other scripts."""
    others = [
        "Größe, Länge und Fuß",
        "Привет, мир",
        "日本語のテキスト\n二行目",
        'say "hello", twice',
        "  indented\n\n\tmore",
    ]
    return [*others, *islice(all_docstrings(sources()), count - len(others))]


def one_line(texts: Iterable[str]) -> list[str]:
    """The same texts with every run of white space made one space."""
    return [" ".join(text.split()) for text in texts]


@dataclass(frozen=True)
class Format:
    """A way to hold texts in one file."""

    ending: str
    options: dict[str, Any]
    pack: Callable[[list[str]], bytes]
    unpack: Callable[[bytes], list[str]]
    flat: bool = False

    def texts(self, count: int) -> list[str]:
        """Texts that the format can hold."""
        return one_line(docstrings(count)) if self.flat else docstrings(count)


def _csv(texts: list[str]) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["id", "text", "note"])
    writer.writerows([number, text, "a,b"] for number, text in enumerate(texts))
    return file.getvalue().encode()


def _parquet(texts: list[str]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), file, row_group_size=10)
    return file.getvalue()


FORMATS = {
    "text": Format("txt", {"format": "text"}, lambda t: "\n".join(t).encode(), lambda d: [d.decode()]),
    "separated": Format(
        "txt", {"format": "text", "separator": "%%"},
        lambda t: ("\n%%\n".join(t) + "\n").encode(), lambda d: d.decode().removesuffix("\n").split("\n%%\n"),
    ),
    "source": Format(
        "py", {"format": "source"},
        lambda t: "\n".join(t).replace("\n", "\r\n").encode(),
        lambda d: [io.TextIOWrapper(io.BytesIO(d), "utf-8").read()],
    ),
    "lines": Format(
        "txt", {"format": "lines"}, lambda t: "".join(line + "\n" for line in t).encode(),
        lambda d: d.decode().removesuffix("\n").split("\n"), flat=True,
    ),
    "jsonl": Format(
        "jsonl", {"format": "jsonl"},
        lambda t: "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in t).encode(),
        lambda d: [json.loads(line)["text"] for line in d.splitlines()],
    ),
    "csv": Format(
        "csv", {"format": "csv"}, _csv,
        lambda d: [row["text"] for row in csv.DictReader(io.StringIO(d.decode(), newline=""))],
    ),
    "tsv": Format(
        "tsv", {"format": "csv"}, lambda t: ("id\ttext\n" + "".join(f'"\t{x}\n' for x in t)).encode(),
        lambda d: [line.split("\t")[1] for line in d.decode().removesuffix("\n").split("\n")[1:]], flat=True,
    ),
    "parquet": Format(
        "parquet", {"format": "parquet"}, _parquet,
        lambda d: pq.read_table(io.BytesIO(d))["text"].to_pylist(),
    ),
}  # fmt: skip

PACKINGS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}


def refuse(error: RecordError) -> None:
    """Take no bad record."""
    raise error


def pieces_of(path: Path | str, piece_bytes: int = WHOLE, **options: Any) -> tuple[CorpusConfig, list[Piece]]:
    """A corpus of the files that a path or glob means, and its pieces."""
    corpus = CorpusConfig(name="corpus", paths=[str(path)], **options)
    return corpus, find_pieces(Store(f"memory://{uuid.uuid4().hex}"), corpus, piece_bytes)


def read_all(path: Path | str, piece_bytes: int = WHOLE, **options: Any) -> list[str]:
    """Every document, the parts of a large one put together."""
    corpus, pieces = pieces_of(path, piece_bytes, **options)
    texts, parts = [], b""
    for piece in pieces:
        for document in read_documents(piece, corpus, refuse):
            parts += document.text
            if document.ends:
                texts.append(parts.decode())
                parts = b""
    assert not parts, "the last part of a document is missing"
    return texts


def not_utf8_column(texts: list[bytes]) -> pa.Array:
    """A column of strings whose bytes are not checked, as other programs may write it."""
    ends = pa.array(np.cumsum([0, *map(len, texts)]), pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), len(texts), [None, ends, pa.py_buffer(b"".join(texts))])
