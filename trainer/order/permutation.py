"""Permutations of any range that are computed, not stored, and the keys that choose among them."""

import hashlib

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

FEISTEL_ROUNDS = 6


def permute(places: U64, size: int, key: int) -> U64:
    """A keyed permutation of range(size), applied to an array of places.

    A Feistel network over the next power of four, walked until the value falls inside the range (Black and Rogaway,
    "Ciphers with Arbitrary Finite Domains", 2002).
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    keys = [np.uint64(stable_key(key, round_number)) for round_number in range(FEISTEL_ROUNDS)]
    values = places.copy()
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        left, right = values[outside] >> half, values[outside] & mask
        for round_key in keys:
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
        values[outside] = (left << half) | right
        outside = values >= np.uint64(size)
    return values


def stable_key(*parts: object) -> int:
    """64 bits decided by the parts, the same in every process and on every machine."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix(values: U64) -> U64:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit changes half of the output bits."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
