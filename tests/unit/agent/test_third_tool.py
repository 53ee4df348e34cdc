"""A third tag in the table of the dialect: which parts use only the table, and which do not."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from treadle.agent.call_cache import NullCache
from treadle.agent.contract import Task
from treadle.agent.dialects.base import Segment
from treadle.agent.dialects.tag_faults import call_faults
from treadle.agent.dialects.tag_table import Tag
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.agent.model_types import RolloutLimits
from treadle.agent.rollout import RolloutEngine
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.environments.question.episode import QuestionEpisode
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.rollouts.rows import row_of
from treadle.rl.rewards.format_check import format_reasons
from treadle.viewer.segments import without_markers

ROOT = Path(__file__).resolve().parents[3]


class Lookup:
    name = "lookup"

    async def __aenter__(self) -> Lookup:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        return ToolOutcome("ok", f"{argument} is 7</result>")


class Model:
    """Looks up twice and answers."""

    def __init__(self) -> None:
        self.requests: list[CompletionRequest] = []

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        texts = ("<think>a</think><lookup>x</lookup>",) * 2 + (r"<think>b</think><answer>\boxed{7}</answer>",)
        text = texts[len(self.requests)]
        self.requests.append(request)
        return Completion(text, (), "stop", None, 1, 1, "http://x/v1", 0.1, 0)


@pytest.fixture
def custom_tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add a row to the shared table, and a limit."""
    before = vars(TOOL_DIALECT).copy()
    after = {**TOOL_DIALECT.successors, "lookup": ("result",)}
    after["think"] = ("lookup", *after["think"])
    tags = (*TOOL_DIALECT.tags, Tag("lookup", is_tool=True, stop=True))
    changed = dataclasses.replace(TOOL_DIALECT, tags=tags, successors=after)
    limit = QuestionSettings.call_limit
    monkeypatch.setattr(
        QuestionSettings, "call_limit", lambda self, tool, more=0: 1 if tool == "lookup" else limit(self, tool, more)
    )
    vars(TOOL_DIALECT).clear()
    vars(TOOL_DIALECT).update(vars(changed))
    yield
    vars(TOOL_DIALECT).clear()
    vars(TOOL_DIALECT).update(before)


def played(model: Model) -> dict[str, Any]:
    """Return the row of a rollout with the third tool."""
    engine = RolloutEngine(model, None, Sampling(), RolloutLimits(max_turns=9), TOOL_DIALECT)
    environment = QuestionEpisode(QuestionSettings(system_prompt="Look it up."), {"lookup": Lookup()})
    question = Task("q", "What is x?", dataset="world", domain="qa")
    made = engine.roll_out(environment, question, seed=1, deadline=math.inf, cache=NullCache())
    return row_of({}, asyncio.run(made), "", "")


@pytest.mark.usefixtures("custom_tool")
def test_custom_tool_works_in_rollouts_rows_format_checks_and_the_viewer() -> None:
    model = Model()
    row = played(model)
    assert all("</lookup>" in request.stop for request in model.requests)
    assert "<lookup>x</lookup><result>x is 7&lt;/result></result>" in row["text"]
    calls = orjson.loads(row["tool_calls"])
    assert [(call["tool"], call["status"]) for call in calls] == [("lookup", "ok"), ("lookup", "refused")]
    segments = [Segment(**part) for part in orjson.loads(row["segments"])]
    assert format_reasons(segments, TOOL_DIALECT) == ()
    assert call_faults(segments, [(call["tool"], call["status"]) for call in calls], TOOL_DIALECT) == ["call_refused"]
    shown = [without_markers(dataclasses.asdict(part)) for part in segments if part.kind == "lookup"]
    assert shown == [("x", False)] * 2


@pytest.mark.usefixtures("custom_tool")
def test_calls_of_a_custom_tool_are_counted_under_its_name() -> None:
    row = played(Model())
    assert (row["calls_requested"], row["calls_executed"]) == (2, 1)
    assert row["tools"] == [{"tool": "lookup", "requested": 2, "executed": 1, "failed": 0}]
