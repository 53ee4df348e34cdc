"""Run a command in an engine's process: `python -m treadle.rl.engine.dpo check|train|finish <job.json>`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from treadle.core.engines.events import EventFile
from treadle.rl.dpo.engine import ENGINE
from treadle.rl.engine.errors import BadPlan, report

_COMMANDS = ("check", "train", "finish")


def main(name: str, job_path: str) -> int:
    """Run one command and return the exit code.

    An error is logged with its traceback and written as the event `error`.
    """
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    # With several training processes, each is started again with this path.
    job["path"] = str(Path(job_path).absolute())
    events = EventFile(Path(job["events"]))
    try:
        if name not in _COMMANDS:
            raise BadPlan(f"unknown command {name!r}")
        getattr(ENGINE, name)(job, events)
    # Any error ends this process and must be reported with its kind.
    except Exception as error:  # noqa: BLE001
        report(error, events, int(os.environ.get("RANK", "0")))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
