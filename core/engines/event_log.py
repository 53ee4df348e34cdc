"""What a training told so far, read from the engine's JSON lines: over all attempts, without what was done twice."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import orjson


class LoggedStep(Protocol):
    """What every kind of training says of a step."""

    @property
    def step(self) -> int:
        """Steps so far, those of earlier attempts included."""
        ...

    @property
    def seconds(self) -> float:
        """Time in training so far, over all attempts, without what was lost with them."""
        ...


T_Step = TypeVar("T_Step", bound=LoggedStep)


class EventLog(ABC, Generic[T_Step]):
    """Follows the file of events; `new` returns what was added since the last call and keeps the state up to date."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """The file; need not be there yet."""
        self._offset = 0
        self.earlier_s = 0.0
        """Time in training of the attempts before the newest, without what was lost with them."""
        self.steps: list[T_Step] = []
        """Logged steps in order, each once."""
        self.begin: dict[str, Any] | None = None
        """The newest `begin`."""
        self.last: dict[str, dict[str, Any]] = {}
        """The newest event of each kind; of errors the first one since it was taken out of here."""

    def new(self) -> Iterator[dict[str, Any]]:
        """Whole lines that were added; what is no event (a line torn by a kill) is passed over."""
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
                event = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            self.take(event)
            yield event

    def mend(self) -> None:
        """End a torn last line, so that the next event stands on one of its own."""
        if self.path.exists() and not self.path.read_bytes().endswith(b"\n"):
            with self.path.open("ab") as file:
                file.write(b"\n")

    def take(self, event: dict[str, Any]) -> None:
        """Keep one event; what lies behind the step that a new attempt goes on from is dropped."""
        # Of the processes that train together each tells of its error, and one is why the others failed.
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
        """A `step` as this kind of training tells it, its seconds already those of all attempts."""
