"""JSON lines through which a process of the engine tells Treadle what goes on."""

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
        self._path = path

    def write(self, event: str, **facts: Any) -> None:
        """Append one event."""
        line = json.dumps({"event": event, **facts}) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
