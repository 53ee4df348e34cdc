"""What Prefect's loggers show of errors. With a server: `tests/flows/test_schedules.py`."""

from __future__ import annotations

import logging

import pytest

from treadle.core.errors import ConfigError
from treadle.tasks.prefect.brief_errors import BriefErrors


def _shown(error: Exception) -> str:
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 - as Prefect's engine does
        info = (type(caught), caught, caught.__traceback__)
    record = logging.LogRecord("n", logging.ERROR, "f", 1, "Encountered exception: %r", (error,), info)
    assert BriefErrors().filter(record)
    return logging.Formatter("%(message)s").format(record)


def test_error_for_users_is_one_line() -> None:
    assert _shown(ConfigError("config file a.toml\ndoes not exist")).splitlines() == [
        "ConfigError: config file a.toml does not exist"
    ]


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyError("it")])
def test_bug_keeps_its_traceback(error: Exception) -> None:
    assert "Traceback" in _shown(error)
