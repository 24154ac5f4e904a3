"""Which example of an evaluation set each hash is of that is looked for, and how many examples each of its files has.

by words   int64, for each hash, in their order, the first example that has it: its file's number << 32 | its record's
sha256     of each file; a file is one of these for each of its fields that holds text
field      that field
texts      how many there are in it
too_short  how many of these have fewer than `least_words` words, and are not looked for
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.curation.arrays import Arrays, read_all, read_arrays
from trainer.curation.characters import Hashes
from trainer.store.storage import Store

FILES = ("sha256", "field", "texts", "too_short")
RECORD_BITS = 32


class ExampleFile(NamedTuple):
    """A field of a file of an evaluation set: how many texts it holds, and how many of them are too short."""

    sha256: str
    field: str
    texts: int
    too_short: int


class Origin(NamedTuple):
    """An example by its file's SHA-256, the field that holds its text, and its record's number in the file, from 1."""

    sha256: str
    field: str
    number: int


def examples_key(key: str) -> str:
    """Where it is kept, beside the hashes under `key`."""
    return f"{key.removesuffix('.npz')}-examples.npz"


def example_numbers(files: NDArray[np.int64], records: NDArray[np.int64]) -> NDArray[np.int64]:
    """What stands for the examples that some records of some files are."""
    return (files << RECORD_BITS) | records


def example_of(numbers: NDArray[np.int64], hashes: Hashes, hashed: np.uint64) -> tuple[int, int]:
    """The first example, by its file and its record, of an n-gram's hash, which is one of these."""
    file, record = divmod(int(numbers[np.searchsorted(hashes, hashed)]), 1 << RECORD_BITS)
    return file, record


def pack_examples(examples: dict[int, NDArray[np.int64]], files: list[ExampleFile]) -> Arrays:
    """The arrays of a file."""
    columns = {name: np.array([getattr(file, name) for file in files]) for name in FILES}
    return {**{str(length): numbers for length, numbers in examples.items()}, **columns}


def read_files(store: Store, key: str) -> list[ExampleFile]:
    """The files whose hashes are kept under `key`."""
    columns = read_arrays(store, examples_key(key), *FILES)
    return [ExampleFile(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def read_examples_of(store: Store, key: str, lengths: Iterable[int]) -> dict[int, NDArray[np.int64]]:
    """What stands for the first example of each hash that is kept under `key`, by the length of the n-grams."""
    return dict(zip(lengths, read_arrays(store, examples_key(key), *map(str, lengths)), strict=True))


class Origins:
    """Where hashes that are kept under a key come from. Raises `StorageError` if that is not in the store."""

    def __init__(self, store: Store, key: str, hashes: dict[int, Hashes]) -> None:
        self.arrays: dict[str, NDArray[Any]] = read_all(store, examples_key(key))
        self.hashes = hashes

    def find(self, length: int, hashed: np.uint64) -> Origin:
        """The first example that has an n-gram of so many words, by its hash, which is one of those looked for."""
        file, record = example_of(self.arrays[str(length)], self.hashes[length], hashed)
        return Origin(str(self.arrays["sha256"][file]), str(self.arrays["field"][file]), record + 1)
