"""Read the status files of a training's processes (`treadle.rl.groups.live`), and add them up."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from treadle.core.llm.types import EndpointState
from treadle.rl.groups.live import ProcessStatus, RolloutCounts

_STATUS = TypeAdapter(ProcessStatus)
_HEALTH = ("down", "trial", "healthy")
"""Health of a server, from the worst to the best."""


class LiveFiles:
    """Status files of the processes of one training, in a folder that may not exist yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[Path, int] = {}

    def new(self) -> ProcessStatus | None:
        """Return the joint status of all processes; None if no file has changed since the last call."""
        found: dict[Path, int] = {}
        for path in self._folder.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                found[path] = path.stat().st_mtime_ns
        if not found or found == self._seen:
            return None
        self._seen = found
        statuses = []
        for path in found:
            with contextlib.suppress(OSError, ValidationError):
                statuses.append(_STATUS.validate_json(path.read_bytes()))
        return together(statuses) if statuses else None


def together(statuses: Sequence[ProcessStatus]) -> ProcessStatus:
    """Return the joint status of processes; rollouts of processes that are still at an earlier step are not counted."""
    step = max(one.step for one in statuses)
    now = [one for one in statuses if one.step == step]
    return ProcessStatus(
        step=step,
        rollouts=sum((one.rollouts for one in now), RolloutCounts()),
        elapsed_s=max(one.elapsed_s for one in now),
        usual_s=max((one.usual_s for one in now if one.usual_s is not None), default=None),
        tokens=sum(one.tokens for one in statuses),
        servers=_servers(statuses),
    )


def _servers(statuses: Sequence[ProcessStatus]) -> tuple[tuple[str, EndpointState], ...]:
    """Return each server once, with sums of its counts over all processes, and the worst health that one reports."""
    by_server: dict[tuple[str, str], list[EndpointState]] = {}
    for one in statuses:
        for model, state in one.servers:
            by_server.setdefault((model, state.url), []).append(state)
    return tuple((model, _server(url, states)) for (model, url), states in by_server.items())


def _server(url: str, states: Sequence[EndpointState]) -> EndpointState:
    errors: dict[str, int] = {}
    for state in states:
        for kind, number in state.errors.items():
            errors[kind] = errors.get(kind, 0) + number
    return EndpointState(
        url=url,
        health=min((state.health for state in states), key=_HEALTH.index),
        in_flight=sum(state.in_flight for state in states),
        queued=sum(state.queued for state in states),
        answered=sum(state.answered for state in states),
        sampled_tokens=sum(state.sampled_tokens for state in states),
        errors=errors,
        last_error=next((state.last_error for state in states if state.last_error), ""),
    )
