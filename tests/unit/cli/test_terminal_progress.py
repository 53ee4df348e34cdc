"""Progress of a stage without updates: elapsed times continue."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from support.runs.processes import until

from treadle.cli import terminal
from treadle.cli.terminal import TerminalProgress
from treadle.tasks import progress_tracker as pace


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch, written: io.StringIO) -> io.StringIO:
    """Return a test's standard error: time is frozen, yet beats arrive immediately, and a line is due at each of
    them.
    """
    monkeypatch.setattr("sys.stderr", written)
    for module in (terminal, pace):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 100.0))
    monkeypatch.setattr(terminal, "PLAIN_INTERVAL_S", 0.0)
    monkeypatch.setattr(terminal, "_REFRESH_S", 0.001)
    return written


def shown(stderr: io.StringIO, words: str) -> None:
    until(lambda: words in stderr.getvalue(), words)


def test_stage_is_announced_before_its_total_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = watched(monkeypatch, io.StringIO())
    with TerminalProgress("1/sft") as progress:
        shown(stderr, "1/sft: in progress, 0 s so far\n")
        progress.start(24, 0, "steps")
        shown(stderr, "1/sft: 0 of 24 steps, 0 s so far\n")
        progress.advance(2, loss=0.5)
        shown(stderr, "1/sft: 2 of 24 steps, about 0 s left; loss 0.5\n")


def test_usual_duration_is_shown_until_there_is_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = watched(monkeypatch, io.StringIO())
    with TerminalProgress("1/sft", usual_s=170.0, later_stages_s=600.0) as progress:
        shown(stderr, "1/sft: in progress, about 3 min left; about 13 min left for all steps\n")
        progress.start(24, 0, "steps")
        shown(stderr, "1/sft: 0 of 24 steps, about 3 min left; about 13 min left for all steps\n")
        progress.advance(23)
        shown(stderr, "1/sft: 23 of 24 steps, about 0 s left; about 10 min left for all steps\n")


def test_quiet_progress_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = watched(monkeypatch, io.StringIO())
    with TerminalProgress("1/sft", quiet=True) as progress:
        progress.start(2, 1, "steps")
        progress.advance()
    assert not stderr.getvalue()


def test_progress_bar_moves_on_a_terminal_even_if_nothing_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = watched(monkeypatch, Screen())
    monkeypatch.setattr(terminal, "_BRIEF_S", 0.0)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    with TerminalProgress("1/rl@phase-1", usual_s=400.0, later_stages_s=120.0):
        shown(screen, "about 9 min left for all steps")
    assert "in progress" in screen.getvalue()


def test_instant_stage_leaves_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    with TerminalProgress("1/questions"):
        pass
    assert not screen.getvalue()


def log_times_in_an_hour(monkeypatch: pytest.MonkeyPatch, usual_s: float | None, finished_at_s: float) -> list[float]:
    """When lines are written for a stage that finishes one unit in an hour."""

    def wait(pause_s: float) -> bool:
        now[0] += pause_s
        if now[0] == finished_at_s:
            progress.advance()
        return now[0] > 3600.0

    now = [0.0]
    at: list[float] = []
    monkeypatch.setattr("sys.stderr", io.StringIO())
    for module in (terminal, pace):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    progress = TerminalProgress("1/sft", usual_s=usual_s)
    monkeypatch.setattr(progress, "_ended", SimpleNamespace(wait=wait, is_set=lambda: False))
    monkeypatch.setattr(progress, "_line", lambda text: at.append(now[0]))
    progress.start(3, 0, "steps")
    progress._refresh_loop()
    return at


def test_log_lines_become_rare_while_nothing_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    at = log_times_in_an_hour(monkeypatch, None, finished_at_s=1000.0)
    assert at[:8] == [10.0, 30.0, 70.0, 150.0, 310.0, 610.0, 910.0, 1000.0]
    assert at[8:12] == [1010.0, 1030.0, 1070.0, 1150.0], "a unit was finished: often again"
    assert at[-1] - at[-2] == 300.0


def test_with_a_known_usual_duration_a_line_is_logged_every_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    at = log_times_in_an_hour(monkeypatch, 170.0, finished_at_s=100.0)
    assert at[:7] == [10.0, 30.0, 60.0, 90.0, 100.0, 110.0, 130.0]
    assert at[-1] - at[-2] == 30.0
