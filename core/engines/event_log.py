"""Follow the events of a training in the engine's JSON lines, over all attempts and without repeated steps."""

from __future__ import annotations

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

    @property
    def loss(self) -> float | None:
        """Loss of the step; None if none is logged."""
        ...


T_Step = TypeVar("T_Step", bound=LoggedStep)


class EventLog(Generic[T_Step]):
    """Reader of the events file; `new` yields the events added since the last call and updates the state."""

    def __init__(self, path: Path, step_type: type[T_Step]) -> None:
        self.path = path
        """File of events; it need not exist yet."""
        self._step_type: Any = step_type
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
            # Figures that an engine leaves out are None.
            facts = {name: event.get(name) for name in self._step_type.__slots__}
            self.steps.append(self._step_type(**{**facts, "seconds": event["seconds"] + self.earlier_s}))
