"""Log requests to the server: counts in memory, and a file that survives if the client or the server is killed."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from treadle.core.errors import StorageError


class RequestLog:
    """Counter of requests by content that writes one JSON line on arrival and one on the answer, unbuffered."""

    def __init__(self, path: Path | None) -> None:
        self._file = None
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("ab", buffering=0)
            except OSError as error:
                raise StorageError(f"the request log {path} cannot be written: {error}") from error
        self._arrivals: Counter[bytes] = Counter()
        self._statuses: Counter[str] = Counter()
        self._serial = 0
        self._in_flight = 0
        self._max_in_flight = 0

    def arrive(self, digest: str, **facts: Any) -> tuple[int, int]:
        """Record a request before it is handled; return its serial number and its attempt, both from 0."""
        serial, self._serial = self._serial, self._serial + 1
        key = bytes.fromhex(digest)
        attempt = self._arrivals[key]
        self._arrivals[key] += 1
        self._in_flight += 1
        self._max_in_flight = max(self._max_in_flight, self._in_flight)
        self._write({"event": "arrived", "serial": serial, "digest": digest, "attempt": attempt, **facts})
        return serial, attempt

    def answer(self, serial: int, digest: str, status: str) -> None:
        """Record how a request ended: an HTTP status, `reset`, `hang`, `malformed`, or `cancelled` by the client."""
        self._in_flight -= 1
        self._statuses[status] += 1
        self._write({"event": "answered", "serial": serial, "digest": digest, "status": status})

    def counts(self) -> dict[str, Any]:
        """Return totals since the start; `repeated` counts arrivals of content that had arrived before."""
        return {
            "requests": self._serial,
            "distinct": len(self._arrivals),
            "repeated": self._serial - len(self._arrivals),
            "in_flight": self._in_flight,
            "max_in_flight": self._max_in_flight,
            "statuses": dict(sorted(self._statuses.items())),
        }

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(orjson.dumps({"time": time.time(), **line}, option=orjson.OPT_APPEND_NEWLINE))
