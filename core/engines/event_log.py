"""Follow the events of a training in the engine's JSON lines, over all attempts and without repeated steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from treadle.core.engines.process import printable
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
        """Loss of the step; None if it was not logged."""
        ...


T_Step = TypeVar("T_Step", bound=LoggedStep)

_NUMBER = (int, float)
_FACTS: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "prepared": {"versions": dict},
    "begin": {"num_steps": int, "resumed_step": int, "num_trained_parameters": int, "device": str},
    "step": {"seconds": _NUMBER},
    "warning": {"message": str},
    "end": {"step": int, "epoch": _NUMBER},
    "greedy": {"ids": list, "margins": list},
    "error": {"kind": str, "message": str},
}
"""Kind of event -> the fields that every kind of training reads from it, with their types."""


class InvalidEvent(Exception):
    """Error: an engine wrote an event without a fact that is needed, or with a wrong one."""


class EventLog(Generic[T_Step]):
    """Reader of the events file; `new` yields the events added since the last call and updates the state."""

    def __init__(self, path: Path, step_type: type[T_Step]) -> None:
        self.path = path
        """File of events; it need not exist yet."""
        self._step_type: Any = step_type
        self._steps = TypeAdapter(step_type)
        self._offset = 0
        self.earlier_s = 0.0
        """Seconds of training in the attempts before the latest, without the time of steps that were lost."""
        self.steps: list[T_Step] = []
        """Logged steps in order, each once."""
        self.begin: dict[str, Any] | None = None
        """Latest `begin` event."""
        self.last: dict[str, dict[str, Any]] = {}
        """Latest event of each kind; of errors the first one, until a caller removes it from here."""
        self.has_invalid = False
        """True if an event since the training last started from the beginning is invalid; then steps are missing."""

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the events of complete lines added since the last call; skip lines torn by a kill.

        Raises InvalidEvent.
        """
        for event in self._read():
            self._record(event)
            yield event

    def replay(self) -> None:
        """Record the events of earlier attempts; skip invalid ones, each of which ended its attempt."""
        for event in self._read():
            with contextlib.suppress(InvalidEvent):
                self._record(event)

    def _read(self) -> Iterator[Any]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        for line in data[:whole].splitlines():
            with contextlib.suppress(orjson.JSONDecodeError):
                yield load_json(line)

    def _record(self, event: Any) -> None:
        """Check the fields of an event, then record it; raise InvalidEvent."""
        try:
            self._take_checked(event)
        except InvalidEvent:
            self.has_invalid = True
            raise

    def _take_checked(self, event: Any) -> None:
        name = event.get("event") if isinstance(event, dict) else None
        if not isinstance(name, str):
            raise InvalidEvent(f"it has no name: {printable(str(event))[:200]}")
        for fact, kind in _FACTS.get(name, {}).items():
            if not isinstance(event.get(fact), kind):
                raise InvalidEvent(f"{printable(name)}.{fact} is {printable(repr(event.get(fact)))[:200]}")
        try:
            self.take(event)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            fact = ".".join(map(str, problem["loc"]))
            raise InvalidEvent(f"{name}.{fact}: {printable(str(problem['msg']))[:200]}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidEvent(f"{printable(name)}: {type(error).__name__}: {printable(str(error))[:200]}") from None

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
            self.last.pop("end", None)
            self.has_invalid = self.has_invalid and event["resumed_step"] > 0
            self.steps = [step for step in self.steps if step.step <= event["resumed_step"]]
            self.earlier_s = self.steps[-1].seconds if self.steps else 0.0
        elif event["event"] == "step":
            # Figures that an engine leaves out are None.
            facts = {name: event.get(name) for name in self._step_type.__slots__}
            self.steps.append(self._steps.validate_python({**facts, "seconds": event["seconds"] + self.earlier_s}))
