"""Graders turn replies of a model into scores, and never make one up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from support.servers.hosted_service import hosted
from support.servers.scripted_server import Fault, Item, RecordedRequest

from treadle.agent.contract import Task
from treadle.agent.dialects.base import Segment
from treadle.core.answers.score import Score
from treadle.core.errors import ConfigError, EndpointUnavailable
from treadle.core.store.keyed_store import KeyedStore
from treadle.environments.scorers.graders.grader import Grader, Messages
from treadle.environments.scorers.registry import SCORERS, scorer_named
from treadle.environments.stored_rollout import StoredRollout

TASK = Task("k", "Pay it.", domain="task", scorer="judged")
ROLLOUT = StoredRollout("finished", False, [Segment("text", "pay", 0, 0)], [], [], None, None)
FAST = {"retry_limit": 0, "backoff_base_s": 0.0, "outage_wait_s": 0.2, "probe_base_s": 0.05, "connect_timeout_s": 5.0}


def grader(name: str, **settings: object) -> Grader:
    made = SCORERS.parse({"type": name, **settings})
    assert isinstance(made, Grader)
    return made


async def graded(name: str, replies: Sequence[str | None], **settings: object) -> Score:
    left: Iterator[str | None] = iter(replies)

    async def ask(messages: Messages, number: int) -> str | None:
        return next(left)

    return await grader(name, **settings).grade(TASK, ROLLOUT, ask)


def reply(number: int) -> str:
    return json.dumps({"rationale": "So.", "score": number})


@pytest.mark.parametrize(
    ("name", "numbers", "score", "correct"),
    [
        ("llm", [75], 0.75, True),
        ("llm-gt", [40], 0.4, False),
        ("llm-binary", [60], 1.0, True),
        ("llm-binary-gt", [40], 0.0, False),
        ("avg-llm", [100, 100, 10], 0.7, True),
        ("avg-llm-binary-gt", [100, 10, 10], 1 / 3, False),
    ],
)
async def test_scores_of_each_type(name: str, numbers: list[int], score: float, correct: bool) -> None:
    found = await graded(name, list(map(reply, numbers)))
    assert found.score == pytest.approx(score) and found.correct is correct and found.error is None
    assert found.parts["grade"] == pytest.approx(sum(numbers) / len(numbers))
    assert [one["grade"] for one in json.loads(found.detail)] == numbers
    assert isinstance(scorer_named(name, {}), Grader)


async def test_unreadable_replies_are_asked_for_again_and_then_leave_no_score() -> None:
    assert (await graded("llm", ["?", "50", reply(80)], attempts=3)).score == 0.8
    found = await graded("llm", ["?", "?"], attempts=2)
    assert (found.score, found.correct) == (None, None) and "no reply of the model is a grade" in (found.error or "")
    # The mean of two grades would be another measure than that of three.
    assert (await graded("avg-llm", [reply(90), "?", reply(90)], attempts=1)).score is None
    assert (await graded("llm", [None])).score is None


async def test_replies_are_kept_so_that_no_attempt_pays_again(tmp_path: Path) -> None:
    asked: list[RecordedRequest] = []

    def answer(request: RecordedRequest) -> Item:
        if "You grade an agent" not in request.text:
            return "yes"
        asked.append(request)
        return reply(90)

    scores = []
    async with hosted(answer, model="grader") as server:
        service = {"model": "grader", "endpoints": [{"url": server.url}], **FAST}
        for _ in range(2):
            made = grader("llm", model=service)
            made.use_stores(partial(KeyedStore.in_folder, tmp_path))
            async with made.open():
                scores += [await made.score(TASK, ROLLOUT), await made.score(TASK, ROLLOUT)]
    assert len(asked) == 1 and {score.score for score in scores} == {0.9}
    assert asked[0].body["response_format"] == {"type": "json_object"}


async def test_service_that_is_down_is_an_error_and_no_score() -> None:
    async with hosted(lambda request: Fault.status(500), model="grader") as server:
        made = grader("llm", model={"model": "grader", "endpoints": [{"url": server.url}], **FAST})
        async with made.open():
            with pytest.raises(EndpointUnavailable):
                await made.score(TASK, ROLLOUT)
    with pytest.raises(ConfigError, match="here: the grader llm has no model"):
        grader("llm").check("here")
