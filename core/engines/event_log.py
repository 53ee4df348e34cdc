"""Follow the events of a training in the engine's JSON lines, over all attempts and without repeated steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import orjson

from treadle.core.untrusted.json_text import load_json


class LoggedStep(Protocol):
    """Facts that every kind of training logs about a step."""

    @property
    def step(self) -> int:
        """Number of steps so far, including those of earlier attempts."""
        ...

    @property
    def seconds(self) -> float:
        """Seconds of training so far over all attempts, without the time of steps that were lost."""
        ...


T_Step = TypeVar("T_Step", bound=LoggedStep)


class EventLog(ABC, Generic[T_Step]):
    """Reader of the events file; `new` yields the events added since the last call and updates the state."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """File of events; it need not exist yet."""
        self._offset = 0
        self.earlier_s = 0.0
        """Seconds of training in the attempts before the latest, without the time of steps that were lost."""
        self.steps: list[T_Step] = []
        """Logged steps in order, each once."""
        self.begin: dict[str, Any] | None = None
        """Latest `begin` event."""
        self.last: dict[str, dict[str, Any]] = {}
        """Latest event of each kind; of errors the first one, until a caller removes it from here."""

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the events of complete lines added since the last call; skip lines torn by a kill."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        for line in data[:whole].splitlines():
            try:
                event = load_json(line)
            except orjson.JSONDecodeError:
                continue
            self.take(event)
            yield event

    def end_torn_line(self) -> None:
        """End a torn last line, so that the next event starts on a line of its own."""
        if self.path.exists() and not self.path.read_bytes().endswith(b"\n"):
            with self.path.open("ab") as file:
                file.write(b"\n")

    def take(self, event: dict[str, Any]) -> None:
        """Record one event; a `begin` drops the steps after the one that its attempt resumes from."""
        # If several processes train together, each reports an error, and the first is why the others failed.
        if event["event"] != "error" or "error" not in self.last:
            self.last[event["event"]] = event
        if event["event"] == "begin":
            self.begin = event
            self.steps = [step for step in self.steps if step.step <= event["resumed_step"]]
            self.earlier_s = self.steps[-1].seconds if self.steps else 0.0
        elif event["event"] == "step":
            self.steps.append(self.read_step({**event, "seconds": event["seconds"] + self.earlier_s}))

    @abstractmethod
    def read_step(self, event: dict[str, Any]) -> T_Step:
        """Return the step of a `step` event, whose seconds already cover all attempts."""
