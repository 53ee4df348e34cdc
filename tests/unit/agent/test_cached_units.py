"""Names of the cached units of a rollout."""

from __future__ import annotations

import pytest

from treadle.agent.cached_units import answer_unit, asked_role, asked_unit, call_unit


@pytest.mark.parametrize("role", ["human", "second-human", "ask/x"])
@pytest.mark.parametrize("scope", ["", "restart-3/"])
def test_role_is_read_from_the_unit_of_its_answer(role: str, scope: str) -> None:
    assert asked_role(scope + asked_unit(role, 12)) == role


@pytest.mark.parametrize("unit", [answer_unit(0), call_unit(3), "outcome", "void-1", "restart-1/llm-0", "task/a-1"])
def test_other_units_have_no_role(unit: str) -> None:
    assert asked_role(unit) is None
