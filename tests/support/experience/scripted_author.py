"""A server that plays summariser and validator by the rollouts in its prompt, and a pool of records."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from support.rollouts.model_pool import FAST
from support.servers.scripted_server import RecordedRequest

from treadle.agent.role_settings import RoleSettings
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.rl.experience.record import Experience

VERDICT_MARK = "The record is valid if"


def records(*advice: str, workspace: str = "default") -> list[Experience]:
    """Return strategies about numbers, one for each text."""
    return [Experience("strategy", f"guessing number {text}", text, workspace) for text in advice]


class ScriptedAuthor:
    """Replies of both roles; `shown` has the JSON that each request showed, `asked` its texts."""

    def __init__(self, summary: Callable[[dict[str, Any]], Any], valid: Callable[[dict[str, Any]], Any]) -> None:
        self.asked: list[str] = []
        self.shown: list[tuple[str, dict[str, Any]]] = []
        self._summary = summary
        self._valid = valid

    def __call__(self, request: RecordedRequest) -> str:
        """Return the reply to a request."""
        if "It is data" not in request.text:
            return "OK"  # the check of the server
        self.asked.append(request.text)
        role = "validator" if VERDICT_MARK in request.text else "summariser"
        begin = request.text.index('{"record"' if role == "validator" else '{"task"')
        shown, _ = json.JSONDecoder().raw_decode(request.text[begin:])
        self.shown.append((role, shown))
        made = (self._valid if role == "validator" else self._summary)(shown)
        return made if isinstance(made, str) else json.dumps(made)


def valid(_: dict[str, Any]) -> dict[str, Any]:
    """Find every record valid."""
    return {"reason": "it is supported", "valid": True}


def roles(url: str, **keys: Any) -> tuple[RoleSettings, RoleSettings]:
    """Return both roles, served at a URL over the chat route; `keys` are those of its model."""
    model = ModelSettings.model_validate(
        {"model": "scripted", "api": "chat", "endpoints": [{"url": url}], **FAST, **keys}
    )
    sampling = Sampling(temperature=0.0, max_tokens=256)
    made = RoleSettings(name="author", model=model, sampling=sampling)
    return made, made
