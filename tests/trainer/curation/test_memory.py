"""What is held at once for a large document, and for a large file of arrays, as a multiple of its size."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.curating import prose
from trainer.curation.measures import C4, Batch, Quality
from trainer.curation.units import is_intact, read_arrays, write_arrays
from trainer.data.readers import Document
from trainer.store.storage import Store


def ascii_prose(seed: int, words: int) -> str:
    return " ".join(word for word in prose(seed, words) if word.isascii())


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes that some work holds at once, besides what compiled code does."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("letter", "most"), [("e", 13), ("é", 15)])
def test_the_words_and_lines_of_a_large_document_take_a_few_times_its_size(letter: str, most: float) -> None:
    text = ascii_prose(3, 200_000).replace("e", letter).encode()
    for measure in (Quality(), C4()):
        measure(Batch([Document(text[:100], ends=True)]))  # what is loaded and compiled once

    def work() -> None:
        batch = Batch([Document(text, ends=True)])
        for measure in (Quality(), C4()):
            measure(batch)

    assert peak_of(work) < most * len(text)


def test_a_file_of_arrays_is_written_and_checked_without_further_copies(tmp_path: Path) -> None:
    store, array = Store(str(tmp_path / "store")), np.arange(6 * 10**6)
    write_arrays(store, "small.npz", {"numbers": array[:9]})
    assert is_intact(store, "small.npz")
    assert peak_of(lambda: write_arrays(store, "large.npz", {"numbers": array})) < 1.7 * array.nbytes
    assert peak_of(lambda: is_intact(store, "large.npz")) < 1.7 * array.nbytes
    (numbers,) = read_arrays(store, "large.npz", "numbers")
    assert np.array_equal(numbers, array)
