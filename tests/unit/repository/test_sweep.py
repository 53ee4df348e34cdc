"""CI runs a sample of some parameters, and never none of them."""

from __future__ import annotations

import pytest
from support.sweep import sampled


def test_only_kept_parameters_run_in_ci() -> None:
    first, second, pair = sampled(["a", "b", ("c", 1)], ["a"])
    assert first == "a"
    assert second == pytest.param("b", marks=pytest.mark.sweep)
    assert pair == pytest.param("c", 1, marks=pytest.mark.sweep)


def test_a_sample_without_parameters_is_an_error() -> None:
    with pytest.raises(ValueError, match="no parameter is left for CI"):
        sampled(["a"], ["b"])
