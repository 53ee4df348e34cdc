"""Refusals of the section `[pools]`."""

from __future__ import annotations

import pytest

from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.datagen.pools.settings import PoolHints


@pytest.mark.parametrize("domain", ["math", "qa", "choice"])
@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ("Wait.</think><answer>", "contains the marker </think>"),
        ("So <search>x", "<search>"),
        (" \n", "a hint is empty"),
    ],
)
def test_hint_is_plain_text_within_a_thought(domain: str, hint: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(PoolHints, data={domain: ["Think again.", hint]})
    assert getattr(load_config(PoolHints, data={domain: ["Is 1 < 2 > 0?"]}), domain) == ("Is 1 < 2 > 0?",)
