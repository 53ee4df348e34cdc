"""Fixtures and settings of all tests."""

from __future__ import annotations

import os
import sys

import hypothesis
import pytest
from support.schedule import SharedServers
from support.sweep import examples
from xdist.remote import Producer

# The duration of an example only depends on the machine.
hypothesis.settings.register_profile("untimed", deadline=None, max_examples=examples(100))
hypothesis.settings.load_profile("untimed")

# pytest imports readline, which exports the size of a terminal to all children, pytest's own workers included: views
# would be cut to 80 columns there, and not where tests run in one process.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)

# Tests start hundreds of processes. Without compiled files each of them compiles Treadle again, a third of its time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SharedServers | None:
    """Refine `--dist loadfile`."""
    return SharedServers(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests marked `sweep` unless TREADLE_SWEEP is set: they repeat a promise that another test shows."""
    if os.environ.get("TREADLE_SWEEP"):
        return
    swept = [item for item in items if item.get_closest_marker("sweep")]
    if swept:
        config.hook.pytest_deselected(items=swept)
        items[:] = [item for item in items if not item.get_closest_marker("sweep")]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With TREADLE_FAIL_ON_SKIP set, a skipped test fails the whole run: nothing may go unchecked in CI.

    Tests marked `may_skip` are the exception.
    """
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    if os.environ.get("TREADLE_FAIL_ON_SKIP") and any("may_skip" not in report.keywords for report in skipped):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line("skipped tests count as failures here", red=True)
