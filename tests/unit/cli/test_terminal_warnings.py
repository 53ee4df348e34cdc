"""Warnings of a stage reach the terminal as harmless single lines, and not by the hundred."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator

import pytest

from treadle.agent.jobs import runner as job_runner
from treadle.cli import warnings
from treadle.cli.warnings import BURST, TerminalWarnings, show_warnings


@pytest.fixture
def shown() -> Iterator[TerminalWarnings]:
    logger = logging.getLogger("treadle")
    handler = show_warnings()
    yield handler
    logger.removeHandler(handler)


def test_warning_is_one_sanitized_line(shown: TerminalWarnings, capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("treadle.core.some")
    log.warning("the server %s\nsaid \x1b[31m%s", "a", "no\u202e")
    log.info("not this")
    log.error("nor this, which ends the command")
    assert capsys.readouterr().err == "warning: the server a said \\x1b[31mno\\u202e\n"


def test_repeated_warnings_are_counted_and_repeated_after_growing_pauses(
    shown: TerminalWarnings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(warnings.time, "monotonic", lambda: now)
    log = logging.getLogger("treadle.core.some")

    def told(count: int) -> list[str]:
        for number in range(count):
            log.warning("rollout %d is odd", number)
        return [line.removeprefix("warning: ") for line in capsys.readouterr().err.splitlines()]

    assert told(500) == [f"rollout {number} is odd" for number in range(BURST)]
    log.warning("another kind")
    assert capsys.readouterr().err == "warning: another kind\n"
    now += 11
    assert told(1) == [f"rollout 0 is odd (and {500 - BURST} more like it)"]
    now += 11
    assert told(1) == []
    now += 11
    assert told(3) == ["rollout 0 is odd (and 1 more like it)"]
    shown.report_omitted()
    assert capsys.readouterr().err == "warning: 2 more like these are in the log of the attempt\n"
    assert told(1) == ["rollout 0 is odd"]


def test_warnings_for_single_rollouts_stay_in_the_log(
    shown: TerminalWarnings, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are not printed, because the next line of the stage has their count."""
    said = [line for line in inspect.getsource(job_runner).splitlines() if "_log." in line and "pending" in line]
    messages = [match[1] for line in said if (match := re.search(r'"(.*?)"', line))]
    assert len(messages) == 2
    for message in messages:
        logging.getLogger(job_runner.__name__).warning(
            message.replace("%d", "%s").replace("%g", "%s"), "31", "rollouts", "5"
        )
    assert capsys.readouterr().err == "warning: 31 rollouts are pending, trying again in 5 s\n"
    shown.report_omitted()
    assert capsys.readouterr().err == ""


def test_the_handler_is_installed_once(shown: TerminalWarnings) -> None:
    assert show_warnings() is shown
