"""Runs for notebooks and scripts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.tasks.analysis.run_results import RunResults

__all__ = ["open_run"]


def open_run(name: str, root: str | Path = "outputs") -> RunResults:
    """Open a run for reading: its rollouts, questions and other tables, trajectories, figures of its report.

    `root` is a folder, or the URL of an object store. Raises RunError, listing the runs there, if it does not exist.
    """
    # Late: engines import this package for code of users, and have none of what analysis needs.
    from treadle.core.runs.run import Run
    from treadle.tasks.analysis.run_results import RunResults

    return RunResults(Run.open(root, name))
