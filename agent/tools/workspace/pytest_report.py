"""Pytest plugin that records which hidden tests passed; it runs with the tests and imports nothing of Treadle.

Before any file of the workspace is imported, it deletes the file with the secret number of its report, and removes from
the environment the variables with which the tests were started. So programs that tests start get neither.
"""

from __future__ import annotations

import json
import os
from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _take_number() -> str:
    path = os.path.join(_FOLDER, "number")
    with open(path) as file:
        number = file.read()
    os.remove(path)
    packages = os.environ.pop("TREADLE_PYTHONPATH", "")
    for name in ("PYTHONSAFEPATH", "PYTHONPATH", "PYTEST_ADDOPTS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        os.environ.pop(name, None)
    if packages:
        os.environ["PYTHONPATH"] = packages
    return number


def _recorder() -> Any:
    # In variables of a function: no attribute of a module leads to the number.
    number, rename = _take_number(), os.replace
    collected: list[str] = []
    failed: set[str] = set()
    passed: set[str] = set()

    class Recorder:
        def pytest_collection_finish(self, session: Any) -> None:
            collected.extend(item.nodeid for item in session.items)

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.outcome != "passed" or hasattr(report, "wasxfail"):
                failed.add(report.nodeid)
            elif report.when == "call":
                passed.add(report.nodeid)

        def pytest_sessionfinish(self, session: Any, exitstatus: Any) -> None:
            tests = {name: name in passed and name not in failed for name in collected}
            path = os.path.join(_FOLDER, "report.json")
            with open(f"{path}.new", "w") as file:
                json.dump({"number": number, "exit": int(exitstatus), "tests": tests}, file)
            rename(f"{path}.new", path)

    return Recorder()


def _configure() -> Any:
    # Take the number now, because pytest imports conftest files before it calls this hook.
    recorder = _recorder()

    def pytest_configure(config: Any) -> None:
        config.pluginmanager.register(recorder, "treadle_recorder")

    return pytest_configure


pytest_configure = _configure()
"""Hook that registers the recorder."""
