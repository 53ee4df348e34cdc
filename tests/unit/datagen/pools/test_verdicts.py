"""Answers of trajectories in a pool: given at the end, or as a candidate that stands for one."""

from __future__ import annotations

import asyncio
import math

import pytest
from support.tables.trimmed_rollouts import Model, asking, played

from treadle.agent.call_cache import NullCache
from treadle.agent.contract import Task
from treadle.agent.judges.rules import RuleJudge
from treadle.datagen.pools.verdicts import case_of, has_answered, prediction_of, verdict_on

TASK = Task("q", "Who?", domain="qa")


def candidate(text: str) -> str:
    checked = "<think>t</think><double_check>1</double_check>"
    return f"<think>t</think><suggested_answer>{text}</suggested_answer>{checked}"


@pytest.mark.parametrize(
    ("turns", "status", "answer", "answered"),
    [
        ([*(candidate(one) + asking(place) for place, one in enumerate("AB")), candidate("C")], "answered", "C", True),
        ([candidate("A") + asking(0), "<think>t</think>nothing"], "no_answer", "A", True),
        ([asking(0), "<think>t</think>nothing"], "no_answer", "", False),
        ([candidate("A") + asking(0), "<think>t</think><answer>B</answer>"], "answered", "B", True),
    ],
)
def test_candidates_are_answers_of_pools(turns: list[str], status: str, answer: str, answered: bool) -> None:
    made = played(Model(turns), 10_000, max_turns=6)
    assert (made.status, prediction_of(made), has_answered(made)) == (status, answer, answered)
    case = case_of(TASK, [answer or "A"], answer, answered=has_answered(made), seed=0, deadline=math.inf)
    verdict = asyncio.run(verdict_on(RuleJudge(None), case, NullCache(), has_time=True))
    assert verdict.correct is answered
