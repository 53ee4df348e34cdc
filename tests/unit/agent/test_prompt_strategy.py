"""Rollouts with a chat-only service: which messages, how many tokens, and how replies are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rollouts.rollout_bench import ANSWER, QUESTION, SEARCH, FixedTool, settings

from treadle.agent.call_cache import NullCache
from treadle.agent.chat_prompts import CONTINUE_MESSAGE, conversation
from treadle.agent.dialects.tags import TOOL_DIALECT, result_block
from treadle.agent.model_types import RolloutLimits
from treadle.agent.prompt_strategy import dropped_stop
from treadle.agent.rollout import RolloutEngine
from treadle.agent.trajectory import Trajectory
from treadle.agent.transcript import Transcript
from treadle.core.llm.config import Sampling
from treadle.core.llm.stops import DROPPED, lacks_stop
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.llm.wire import Answer
from treadle.environments.question.episode import QuestionEpisode
from treadle.environments.question.settings import QuestionSettings

OPENING = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
RESULT = "<result>found: q</result>"


def completion(text: str, finish: str = "stop", stop: str | None = None, used: tuple[int, int] = (1, 1)) -> Completion:
    """As of a service that leaves stop strings out."""
    answer = Answer(text, None, finish, stop, *used)
    dropped = lacks_stop(answer, TOOL_DIALECT.stops, DROPPED)
    return Completion(text, None, finish, stop, *used, "http://x/v1", 0.5, 0, stop_dropped=dropped)


class ChattingModel:
    """Replies in the order of a list; a service that has no other route."""

    def __init__(self, replies: Sequence[str | Completion]) -> None:
        self.asked: list[list[dict[str, str]]] = []
        self.limits: list[int] = []
        self._replies = replies

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        raise AssertionError("it completes nothing")

    async def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling: Sampling,
        *,
        seed: int,
        session: str,
        deadline: float,
        stop: Sequence[str] = (),
    ) -> Completion:
        self.asked.append([dict(message) for message in messages])
        self.limits.append(sampling.max_tokens)
        reply = self._replies[len(self.asked) - 1]
        return completion(reply) if isinstance(reply, str) else reply


async def play(
    model: ChattingModel, environment: QuestionSettings | None = None, *, over_chat: bool = True, **limits: Any
) -> Trajectory:
    chosen = environment or settings(system_prompt="")
    bounds = RolloutLimits(chosen.turn_limit(), **limits)
    engine = RolloutEngine(
        model, None, Sampling(max_tokens=100), bounds, chat=model if over_chat else None, dialect=TOOL_DIALECT
    )
    tools = {"search": FixedTool("search"), "python": FixedTool("python")}
    return await engine.roll_out(
        QuestionEpisode(chosen, tools), QUESTION, seed=7, deadline=float("inf"), cache=NullCache()
    )


def turn_in(model: ChattingModel, number: int) -> list[tuple[str, str]]:
    """Return the messages after the question in a request."""
    return [(message["role"], message["content"]) for message in model.asked[number][1:]]


def test_turn_is_sent_as_messages_of_its_authors() -> None:
    transcript = Transcript(TOOL_DIALECT, None)
    assert conversation(OPENING, transcript.segments()) == OPENING
    transcript.append_completion(SEARCH, None, 3)
    transcript.append_block("<result>a</result>")
    transcript.append_block("<result>b</result>")
    assert conversation(OPENING, transcript.segments())[2:] == [
        {"role": "assistant", "content": SEARCH},
        {"role": "user", "content": "<result>a</result><result>b</result>"},
    ]


PIECES = st.lists(
    st.tuples(st.booleans(), st.text(st.sampled_from("ab<>/")) | st.sampled_from([ANSWER, SEARCH, RESULT]))
)


@given(PIECES)
def test_result_text_is_never_sent_as_assistant_and_never_lost(pieces: list[tuple[bool, str]]) -> None:
    transcript = Transcript(TOOL_DIALECT, None)
    for by_model, text in pieces:
        if by_model:
            transcript.insert(text)
        else:
            transcript.append_block(result_block(text, TOOL_DIALECT))
    messages = conversation(OPENING, transcript.segments())
    assert messages[:2] == OPENING and messages[-1]["role"] == "user"
    turn = messages[2:]
    if turn and turn[-1]["content"] == CONTINUE_MESSAGE:
        turn.pop()
    assert "".join(message["content"] for message in turn) == transcript.text
    assert all(one["role"] != other["role"] for one, other in zip(turn, turn[1:], strict=False))
    said = "".join(message["content"] for message in turn if message["role"] == "assistant")
    assert said == "".join(text for by_model, text in pieces if by_model)


@pytest.mark.parametrize(
    ("before", "said", "marker"),
    [
        ("", ("<think>t</think><search>q",), "</search>"),
        ("", ("<think>so <python>print(1)",), "</python>"),
        ("<answer>\\boxed", ("{1}",), "</answer>"),
        ("", ("<python>'", "stop", "</answer>"), "</answer>"),
        ("", ("<search>q</search>",), ""),
        ("", ("<search>q</search> and <search>r",), ""),
        ("", ("<search>q", "length"), ""),
        ("", ("<search>q", "content_filter"), ""),
        ("", ("<think>t",), ""),
        ("", ("<result>r",), ""),
        ("", ("so it is",), ""),
        ("", ("",), ""),
    ],
)
def test_omitted_closing_marker_is_restored_for_the_open_block(before: str, said: tuple[str, ...], marker: str) -> None:
    assert dropped_stop(before, completion(*said), TOOL_DIALECT) == marker


async def test_user_message_asks_the_model_to_continue() -> None:
    model = ChattingModel(["<think>t</think>", "<search>q", ANSWER])
    trajectory = await play(model, settings(system_prompt="", on_unmarked="continue"))
    assert (trajectory.status, trajectory.text) == ("answered", f"<think>t</think><search>q</search>{RESULT}{ANSWER}")
    assert turn_in(model, 1) == [("assistant", "<think>t</think>"), ("user", CONTINUE_MESSAGE)]
    assert turn_in(model, 2) == [("assistant", "<think>t</think><search>q</search>"), ("user", RESULT)]
    silent = settings(system_prompt="", on_limit="silent", search={"max_calls": 1})
    model = ChattingModel([SEARCH, SEARCH, ANSWER])
    trajectory = await play(model, silent)
    assert trajectory.text == SEARCH + RESULT + SEARCH + ANSWER
    assert turn_in(model, 2)[2:] == [("assistant", SEARCH), ("user", CONTINUE_MESSAGE)]


async def test_window_use_is_the_service_count_plus_newer_characters() -> None:
    thought = completion(SEARCH, used=(40, 900))
    model = ChattingModel([thought, completion("<think>cut", "length", used=(80, 5))])
    trajectory = await play(model, max_model_len=len(QUESTION.text) + 100)
    # 900 tokens, most of them hidden: the next prompt has only those that are in the text.
    left = len(QUESTION.text) + 100 - 40 - len(SEARCH) - len(RESULT)
    assert (model.limits, trajectory.status) == ([100, left], "context_full")


async def test_trajectory_budget_uses_the_service_count() -> None:
    replies = [completion(SEARCH, used=(40, 10)), completion(SEARCH, used=(70, 10)), ANSWER]
    model = ChattingModel(replies)
    trajectory = await play(model, max_trajectory_tokens=40)
    assert (trajectory.status, model.limits, len(trajectory.calls)) == ("budget", [40, 30], 2)


PER_CALL = 3
"""Tokens that the service counts for as many characters as the call has."""
BEYOND = SEARCH + "x" * 59 * len(SEARCH)
"""A call, and 59 times as much beyond it, from a service that does not stop."""


def beyond_and_after(tokens: int = 60 * PER_CALL) -> list[Completion]:
    return [completion(BEYOND, used=(600, tokens)), completion(ANSWER, used=(600 + 2 * PER_CALL, 5))]


async def test_text_beyond_a_call_counts_towards_neither_budget_nor_window() -> None:
    model = ChattingModel(beyond_and_after())
    trajectory = await play(model, max_trajectory_tokens=50)
    assert (trajectory.status, trajectory.text) == ("answered", SEARCH + RESULT + ANSWER)
    assert model.limits == [50, 50 - PER_CALL]
    model = ChattingModel(beyond_and_after())
    # The call's share of the service's count is in the next prompt; the result is counted by characters.
    trajectory = await play(model, max_model_len=600 + PER_CALL + len(RESULT) + 9)
    assert (trajectory.status, model.limits) == ("answered", [100, 9])


async def test_hidden_reasoning_of_a_cut_answer_counts_at_most_its_kept_characters() -> None:
    model = ChattingModel(beyond_and_after(10**6))
    await play(model, max_trajectory_tokens=50)
    assert model.limits == [50, 50 - len(SEARCH)]


class CompletingModel(ChattingModel):
    """The same over the other route, as text."""

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        asked = Sampling(max_tokens=request.max_tokens)
        return await self.chat([], asked, seed=request.seed, session=session, deadline=deadline)


async def test_discarded_text_does_not_change_the_window_in_text_mode() -> None:
    model = CompletingModel(beyond_and_after())
    trajectory = await play(model, over_chat=False, max_model_len=600 + PER_CALL + len(RESULT) + 9)
    assert (trajectory.status, model.limits) == ("answered", [100, 9])
