"""The data order: every window once a pass, the wanted mixture, and no sign of order."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from trainer.data.order import BLOCK, RESOLUTION_BITS, CorpusOrder, DataOrder, permute, stable_key

SIZES = [
    *range(1, 20), *(2**power + step for power in (5, 6, 7, 8, 10, 12) for step in (-1, 0, 1)), 1000, 100_003,
]  # fmt: skip
TOKENS = [5_000_000, 700_000, 90_000, 1_000]


def shares(tokens: Sequence[float] = TOKENS, alpha: float = 0.7) -> list[float]:
    """The probabilities of corpora of these sizes."""
    weights = [size**alpha for size in tokens]
    return [weight / sum(weights) for weight in weights]


def make(windows: Sequence[int], weights: Sequence[float], seed: int = 0) -> DataOrder:
    return DataOrder(
        seed, [CorpusOrder(seed, f"corpus{number}", [count]) for number, count in enumerate(windows)], weights
    )


def drawn(order: DataOrder, corpus: int, count: int) -> list[int]:
    """The windows that one corpus gives, in the order of its draws."""
    corpora, windows = order.samples(0, count)
    return [int(window) for window in windows[corpora == corpus]]


@pytest.mark.parametrize("size", SIZES)
def test_a_permutation_reaches_every_place_once(size: int) -> None:
    for key in (0, 1, stable_key(size), 2**64 - 1):
        places = permute(np.arange(size, dtype=np.uint64), size, key)
        assert np.array_equal(np.sort(places), np.arange(size))


def test_a_permutation_of_a_range_beyond_memory_stays_inside_it_and_repeats_nothing() -> None:
    size = 10**15 + 37
    places = np.concatenate([np.arange(5000), size - 1 - np.arange(5000)]).astype(np.uint64)
    found = permute(places, size, 3)
    assert found.max() < size
    assert len(np.unique(found)) == len(places)


def test_a_permutation_depends_on_its_key_alone() -> None:
    places = np.arange(1000, dtype=np.uint64)
    assert np.array_equal(permute(places, 1000, 5), permute(places, 1000, 5))
    assert np.array_equal(permute(places[::-1], 1000, 5), permute(places, 1000, 5)[::-1])
    assert (permute(places, 1000, 5) == permute(places, 1000, 6)).sum() < 20


@pytest.mark.parametrize(
    ("windows", "draws"),
    [([1], 9), ([2], 99), ([3], 99), ([4096], 13_000), ([10_000], 21_000), ([7, 1, 350], 3000), ([1, 1, 1], 99),
     ([5000, 63, 64, 65], 15_000)],
)  # fmt: skip
def test_each_window_comes_once_a_pass_in_the_order_of_draws(windows: list[int], draws: int) -> None:
    order = make(windows, shares(windows), seed=4)
    for corpus, size in enumerate(windows):
        seen = drawn(order, corpus, draws)
        assert len(seen) >= 2 * size, "too few draws to see two passes"
        for start in range(0, len(seen) - size + 1, size):
            assert sorted(seen[start : start + size]) == list(range(size))


@pytest.mark.parametrize("start", [0, 1, BLOCK - 1, BLOCK, 123_456, 10**12])
def test_samples_are_the_same_however_they_are_asked_for(start: int) -> None:
    order = make([100_000, 3000, 17], shares([9e6, 2e5, 1e3]))
    whole = order.samples(start, 10_000)
    chunks, at = [], start
    for count in (1, 7, 500, BLOCK, 2 * BLOCK + 1):
        count = min(count, start + 10_000 - at)
        chunks.append(make([100_000, 3000, 17], shares([9e6, 2e5, 1e3])).samples(at, count))
        at += count
    for number in (0, 1):
        parts = np.concatenate([chunk[number] for chunk in chunks])
        assert np.array_equal(parts, whole[number][: len(parts)])
    assert len(whole[0]) == len(whole[1]) == 10_000
    assert order.samples(start + 3, 1)[1] == whole[1][3]


def test_windows_are_inside_their_corpus_however_far_the_run_goes() -> None:
    sizes = np.array([100_000, 3000, 17])
    for start in (10**12, 10**15):
        corpora, windows = make(sizes.tolist(), shares([9e6, 2e5, 1e3])).samples(start, 20_000)
        assert ((windows >= 0) & (windows < sizes[corpora])).all()


@pytest.mark.parametrize("start", [0, 777, 10**12])
def test_the_mixture_follows_the_power_of_the_sizes(start: int) -> None:
    probabilities = shares()
    corpora, _ = make([9000, 800, 70, 6], probabilities).samples(start, 50_000)
    counts = np.bincount(corpora, minlength=4)
    assert stats.chisquare(counts, np.array(probabilities) * 50_000).pvalue > 0.001


@pytest.mark.parametrize("weights", [shares(), [1, 1, 1], [0.5, 0.25, 0.25], [1e9, 1], [3, 1e-3, 5, 1e-6, 8]])
def test_at_every_blocks_end_each_corpus_has_had_its_share_to_within_a_few(weights: list[float]) -> None:
    blocks = 40
    corpora, _ = make([1000] * len(weights), weights).samples(0, blocks * BLOCK)
    for block in range(1, blocks + 1):
        counts = np.bincount(corpora[: block * BLOCK], minlength=len(weights))
        wanted = block * BLOCK * np.array(weights) / sum(weights)
        assert np.abs(counts - wanted).max() <= len(weights) + block * BLOCK * len(weights) / 2**RESOLUTION_BITS


@pytest.mark.parametrize("weights", [[1.0, 1e-12], [1e-12, 1.0], [1e-300, 1.0, 1e300], [1.0] * 200, [1e-12, 1e-12]])
def test_extreme_weights_give_samples_all_the_same(weights: list[float]) -> None:
    order = make([1000] * len(weights), weights)
    for start in (0, 10**12):
        corpora, windows = order.samples(start, 3 * BLOCK)
        assert ((corpora >= 0) & (corpora < len(weights))).all()
        assert ((windows >= 0) & (windows < 1000)).all()
    if len(weights) == 2 and weights[0] != weights[1]:
        assert np.bincount(order.samples(0, 10**5)[0], minlength=2).min() <= 1


@pytest.mark.parametrize("weights", [[1.0, 1e-12], [1e-12, 1.0], [1e-12, 1.0, 1e-12]])
def test_a_corpus_is_drawn_in_time_however_small_its_share(weights: list[float]) -> None:
    order = make([1000] * len(weights), weights)
    blocks = [order.samples(start, BLOCK)[0] for start in (0, 2**RESOLUTION_BITS - BLOCK)]
    assert set(np.concatenate(blocks).tolist()) == set(range(len(weights)))


def test_other_seeds_and_other_names_give_other_orders() -> None:
    first = make([1000], [1.0], seed=0).samples(0, 1000)[1]
    second = make([1000], [1.0], seed=1).samples(0, 1000)[1]
    renamed = DataOrder(0, [CorpusOrder(0, "other", [1000])], [1.0]).samples(0, 1000)[1]
    for other in (second, renamed):
        assert (first == other).sum() < 20
        assert abs(stats.spearmanr(first, other).statistic) < 0.15


@pytest.mark.parametrize("size", [1000, 4096, 10_007])
@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_a_pass_looks_random(size: int, seed: int) -> None:
    windows = np.array(drawn(make([size], [1.0], seed), 0, size), dtype=float)
    limit = 4 / size**0.5
    assert abs(stats.spearmanr(np.arange(size), windows).statistic) < limit
    for lag in (1, 2, 3, 16):
        assert abs(np.corrcoef(windows[:-lag], windows[lag:])[0, 1]) < limit
    counts = np.histogram2d(np.arange(size), windows, bins=8)[0].ravel()
    assert stats.chisquare(counts).pvalue > 1e-4


def test_corpora_are_mixed_inside_a_block_and_not_in_turns() -> None:
    corpora, _ = make([1000, 1000], [1.0, 1.0]).samples(0, 20 * BLOCK)
    changes = (corpora[1:] != corpora[:-1]).mean()
    assert abs(changes - 0.5) < 4 * 0.5 / (20 * BLOCK) ** 0.5


def test_the_order_of_a_seed_is_the_one_that_older_runs_began_with() -> None:
    order = DataOrder(7, [CorpusOrder(7, "code", [1000]), CorpusOrder(7, "prose", [200])], [0.7, 0.3])
    corpora, windows = order.samples(10**6, 6)
    assert (corpora.tolist(), windows.tolist()) == ([0, 1, 0, 0, 1, 0], [583, 92, 939, 862, 159, 38])


def test_the_order_is_the_same_however_python_rounds_sums() -> None:
    """The first share is halfway between two units, and the sums that `sum` gave before Python 3.12 change it."""
    weights = [0.13328761937461558, 0.24048022885358317, 0.17948430829182777, 0.26137201350866807]
    corpora, windows = make([1000] * 4, weights, seed=7).samples(2**31, 6)
    assert (corpora.tolist(), windows.tolist()) == ([1, 3, 0, 3, 1, 3], [198, 319, 528, 227, 217, 116])
