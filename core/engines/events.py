"""JSON lines through which a training process tells Treadle what goes on, and the marker of a complete state.

Imported inside engine environments: the standard library only. The other end is `core.engines.event_log`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

STATE_MARKER = "treadle-complete"
"""File in the folder of a training's state, written when all of the state is on the disk."""


class EventFile:
    """Appends events, each a whole line that is with the operating system when `write` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, event: str, **facts: Any) -> None:
        """Append one event."""
        line = json.dumps({"event": event, **facts}) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def mark_complete(folder: Path) -> None:
    """Write the marker of a state after what is in its folder has reached the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
    (folder / STATE_MARKER).touch()
