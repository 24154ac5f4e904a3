"""The order of labelled examples."""

import numpy as np
import pytest

from trainer.data.order import EpochOrder


def lengths_of(size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(5, 120, size)


def epoch(order: EpochOrder, number: int, size: int, batch: int) -> list[np.ndarray]:
    steps = -(-size // batch)
    return [order.examples(number * steps + step) for step in range(steps)]


@pytest.mark.parametrize("by_length", [True, False])
@pytest.mark.parametrize(("size", "batch"), [(3668, 8), (1000, 16), (7, 8), (401, 1), (1, 4)])
def test_every_epoch_takes_each_example_exactly_once(size: int, batch: int, by_length: bool) -> None:
    order = EpochOrder(3, lengths_of(size), batch, by_length)
    for number in range(3):
        batches = epoch(order, number, size, batch)
        assert sorted(np.concatenate(batches).tolist()) == list(range(size))
        assert sorted(map(len, batches))[1:] == [batch] * (len(batches) - 1), "only one batch is smaller"


@pytest.mark.parametrize("by_length", [True, False])
def test_epochs_and_seeds_differ_and_a_batch_depends_on_its_number_alone(by_length: bool) -> None:
    lengths = lengths_of(500)
    first, again, other = (EpochOrder(seed, lengths, 8, by_length) for seed in (1, 1, 2))
    assert [b.tolist() for b in epoch(first, 0, 500, 8)] != [b.tolist() for b in epoch(first, 1, 500, 8)]
    assert [b.tolist() for b in epoch(first, 0, 500, 8)] != [b.tolist() for b in epoch(other, 0, 500, 8)]
    assert first.examples(97).tolist() == again.examples(97).tolist()
    assert first.examples(10**6).shape == (8,)


def test_batches_of_like_lengths_need_little_padding() -> None:
    lengths = lengths_of(3668)
    waste = {}
    for by_length in (True, False):
        batches = epoch(EpochOrder(0, lengths, 8, by_length), 0, 3668, 8)
        read = sum(len(batch) * lengths[batch].max() for batch in batches)
        waste[by_length] = read / lengths.sum() - 1
    assert waste[True] < 0.12 < 0.5 < waste[False]


def test_long_and_short_batches_come_in_no_order_of_length() -> None:
    lengths = lengths_of(3668)
    means = [lengths[batch].mean() for batch in epoch(EpochOrder(0, lengths, 8, True), 0, 3668, 8)]
    correlation = np.corrcoef(means, np.arange(len(means)))[0, 1]
    assert abs(correlation) < 0.15
    halves = np.mean(means[: len(means) // 2]), np.mean(means[len(means) // 2 :])
    assert abs(halves[0] - halves[1]) < 6


@pytest.mark.parametrize("lengths", [np.full(2000, 64), np.random.default_rng(0).integers(5, 15, 2000)])
def test_texts_of_one_length_are_mixed_however_the_file_is_sorted(lengths: np.ndarray) -> None:
    labels = np.arange(2000) // 1000
    first, second = (epoch(EpochOrder(0, lengths, 8, True), number, 2000, 8) for number in (0, 1))
    assert np.mean([len(set(labels[batch].tolist())) == 1 for batch in first]) < 0.05
    assert len({frozenset(b.tolist()) for b in first} & {frozenset(b.tolist()) for b in second}) < 5


def test_the_order_of_a_seed_is_the_one_that_older_runs_began_with() -> None:
    lengths = np.arange(100) * 7 % 31
    sorted_by_length, permuted = (EpochOrder(3, lengths, 8, by_length) for by_length in (True, False))
    assert sorted_by_length.examples(40).tolist() == [23, 85, 54, 45, 14, 5, 27, 89]
    assert sorted_by_length.examples(47).tolist() == [84, 53, 66, 88, 48, 70, 61, 92]
    assert permuted.examples(40).tolist() == [79, 39, 15, 99, 81, 41, 5, 9]
