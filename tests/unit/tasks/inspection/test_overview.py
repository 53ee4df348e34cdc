"""The run that commands take if none is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.core.runs.run import Run
from treadle.tasks.inspection.overview import last_run


def test_last_run_is_the_one_that_was_created_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert last_run(tmp_path) is None
    for run_id, day in (("b", 2), ("c", 3), ("a", 1)):
        monkeypatch.setattr("treadle.core.runs.run.utc_now", lambda day=day: f"2026-01-0{day}T00:00:00.000+00:00")
        Run.create(tmp_path, run_id, {}, {})
    assert last_run(tmp_path) == "c"
    (tmp_path / "runs/c/run.json").write_text("damaged")
    assert last_run(tmp_path) == "b"
