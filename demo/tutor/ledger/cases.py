"""Read the case of a request to a judge, or to a writer of tasks: a JSON object at the end of the prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treadle.demo.tutor.conversation import Conversation


@dataclass(frozen=True, slots=True)
class CaseStep:
    """A step of an agent in a case."""

    action: str
    observation: str


def read_case(conversation: Conversation) -> Mapping[str, Any]:
    """Return the JSON object at the end of the user's message; empty if there is none there."""
    text = conversation.user.strip()
    for candidate in (text, text.rpartition("\n")[2]):
        try:
            found = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return {}


def steps_of(case: Mapping[str, Any]) -> list[CaseStep]:
    """Return the steps of a case, in their order."""
    given = case.get("steps")
    steps = given if isinstance(given, list) else []
    return [
        CaseStep(str(one.get("action", "")), str(one.get("observation", ""))) for one in steps if isinstance(one, dict)
    ]
