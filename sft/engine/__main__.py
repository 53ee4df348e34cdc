"""Run a command of the engine: `python -m treadle.sft.engine prepare|train|finish <job.json>`."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from treadle.core.engines.errors import Diverged, NothingLearned, is_out_of_memory
from treadle.core.engines.events import EventFile
from treadle.core.engines.export_model import BaseModelMissing
from treadle.core.errors import ConfigError
from treadle.core.registry import edited_code
from treadle.sft.engine.arguments import BadArguments
from treadle.sft.training_engine import SFT_ENGINES, SftEngine

_KINDS: dict[type[Exception], str] = {
    BadArguments: "arguments",
    ConfigError: "arguments",
    Diverged: "diverged",
    NothingLearned: "nothing_learned",
    BaseModelMissing: "no_model",
}

COMMANDS = {"prepare": "check", "train": "train", "finish": "finish"}
"""Command -> method of the engine."""


def main(name: str, job_path: str) -> int:
    """Run one command; on failure write an event `error`, and the traceback to the log."""
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    events = EventFile(Path(job["events"]))
    try:
        engine = _engine_of(job)
        # An edit during training must not keep its model from being written.
        if name != "finish" and (file := edited_code(job["engine"], engine)) is not None:
            raise BadArguments(f"{file} was edited after the run had started; undo it, or start a new run")
        getattr(engine, COMMANDS[name])(job, events)
    # Any error ends this process and must be reported with its kind.
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        if os.environ.get("RANK", "0") == "0" or _kind_of(error) == "no_memory":
            events.write("error", kind=_kind_of(error), message=f"{type(error).__name__}: {error}"[:2000])
        return 1
    return 0


def _engine_of(job: dict[str, Any]) -> SftEngine:
    folder = job.get("engine_folder")
    if folder and folder not in sys.path:
        # Last, so that no package of the engine is replaced.
        sys.path.append(folder)
    try:
        return SFT_ENGINES.parse(job["engine"])
    except ValueError as error:
        raise BadArguments(str(error)) from None


def _kind_of(error: Exception) -> str:
    if is_out_of_memory(error):
        return "no_memory"
    return next((kind for known, kind in _KINDS.items() if isinstance(error, known)), "other")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
