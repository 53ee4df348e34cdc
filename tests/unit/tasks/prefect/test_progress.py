"""Progress in the Prefect UI, if a post fails or the stage reports meanwhile."""

from __future__ import annotations

import uuid

import httpx
import pytest

from treadle.tasks.prefect import progress as progress_module
from treadle.tasks.prefect.progress import PrefectProgress
from treadle.tasks.progress_tracker import ProgressTracker


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Percentages that the server has got."""
    got: list[float] = []

    def create(kind: str, key: str, data: float, description: str) -> uuid.UUID:
        got.append(data)
        return uuid.uuid4()

    def update(artifact: uuid.UUID, percent: float, description: str) -> None:
        got.append(percent)

    monkeypatch.setattr(progress_module, "create_artifact", create)
    monkeypatch.setattr(progress_module, "update_progress", update)
    return got


def test_post_that_failed_is_repeated_although_nothing_has_changed(
    posted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a stage that ended during a hiccup would show as unfinished for good."""
    progress = PrefectProgress("key", "1/scores")
    progress.start(10, 4, "rows")
    progress._post_once()
    progress.advance(6)
    with monkeypatch.context() as patch:
        patch.setattr(progress_module, "update_progress", _fail)
        progress._post_once()
    progress._post_once()
    progress._post_once()
    assert posted == [40.0, 100.0]


def test_restart_without_a_total_does_not_end_the_posts(posted: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    totals = [10, 0]
    progress = PrefectProgress("key", "1/corpus")
    with monkeypatch.context() as patch:
        patch.setattr(ProgressTracker, "total", property(lambda _: totals.pop(0), lambda *_: None), raising=False)
        progress.start(10, 5, "documents")
        progress._post_once()
    progress.start(4, 3, "documents")
    progress._post_once()
    assert posted == [50.0, 75.0]


def _fail(artifact: uuid.UUID, percent: float, description: str) -> None:
    raise httpx.ConnectError("refused")
