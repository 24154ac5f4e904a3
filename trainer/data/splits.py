"""Data in splits: the files or data sets of each, an identity of their content, and their records."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import fsspec

from trainer.common.bad_records import BadRecords
from trainer.common.errors import CorpusError, RecordError, brief
from trainer.config.chat import ConversationsConfig
from trainer.config.corpora import CorpusConfig
from trainer.config.labelled import LabelledDataConfig, SplitsConfig
from trainer.data.pieces import Piece, RawFile, require_file
from trainer.data.raw_files import compression_of, csv_dialect, is_quoted, open_as, reading
from trainer.data.sources import find_pieces, find_sources
from trainer.data.tables import FORMATS, Reading, Record, Span, Table, open_loaded
from trainer.models.hub import cause_of, hub_reason, may_pass
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

if TYPE_CHECKING:
    from datasets import Dataset

TRAIN, VALIDATION, TEST = "train", "validation", "test"


@dataclass(frozen=True)
class Part:
    """A file, or a split of a data set: its name in messages, its path or loaded data, and the files behind it."""

    name: str
    path: str = ""
    loaded: "Dataset | None" = None
    files: tuple[RawFile, ...] = ()


class SplitSource(NamedTuple):
    """The parts of each split that exists, and a JSON-like value that changes whenever their content does.

    Without validation parts, the validation split is cut from train.
    """

    parts: dict[str, list[Part]]
    identity: Any

    @property
    def cut(self) -> bool:
        return VALIDATION not in self.parts


class SplitTexts(NamedTuple):
    """How to read the texts of a kind's files, given a job's `data`: curation searches for those used in evaluation."""

    fields: Callable[[Any], list[str]]
    """The fields that hold text."""
    read: Callable[[Any, str, Sequence[Part], str], Iterator[tuple[int, int, str]]]
    """The texts of a split's parts in one of these fields, each with the index of its part and of its record there,
    from 0. Raises as the job itself does.
    """
    plain: Callable[[Any], bool] = lambda data: False
    """Whether the texts are exactly what any other reader finds in these fields."""
    in_order: Callable[[Any], bool] = lambda data: False
    """Whether the records that are skipped depend on the order of a split's files."""


def bad_records(data: LabelledDataConfig | ConversationsConfig, split: str | None) -> BadRecords:
    """An empty count of bad rows for a split; `split` is None if the data set has only one."""
    return BadRecords(data.max_bad_records, f"data set {data.name!r}{f', {split} split' if split else ''}: ")


def find_splits(store: Store, data: SplitsConfig) -> SplitSource:
    """Find the data. The store caches the files' digests, so unchanged files are not read again.

    `datasets` downloads and caches a data set of the hub. Raises `CorpusError` for missing files or splits, and if the
    hub cannot be reached.
    """
    if data.source == "hub":
        return _find_hub(store, data)
    return _find_folder(store, data) if data.source == "disk" else _find_files(store, data)


def fetch_part(part: Part, folder: Path) -> Part:
    """The part with a local path; a remote file is copied into the folder, because it is read more than once."""
    if "://" not in part.path:
        return part
    target = folder / f"{len(list(folder.iterdir())):05d}-{part.path.rsplit('/', 1)[-1]}"
    with reading(part.path):
        fs, full = fsspec.url_to_fs(part.path)
        fs.get_file(full, str(target))
    return replace(part, path=str(target), files=tuple(file._replace(path=str(target)) for file in part.files))


class Columns(NamedTuple):
    """The columns of a part; if each record has its own, those of its first good record, and they are not `shared`.

    `features` is as in `Table`.
    """

    names: list[str]
    features: Callable[[], Mapping[str, Any]]
    shared: bool = True


def look_at_columns(part: Part, how: Reading) -> Columns:
    """Find the columns of a part; raises `CorpusError` if it is damaged or has no good record."""
    with _open(part, how) as table:
        if table.columns is not None:
            return Columns(table.columns, table.features)
        wrong: RecordError | None = None
        for record in table.records(()):
            if record.wrong is None:
                return Columns(list(record.values), table.features, shared=False)
            wrong = wrong or record.wrong
    raise wrong or RecordError(f"{part.name} holds no records")


def read_part(part: Part, how: Reading, wanted: Sequence[str]) -> Iterator[Record]:
    """The records of a part, with those of the wanted columns that it has.

    Raises `CorpusError` if it is damaged. If its files have changed since they were found, raises `ChangedFile`, at the
    end or instead of another error.
    """
    with _open(part, how) as table:
        try:
            yield from table.records(wanted)
        except Exception:
            _require_same(part)
            raise
        _require_same(part)


@contextmanager
def _open(part: Part, how: Reading) -> Iterator[Table]:
    with reading(part.name):
        if part.loaded is not None:
            yield open_loaded(part.name, part.loaded)
            return
        with open_as(how.format, part.path) as file:
            yield FORMATS[how.format](file, Span(part.name, part.path), how)


def _require_same(part: Part) -> None:
    for file in part.files:
        require_file(file)


