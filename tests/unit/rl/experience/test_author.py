"""An author asks a validator about several records at once: replies that arrive after a failure are kept."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.experience.desk import halving

from treadle.agent.role import Reply
from treadle.core.errors import EndpointUnavailable
from treadle.rl.experience.author import Author
from treadle.rl.experience.prompts import PlayedRollout
from treadle.rl.experience.record import Experience
from treadle.rl.experience.settings import ExperienceOptions

PLAYED = [PlayedRollout([{"role": "user", "content": "Guess."}], score) for score in (1.0, 0.0)]


class Role:
    """A role whose first verdict fails at once, and whose other replies take longer."""

    def __init__(self, role: str) -> None:
        self.role = role

    async def ask(self, messages: Any, *, cache: dict[str, str], unit: str, **_: Any) -> Reply:
        if unit == "validate_0.0":
            raise EndpointUnavailable("models.validator: no endpoint answers")
        for _ in range(20):
            await asyncio.sleep(0)
        cache[unit] = json.dumps(halving({"rollouts": PLAYED}) if unit == "summary.0" else {"valid": True})
        return Reply(cache[unit], False, 1, 1)


async def test_verdicts_that_arrive_after_one_has_failed_are_kept() -> None:
    kept: Any = {}
    summariser: Any = Role("summariser")
    validator: Any = Role("validator")
    author = Author(summariser, validator, ExperienceOptions(), 1)

    def head(item: Any) -> Experience:
        return Experience.from_json({**item, "workspace": "default", "question_keys": ["a"], "step": 0})

    with pytest.raises(EndpointUnavailable):
        await author.write(PLAYED, head, cache=kept)
    assert sorted(kept) == ["summary.0", "validate_1.0", "validate_2.0"]
