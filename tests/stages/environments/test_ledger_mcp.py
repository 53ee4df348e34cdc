"""The ledger as an MCP server: its tools answer as the environment does."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from treadle.agent.contract import Call, EpisodeOptions, ModelTurn, StepContext, Task
from treadle.agent.tools.outcome import CallContext
from treadle.agent.tools.settings import ToolResources
from treadle.environments.ledger.assignment import Assignment
from treadle.environments.ledger.book import CallError
from treadle.environments.ledger.mcp_server import Desk
from treadle.environments.registry import ENVIRONMENTS, environment_type
from treadle.environments.tools.registry import TOOLS
from treadle.environments.types import Resources

WRONG: list[tuple[str, Mapping[str, Any]]] = [
    ("get_account", {"account": "A99"}),
    ("get_account", {}),
    ("transfer", {"source": "A1", "target": "A2", "amount": 0}),
    ("transfer", {"source": "A1", "target": "A1", "amount": 5}),
]


async def in_process(seed: int, calls: list[tuple[str, Mapping[str, Any]]]) -> tuple[list[str], float | None]:
    """Return results and score of the environment."""
    settings = ENVIRONMENTS.parse({"type": "ledger", "max_calls": 100})
    results: list[str] = []
    async with environment_type(settings).open(settings, Resources()) as runtime:
        episode = runtime.episode()
        await episode.reset(Task("k", "?", payload={"seed": seed}), EpisodeOptions())
        for number, (name, arguments) in enumerate(calls):
            turn = ModelTurn("", number, "end_of_turn", calls=(Call("c", name, arguments),))
            results += [one.text for one in (await episode.step(turn, StepContext(float("inf")))).messages]
        outcome = await episode.outcome()
        await episode.close()
    assert outcome is not None
    return results, outcome.reward


async def test_our_client_plays_it_as_the_environment_answers() -> None:
    seed = 12345678901234567890
    calls = [*WRONG, *Assignment.make(seed).solution]
    expected, score = await in_process(seed, calls)
    command = [sys.executable, "-m", "treadle.environments.ledger.mcp_server", "--seed", str(seed)]
    settings = TOOLS.parse({"type": "mcp", "command": command, "sandbox": "none"})
    async with settings.source("book", ToolResources(None)) as source:
        task: Any = None
        tools = await source.episode(task, 0)
        outcomes = [
            await tools.call(f"book_{name}", arguments, deadline=1e12, context=CallContext("?", (), 0))
            for name, arguments in calls
            # Our client refuses what does not fit the schema before the server sees it.
            if (name, arguments) not in (WRONG[1], WRONG[2])
        ]
        late = await tools.call("book_get_account", {"account": "A1"}, deadline=1e12, context=CallContext("?", (), 0))
        await tools.close()
    wanted = [text for text, call in zip(expected, calls, strict=True) if call not in (WRONG[1], WRONG[2])]
    assert [orjson.loads(one.text) for one in outcomes[:-1]] == [orjson.loads(text) for text in wanted[:-1]]
    assert [one.status for one in outcomes] == ["error"] * 2 + ["ok"] * (len(outcomes) - 2)
    assert orjson.loads(outcomes[-1].text) == orjson.loads(wanted[-1]) and score == 1.0
    assert late.status == "error" and "handed in" in late.text


@pytest.mark.parametrize("seed", range(12))
async def test_results_and_scores_are_those_of_the_environment(seed: int) -> None:
    solution = list(Assignment.make(seed).solution)
    # Without its first change of the book, a task is done in part.
    for calls in ([*WRONG, *solution], [*solution[:-2], solution[-1]]):
        desk, found, score = Desk(seed), [], None
        for name, arguments in calls:
            try:
                result, score = desk.call(name, arguments)
            except CallError as error:
                result = {"error": str(error)}
            found.append(result)
        expected, wanted = await in_process(seed, calls)
        assert found == [orjson.loads(text) for text in expected]
        assert score == pytest.approx(wanted)
