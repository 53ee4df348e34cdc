"""Sketches and bands against those of the library `datasketch`."""

from __future__ import annotations

import pytest
from datasketch import MinHash, MinHashLSH
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.datagen.questions.minhash import MinHasher, bands


@pytest.mark.parametrize("num_permutations", [1, 7, 128])
@settings(max_examples=60)
@given(items=st.lists(st.binary(max_size=20), max_size=30))
def test_sketches_match_the_library(num_permutations: int, items: list[bytes]) -> None:
    theirs = MinHash(num_perm=num_permutations, seed=1)
    theirs.update_batch(items)
    ours = MinHasher(num_permutations).sketch(items)
    assert ours.tobytes() == theirs.hashvalues.tobytes()


@pytest.mark.parametrize("threshold", [hundredth / 100 for hundredth in range(30, 98, 3)] + [0.85])
def test_bands_match_the_library(threshold: float) -> None:
    theirs = MinHashLSH(threshold=threshold, num_perm=128)
    assert bands(threshold, 128) == (theirs.b, theirs.r)
