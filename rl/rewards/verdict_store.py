"""Store verdicts of models in files, so that a resumed training does not pay for them again."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any, Generic, TypeVar

V = TypeVar("V")
"""Type of the verdicts; it must be JSON-able."""


class VerdictStore(Generic[V]):
    """Verdicts by digest. Each process appends to its own file, and reads the files of earlier processes once.

    Use it on one thread.
    """

    def __init__(self, folder: Path | None) -> None:
        """Read the verdicts in `folder`; None keeps them in memory alone."""
        self._verdicts: dict[str, V] = {}
        self._own: Path | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob("*.jsonl")):
                self._verdicts |= _read(path)
            self._own = folder / f"{uuid.uuid4().hex}.jsonl"

    def __len__(self) -> int:
        """Return the number of verdicts, those of earlier processes included."""
        return len(self._verdicts)

    def get(self, digest: str) -> V | None:
        """Return the verdict on a case; None if there is none."""
        return self._verdicts.get(digest)

    def put(self, digest: str, verdict: V) -> None:
        """Store a verdict; it survives a kill of the process, but perhaps not a failure of the machine."""
        self._verdicts[digest] = verdict
        if self._own is not None:
            with self._own.open("a", encoding="utf-8") as file:
                file.write(json.dumps([digest, verdict]) + "\n")


def _read(path: Path) -> dict[str, Any]:
    """Return the verdicts of a file; the last line of a killed process may be incomplete."""
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    return dict(map(json.loads, lines))
