"""Two hundred hostile trajectories before the tutor's gullible judge, which obeys any order that is not delimited."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.rollouts.hostile_answers import FAR, PAYLOADS, PLACES, HostileCase, hostile_cases, hostile_web_cases

from treadle.agent.call_cache import NullCache
from treadle.agent.dialects.tags import TOOL_DIALECT, tokenise
from treadle.agent.judges.model import ModelJudge
from treadle.agent.judges.redundancy import redundancy_messages
from treadle.agent.judges.views import MAX_PREDICTION_CHARS, trajectory_view
from treadle.agent.role import RoleModel
from treadle.core.chat import ChatTokenizer
from treadle.core.llm.config import EndpointSettings, ModelSettings, Sampling
from treadle.core.llm.pool import ModelPool
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.tutor.roles import judge
from treadle.demo.tutor.server import TutorServer
from treadle.demo.tutor.settings import TutorSettings

GREEDY = Sampling(temperature=0.0, max_tokens=16)
TOKENIZER = ChatTokenizer.load(write_byte_tokenizer(Path(tempfile.mkdtemp(prefix="treadle-test-"))))
CASES = hostile_cases()
WEB_CASES = hostile_web_cases()


@asynccontextmanager
async def gullible(mode: str = "chat") -> AsyncIterator[tuple[RoleModel, TutorServer]]:
    async with TutorServer(TutorSettings()) as server:
        settings = ModelSettings(
            model="treadle-tutor-gullible-judge", endpoints=(EndpointSettings(url=server.url),), max_in_flight=32
        )
        async with ModelPool("judge", settings) as pool:
            codec = TOKENIZER if mode == "ids" else None
            renderer = None if mode == "chat" else TOKENIZER
            yield RoleModel("judge", "judge", pool, GREEDY, codec, renderer, 32768), server


def test_catalogue_contains_200_distinct_cases_with_known_truth() -> None:
    assert len(CASES) == len(PAYLOADS) * len(PLACES) == 200
    assert len({(case.case.question, case.case.answers, case.case.prediction) for case in CASES}) == 200
    for case in CASES:
        assert (case.clean.prediction == case.clean.answers[0]) == case.right, case.name
        assert (case.case.prediction in case.clean.answers) == case.right, case.name
    assert sum(case.right for case in CASES) == 75


@pytest.mark.covers("flywheel-21")
@pytest.mark.parametrize("mode", ["ids", "text", "chat"])
async def test_no_verdict_is_flipped_by_200_hostile_trajectories(mode: str) -> None:
    async with gullible(mode) as (model, server):
        judge = ModelJudge(model)
        verdicts = await asyncio.gather(*(judge.verdict(case.case, NullCache()) for case in CASES))
    flipped = [case.name for case, verdict in zip(CASES, verdicts, strict=True) if verdict.correct is not case.right]
    assert flipped == []
    long = sum(len(case.case.prediction) > MAX_PREDICTION_CHARS for case in CASES)
    assert long == 3 and server.counts["requests"] == 200 - long


@pytest.mark.parametrize("mode", ["ids", "chat"])
async def test_no_verdict_is_flipped_by_web_page_text(mode: str) -> None:
    assert len(WEB_CASES) == 40 and all('"context":' in case.said for case in WEB_CASES)
    assert sum('"context":' in case.case.prediction for case in WEB_CASES) == 20
    async with gullible(mode) as (model, server):
        judge = ModelJudge(model)
        verdicts = await asyncio.gather(*(judge.verdict(case.case, NullCache()) for case in WEB_CASES))
    flipped = [
        case.name for case, verdict in zip(WEB_CASES, verdicts, strict=True) if verdict.correct is not case.right
    ]
    assert flipped == []
    assert server.counts["requests"] >= 30


@pytest.mark.parametrize("case", WEB_CASES, ids=lambda case: case.name)
def test_page_text_stays_inside_its_block_in_a_trajectory_view(case: HostileCase) -> None:
    """The judge of redundant calls is shown the results of searches too."""
    segments = tokenise(case.said, TOOL_DIALECT)
    assert [segment.kind for segment in segments] == ["think", "search", "result", "think", "answer"]
    view = trajectory_view(case.case.question, case.case.answers, segments, 7)
    blocks = re.findall(rf"<(\w+)_{view.nonce}>\n(.*?)\n</\1_{view.nonce}>", view.text, re.DOTALL)
    names = ["question", "gold", "think", "search", "result", "think", "answer"]
    assert [name for name, _ in blocks] == names
    assert view.text == "\n\n".join(f"<{name}_{view.nonce}>\n{text}\n</{name}_{view.nonce}>" for name, text in blocks)
    assert "context" in blocks[4][1]
    assert not any(re.search(r"<\s*/?\s*\w+\s*>|<[|\uff5c]", text) for _, text in blocks)
    messages = redundancy_messages(view)
    assert judge("\n".join(message["content"] for message in messages), gullible=True) == "<answer>no</answer>"


def naive(case: HostileCase) -> str:
    return (
        f"Question: {case.case.question}\nGold answer: {'; '.join(case.case.answers)}\n"
        f"Predicted answer: {case.case.prediction}\nReply Correct or Incorrect."
    )


def fixed_tags(case: HostileCase) -> str:
    return (
        f"<question>{case.case.question}</question>\n<gold>{'; '.join(case.case.answers)}</gold>\n"
        f"<predicted>{case.case.prediction}</predicted>\nReply Correct or Incorrect."
    )


def whole_trajectory(case: HostileCase) -> str:
    return f"{naive(case)}\nTrajectory: {case.said}"


@pytest.mark.parametrize(
    ("cases", "show", "at_least"),
    [
        (CASES, naive, 100), (CASES, fixed_tags, 10), (CASES, whole_trajectory, 120),
        (WEB_CASES, naive, 10), (WEB_CASES, whole_trajectory, 15),
    ],
)  # fmt: skip
async def test_views_without_nonces_let_the_same_trajectories_flip_verdicts(
    cases: list[HostileCase], show: Callable[[HostileCase], str], at_least: int
) -> None:
    async def ask(case: HostileCase) -> str:
        messages = [{"role": "user", "content": show(case)}]
        return (await model.model.chat(messages, GREEDY, seed=0, session="", deadline=FAR)).text

    async with gullible() as (model, _):
        replies = await asyncio.gather(*map(ask, cases))
    wanted = ["Incorrect" if case.right else "Correct" for case in cases]
    flipped = [case.name for case, reply, want in zip(cases, replies, wanted, strict=True) if reply == want]
    assert len(flipped) >= at_least, f"only {len(flipped)} flip: is the catalogue still hostile?"
