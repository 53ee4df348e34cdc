"""Means of earlier results: only searches reach the summarizer, whatever other tools are called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from treadle.core.runs.address import Address
from treadle.tasks.estimate.measured import mean_of_records, measured

ADDRESS = Address.parse("1/rollouts@base")
ITEM: Any = SimpleNamespace(address=ADDRESS, stage=SimpleNamespace(name="rollouts"))


def run_with(**metrics: Any) -> Any:
    counts = {"num_rollouts": 2, "num_turns": 8, "prompt_tokens": 100, "completion_tokens": 10, "calls_executed": 6}
    summarizer = {"summarizer_prompt_tokens": 40, "summarizer_completion_tokens": 4}
    record = SimpleNamespace(
        stage="rollouts", address=str(ADDRESS), imported_from=None, metrics={**counts, **summarizer, **metrics}
    )
    return SimpleNamespace(records=lambda: [record], attempts=lambda _: [])


def test_calls_of_the_summarizer_are_the_searches() -> None:
    tools = {
        "calc": {"requested": 4, "executed": 4, "failed": 0},
        "search": {"requested": 3, "executed": 2, "failed": 1},
    }
    found = mean_of_records(ITEM, run_with(tools=tools))
    assert found is not None and found.roles["summarizer"]["calls"] == 1.0 and found.roles["policy"]["calls"] == 4.0


@pytest.mark.parametrize("metrics", [{}, {"tools": {}}])
def test_metrics_of_another_version_are_not_used(metrics: dict[str, Any]) -> None:
    assert measured(ITEM, run_with(**metrics)) is None
