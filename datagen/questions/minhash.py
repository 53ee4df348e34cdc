"""Compute MinHash sketches of sets, and the bands that LSH divides them into.

See chapter 3 of Leskovec, Rajaraman and Ullman, Mining of Massive Datasets. Sketches and bands are those of the library
`datasketch`, with which tests compare them; its import takes longer than the start of most runs, because it also
imports SciPy and clients of databases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

_LARGEST = np.uint32(2**32 - 1)


class MinHasher:
    """Random permutations of 32-bit hash values; the sketch of a set has the smallest value under each of them."""

    def __init__(self, num_permutations: int) -> None:
        draws = np.random.RandomState(1)
        # Odd factors make `factor * value + offset` modulo 2^32 a permutation.
        factors = draws.randint(0, 1 << 31, num_permutations, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
        self._factors = factors
        self._offsets = draws.randint(0, 1 << 32, num_permutations, dtype=np.uint32)

    def sketch(self, items: Iterable[bytes]) -> npt.NDArray[np.uint32]:
        """Return the sketch of a set, one value per permutation."""
        hashes = np.frombuffer(b"".join(hashlib.sha1(item).digest()[:4] for item in items), dtype="<u4")
        mixed = _mix(hashes.astype(np.uint32))[:, None]
        values: npt.NDArray[np.uint32] = (mixed * self._factors + self._offsets).min(axis=0, initial=_LARGEST)
        return values


def _mix(values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Apply the finalizer of MurmurHash3, which spreads hash values."""
    values = (values ^ (values >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    values = (values ^ (values >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return values ^ (values >> np.uint32(16))


def bands(threshold: float, num_permutations: int) -> tuple[int, int]:
    """Return the number of bands and their size for pairs whose Jaccard similarity is at least `threshold`.

    They minimise the mean of two areas: of false positives below the threshold, and of false negatives above it.
    """
    # Gauss-Legendre quadrature is exact: the integrands are polynomials of degree `num_permutations` at most.
    nodes, weights = np.polynomial.legendre.leggauss(num_permutations // 2 + 1)
    below, above = threshold * (1 + nodes) / 2, threshold + (1 - threshold) * (1 + nodes) / 2

    def error(count: int, size: int) -> float:
        positives = threshold * (weights @ (1 - (1 - below**size) ** count))
        negatives = (1 - threshold) * (weights @ (1 - above**size) ** count)
        return float(positives + negatives)

    choices = [
        (count, size) for count in range(1, num_permutations + 1) for size in range(1, num_permutations // count + 1)
    ]
    return min(choices, key=lambda choice: error(*choice))
