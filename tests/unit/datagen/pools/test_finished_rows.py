"""Rows of finished questions, from the journal of a run."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.agent.jobs.keys import QuestionJob
from treadle.datagen.pools.run import PoolsRun


def test_pool_that_was_finished_before_rows_named_environments_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job has the same key, so the answers that were paid for are used."""
    stored = {"question": {"dataset": "old"}, "pool": [{"rollout_key": "k", "dataset": "old"}]}
    monkeypatch.setattr(PoolsRun, "__init__", lambda self: None)
    monkeypatch.setattr(PoolsRun, "_stored", lambda self, key: stored)
    made: dict[str, Any] = PoolsRun()._finished_rows(  # type: ignore[call-arg]
        QuestionJob("key", {"dataset": "new", "environment": "default"})
    )
    assert made == {
        "question": {"dataset": "new"},
        "pool": [{"rollout_key": "k", "dataset": "new", "environment": "default"}],
    }
