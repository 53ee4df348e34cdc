"""The pace of a stage as shown on the terminal and in the Prefect UI."""

from __future__ import annotations

import pytest

from treadle.tasks import progress_tracker as pace


@pytest.mark.parametrize(
    ("elapsed_s", "told"),
    [
        (10.0, "about 40 s left"),
        (100.0, "about 7 min left"),
        (3600.0, "about 4.0 h left"),
        (60000.0, "about 66.7 h left"),
    ],
)
def test_estimate_counts_from_this_attempt(monkeypatch: pytest.MonkeyPatch, elapsed_s: float, told: str) -> None:
    now = 5.0
    monkeypatch.setattr(pace.time, "monotonic", lambda: now)
    shown = pace.ProgressTracker()
    shown.start(1_100, 1_000, "rollouts")
    assert (shown.counts(), shown.estimate()) == ("1,000 of 1,100 rollouts", "")
    now += elapsed_s
    shown.advance(20, {"tokens_per_s": 310})
    shown.advance(0, {"tokens_per_s": 320, "rate": 2.55})
    assert shown.estimate() == told
    assert shown.facts() == ["tokens per s 320", "rate 2.5"]
    shown.advance(80, {})
    assert (shown.counts(), shown.estimate()) == ("1,100 of 1,100 rollouts", "")
