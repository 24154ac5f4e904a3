"""The order of one corpus's windows with a locality: each once a pass, from few shards at a time."""

import numpy as np
import pytest

from trainer.data.order import CorpusOrder

COUNTS = [7, 0, 30, 1, 12, 0, 0, 25, 3, 9, 40]
PASS = sum(COUNTS)
SHARD_OF = np.repeat(np.arange(len(COUNTS)), COUNTS)


def turns(start: int, count: int) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.uint64)


@pytest.mark.parametrize("locality", [None, 1, 2, 3, 11, 99])
def test_each_window_comes_once_a_pass(locality: int | None) -> None:
    order = CorpusOrder(3, "code", COUNTS, locality)
    passes = [order.windows(turns(number * PASS, PASS)).tolist() for number in range(3)]
    assert all(sorted(windows) == list(range(PASS)) for windows in passes)
    assert passes[0] != passes[1] != passes[2]


@pytest.mark.parametrize("locality", [None, 1, 3])
def test_windows_are_the_same_however_they_are_asked_for(locality: int | None) -> None:
    whole = CorpusOrder(3, "code", COUNTS, locality).windows(turns(50, 3 * PASS))
    parts = [CorpusOrder(3, "code", COUNTS, locality).windows(turns(50 + at, 1))[0] for at in range(3 * PASS)]
    assert whole.tolist() == parts


@pytest.mark.parametrize("locality", [1, 2, 4])
def test_only_the_shards_of_a_group_are_read_at_a_time_and_they_change_from_pass_to_pass(locality: int) -> None:
    order = CorpusOrder(3, "code", COUNTS, locality)
    shards = SHARD_OF[order.windows(turns(0, 2 * PASS))]
    last = {(number // PASS, shard): number for number, shard in enumerate(shards)}
    first = {(number // PASS, shard): number for number, shard in reversed([*enumerate(shards)])}
    for number in range(2 * PASS):
        of_pass = number // PASS
        open_now = [s for p, s in first if p == of_pass and first[p, s] <= number <= last[p, s]]
        assert len(open_now) <= locality
    assert list(dict.fromkeys(shards[:PASS])) != list(dict.fromkeys(shards[PASS:]))


@pytest.mark.parametrize("locality", [None, 1, 3])
def test_the_shards_named_are_those_that_are_read_and_those_that_come_next(locality: int | None) -> None:
    order = CorpusOrder(3, "code", COUNTS, locality)
    for start in range(0, 2 * PASS, 5):
        named = order.shards(start, start + 9)
        assert len(set(named)) == len(named)
        read = list(dict.fromkeys(SHARD_OF[order.windows(turns(start, 10))]))
        assert set(read) <= set(named)
        if locality == 1:
            following = next(shard for shard in SHARD_OF[order.windows(turns(start + 10, PASS))] if shard != read[-1])
            assert following in named
            assert len(named) <= len(read) + 1
    assert order.shards(3, 4) is order.shards(3, 5)


def test_a_group_mixes_the_windows_of_its_shards() -> None:
    shards = np.repeat(np.arange(8), 100)[CorpusOrder(0, "code", [100] * 8, 4).windows(turns(0, 400))]
    chunks = [len(set(shards[at : at + 40])) for at in range(0, 400, 40)]
    assert min(chunks) == 4


def test_ten_thousand_shards_and_a_late_turn_are_no_obstacle() -> None:
    order = CorpusOrder(0, "code", [10**7] * 10_000, 16)
    (window,) = order.windows(turns(10**13, 1))
    assert window // 10**7 in order.shards(10**13, 10**13)
    assert len(order.shards(10**13, 10**13)) == 32


def test_the_order_of_a_seed_is_the_one_that_older_runs_began_with() -> None:
    order = CorpusOrder(7, "code", COUNTS, 3)
    assert order.windows(turns(2 * PASS + 30, 10)).tolist() == [63, 71, 51, 54, 66, 49, 52, 30, 23, 12]
    assert order.windows(turns(2 * PASS + 80, 8)).tolist() == [102, 110, 89, 114, 78, 106, 109, 105]


def test_the_windows_of_one_group_come_in_another_order_in_each_pass() -> None:
    order = CorpusOrder(7, "code", [500], 1)
    passes = [order.windows(turns(number * 500, 500)).tolist() for number in range(3)]
    assert passes[0] != passes[1] != passes[2] != passes[0]
