"""Settings of the ledger: which tasks it has, and what agents are told first."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from treadle.agent.contract import Task
from treadle.environments.ledger.assignment import TEXTS, Assignment
from treadle.environments.ledger.environment import Ledger
from treadle.environments.registry import ENVIRONMENTS, environment_type


async def tasks(split: str, **keys: Any) -> list[Assignment]:
    settings = ENVIRONMENTS.parse({"type": "ledger", **keys})
    found = environment_type(settings).tasks(settings, split, 0)
    return [Assignment.make(row["payload"]["seed"]) async for row in found]


async def first_messages(**keys: Any) -> list[tuple[str, str]]:
    episode = Ledger()
    episode.prepare(Task("k", "", payload={"seed": 3}), ENVIRONMENTS.parse({"type": "ledger", **keys}), None, 0, 0)
    return [(one["role"], one["content"]) for one in await episode.reset(episode.task)]


async def test_tasks_are_of_the_chosen_kinds_and_as_many_as_asked_for() -> None:
    chosen = await tasks("heldout", num_tasks=80, kinds=["cover", "sum_open"])
    assert {one.kind for one in chosen} == {"cover", "sum_open"}
    assert len({one.seed for one in chosen}) == len(chosen) == 20
    every = await tasks("heldout", num_tasks=80)
    assert {one.kind for one in every} == set(TEXTS)
    both = [one.seed for one in every if one.kind in ("cover", "sum_open")]
    assert [one.seed for one in chosen][: len(both)] == both, "a choice of kinds leaves other tasks out, and no more"


def test_a_ledger_without_kinds_of_tasks_is_refused() -> None:
    with pytest.raises(ValidationError, match="kinds"):
        ENVIRONMENTS.parse({"type": "ledger", "kinds": []})


async def test_instructions_replace_the_description_of_calls() -> None:
    text = Assignment.make(3).text
    assert await first_messages() == [("system", Ledger.system), ("user", text)]
    assert await first_messages(instructions="Be brief.") == [("system", "Be brief."), ("user", text)]
