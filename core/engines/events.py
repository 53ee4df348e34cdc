"""Write the JSON lines in which a training process reports its progress, and the marker of a complete state.

Imported inside engine environments: only the standard library. `core.engines.event_log` reads the lines.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

STATE_MARKER = "treadle-complete"
"""File in the folder of a training's state, written once the whole state is on disk."""


class EventFile:
    """Writer of events: each is a whole line, which the operating system has when `write` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, event: str, **facts: Any) -> None:
        """Append one event with its facts."""
        line = json.dumps({"event": event, **facts}) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def mark_complete(folder: Path) -> None:
    """Write the marker of a state after flushing all files in its folder to disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
    (folder / STATE_MARKER).touch()
