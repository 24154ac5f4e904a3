"""Windows: the same as a plain loop cuts, through any number of shards."""

import numpy as np
import pytest

from tests.trainer.shard_files import Arrays
from trainer.data.shard_files import Windows, count_windows

TOKENS = [0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100, 257]
SHAPES = [(2, 1), (2, 2), (8, 1), (8, 3), (8, 7), (8, 8), (16, 5), (100, 100), (100, 1), (257, 64)]


def plain_loop(tokens: np.ndarray, context: int, stride: int) -> list[list[int]]:
    """A window every `stride` tokens while more than one window is left, then the last `context` tokens."""
    if len(tokens) < context:
        return []
    windows, start = [], 0
    while start < len(tokens) - context:
        windows.append(tokens[start : start + context].tolist())
        start += stride
    return [*windows, tokens[len(tokens) - context :].tolist()]


@pytest.mark.parametrize(("context", "stride"), SHAPES)
def test_windows_are_those_of_a_plain_loop(context: int, stride: int) -> None:
    for count in TOKENS:
        tokens = np.arange(count, dtype=np.uint16) * 3
        expected = plain_loop(tokens, context, stride)
        windows = Windows(Arrays([tokens]), context, stride)
        assert len(windows) == count_windows(count, context, stride) == len(expected), count
        assert [windows.read(number).tolist() for number in range(len(windows))] == expected, count


@pytest.mark.parametrize(("context", "stride"), SHAPES)
def test_windows_run_through_all_shards_and_cross_none(context: int, stride: int) -> None:
    shards = [np.arange(count, dtype=np.uint32) + 1000 * number for number, count in enumerate(TOKENS)]
    expected = [window for shard in shards for window in plain_loop(shard, context, stride)]
    windows = Windows(Arrays(shards), context, stride)
    assert [windows.read(number).tolist() for number in range(len(windows))] == expected


def test_a_window_does_not_change_the_shard_it_was_read_from() -> None:
    shard = np.arange(100, dtype=np.uint16)
    window = Windows(Arrays([shard]), 10, 10).read(2)
    window[:] = 0
    assert shard.tolist() == list(range(100))
    assert window.dtype == np.int64