def _find_files(store: Store, data: SplitsConfig) -> SplitSource:
    patterns = {split: paths for split, paths in _wanted(data).items() if paths}
    digests = {
        piece.path: piece.sha256 for piece in _pieces(store, data, [p for paths in patterns.values() for p in paths])
    }
    found = {
        split: [source.path for source in find_sources(_corpus(data, paths), f"{split} split of data set")]
        for split, paths in patterns.items()
    }

    def identity(path: str) -> list[Any]:
        dialect = csv_dialect(data, path) if isinstance(data, LabelledDataConfig) and data.source == "csv" else None
        return [digests[path], compression_of(path) is not None, dialect and [dialect["delimiter"], is_quoted(dialect)]]

    return SplitSource(
        parts={
            split: [Part(path, path, files=(RawFile(path, path, digests[path]),)) for path in paths]
            for split, paths in found.items()
        },
        identity={split: [identity(path) for path in paths] for split, paths in found.items()},
    )


def _find_hub(store: Store, data: SplitsConfig) -> SplitSource:
    name = f"{data.path}/{data.subset}" if data.subset else str(data.path)
    path = str(data.path).rstrip("/")
    files = _contents(_pieces(store, data, [f"{path}/**"])) if os.path.isdir(path) else []
    try:
        loaded = _load_hub(str(data.path), data.subset, files)
    except Exception as error:  # network, hub, script and format errors alike
        cause = cause_of(error)
        raise CorpusError(
            f"data set {name!r} cannot be loaded from the Hugging Face hub: {hub_reason(cause)}; check the name and "
            "the network, or use files (source: csv, jsonl, parquet) or a folder written by save_to_disk (source: "
            "disk)",
            may_pass(cause),
        ) from error
    splits = _choose(name, loaded, data)
    prints = {
        split: [fingerprint([files, chosen]) if files else loaded[chosen]._fingerprint for chosen in names]
        for split, names in splits.items()
    }
    return SplitSource(_loaded_parts(name, loaded, splits, ()), [data.path, data.subset, prints])


def _load_hub(path: str, subset: str | None, files: list[list[str]]) -> Any:
    """A data set of the hub, or the one of a local folder with these files. The library's cache recognises local files
    by their modification times, which a program can restore, and by a description.
    """
    import datasets

    if not files:
        return datasets.load_dataset(path, subset)
    try:
        return datasets.load_dataset(path, subset, description=fingerprint(files))
    except Exception:
        datasets.load_dataset(path, subset)  # without a description, its error lists the subsets
        raise


def _find_folder(store: Store, data: SplitsConfig) -> SplitSource:
    import datasets

    path = str(data.path).rstrip("/")
    # `datasets` writes its own cache files into the folder; they are not part of the data.
    pieces = [
        piece for piece in _pieces(store, data, [f"{path}/**"]) if not piece.key.rsplit("/", 1)[-1].startswith("cache-")
    ]
    try:
        loaded = datasets.load_from_disk(path)
    except Exception as error:  # each kind of wrong or damaged folder raises another type
        raise CorpusError(f"{path} cannot be read as a folder written by save_to_disk: {brief(error)}") from error
    sets = {TRAIN: loaded} if isinstance(loaded, datasets.Dataset) else loaded
    splits = _choose(path, sets, data)
    files = tuple(RawFile(piece.path, piece.path, piece.sha256) for piece in pieces)
    return SplitSource(_loaded_parts(path, sets, splits, files), [_contents(pieces), splits])


def _contents(pieces: Sequence[Piece]) -> list[list[str]]:
    return [[piece.key, piece.sha256] for piece in pieces]


def _choose(name: str, loaded: Any, data: SplitsConfig) -> dict[str, list[str]]:
    """The data set's splits that make up each split: as configured, else the split of the same name."""
    wanted = _wanted(data)
    named = {name for names in wanted.values() for name in names or ()}
    for split in (VALIDATION, TEST):
        if not wanted[split] and split in loaded and split not in named:
            wanted[split] = [split]
    chosen = {split: names for split, names in wanted.items() if names}
    for missing in (each for names in chosen.values() for each in names if each not in loaded):
        raise CorpusError(f"data set {name!r} has no split {missing!r}; it has {', '.join(loaded)}")
    return chosen


def _loaded_parts(
    name: str, loaded: Any, splits: dict[str, list[str]], files: tuple[RawFile, ...]
) -> dict[str, list[Part]]:
    return {
        split: [Part(f"{name}: {each}", loaded=loaded[each], files=files) for each in names]
        for split, names in splits.items()
    }


def _wanted(data: SplitsConfig) -> dict[str, list[str] | None]:
    return {TRAIN: data.train, VALIDATION: data.validation, TEST: data.test}


def _pieces(store: Store, data: SplitsConfig, paths: Sequence[str]) -> list[Piece]:
    """Every file as one piece, with its digest."""
    return find_pieces(store, _corpus(data, paths), sys.maxsize, what="data set")


def _corpus(data: SplitsConfig, paths: Sequence[str]) -> CorpusConfig:
    return CorpusConfig(name=data.name, paths=list(paths))
