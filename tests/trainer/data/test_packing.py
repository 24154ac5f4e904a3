"""Short samples in windows of one size."""

import random

import numpy as np
import pytest

from trainer.data.packing import Packing, one_each, pack


def lengths_of(*lengths: int) -> np.ndarray:
    return np.array(lengths, dtype=np.int64)


def windows_of(packing: Packing) -> list[list[int]]:
    return [packing.window(number).tolist() for number in range(len(packing))]


def best_fit(lengths: list[int], size: int) -> list[list[int]]:
    """The same as it is written in books: look at every window."""
    windows: list[list[int]] = []
    order: list[int] = []  # windows, that which was touched last at the end
    for sample in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        room = {window: size - sum(lengths[each] for each in windows[window]) for window in order}
        fitting = [window for window in order if room[window] >= lengths[sample]]
        if fitting:
            least = min(room[window] for window in fitting)
            chosen = [window for window in fitting if room[window] == least][-1]
            order.remove(chosen)
        else:
            chosen = len(windows)
            windows.append([])
        windows[chosen].append(sample)
        order.append(chosen)
    return windows


def test_each_sample_goes_into_the_window_that_it_fills_best() -> None:
    assert windows_of(pack(lengths_of(4, 8, 1, 4, 2, 1), 10)) == [[1, 2, 5], [0, 3, 4]]
    assert pack(lengths_of(4, 8, 1, 4, 2, 1), 10).fill == 1.0


@pytest.mark.parametrize("seed", range(6))
def test_it_is_best_fit_decreasing(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([7, 32, 100])
    lengths = [draw.randint(1, size) for _ in range(200)]
    packing = pack(lengths_of(*lengths), size)
    assert windows_of(packing) == best_fit(lengths, size)
    assert sorted(packing.samples.tolist()) == list(range(200))
    assert packing.sums(lengths_of(*lengths)).max() <= size
    assert packing.fill == pytest.approx(sum(lengths) / (size * len(packing)))


def test_a_window_for_each_is_of_the_same_form() -> None:
    lengths = lengths_of(3, 1, 2)
    packing = one_each(lengths, 4)
    assert windows_of(packing) == [[0], [1], [2]]
    assert packing.sums(lengths).tolist() == [3, 1, 2] and packing.fill == 0.5


def test_nothing_is_packed_into_nothing() -> None:
    assert len(pack(lengths_of(), 8)) == 0 and pack(lengths_of(), 8).sums(lengths_of()).tolist() == []


def test_what_is_longer_than_a_window_is_refused() -> None:
    for lengths in ((3, 9), (0, 3)):
        with pytest.raises(ValueError, match="expected 1 to 8"):
            pack(lengths_of(*lengths), 8)


def test_many_samples_fill_almost_all_of_the_room() -> None:
    lengths = np.random.default_rng(0).integers(1, 1500, 200_000)
    packing = pack(lengths, 2048)
    assert packing.fill > 0.99
