"""Rollouts that continue a prefix of another one.

A reply is a function of the prompt alone, so equal contexts give equal rollouts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.rollouts.rollout_bench import (
    ANSWER,
    QUESTION,
    SEARCH,
    FixedTool,
    ScriptedModel,
    check_invariants,
    load,
    play,
    settings,
)
from support.sweep import examples

from treadle.agent.dialects.base import render
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.core.chat import ChatTokenizer
from treadle.core.llm.types import CompletionRequest


@pytest.fixture(params=["qwen", "smollm2"])
def tokenizer(request: pytest.FixtureRequest) -> ChatTokenizer:
    return load(request.param)


_PIECES = [
    "<think>",
    "</think>",
    "<search>",
    "</search>",
    "<python>",
    "</python>",
    "<answer>",
    "\n",
    " é🙂",
    "a b",
    ">",
]
_turns = st.lists(st.lists(st.sampled_from(_PIECES), max_size=7).map("".join), min_size=1, max_size=6)


def by_depth(turns: Sequence[str], tokenizer: ChatTokenizer, prompt_length: int) -> Callable[[CompletionRequest], str]:
    """Return reply number n to the n-th result, so that a continuation gets the replies of an unbroken rollout."""

    def reply(request: CompletionRequest) -> str:
        text = tokenizer.decode(request.prompt[prompt_length:])  # type: ignore[arg-type]
        return turns[text.count("<result>")] if text.count("<result>") < len(turns) else ANSWER

    return reply


@pytest.mark.covers("flywheel-17", "flywheel-18")
@pytest.mark.parametrize("name", ["qwen", "smollm2"])
@given(turns=_turns, overrun=st.sampled_from(["", "\n", "><", "é"]))
@hypothesis_settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_continuation_has_the_same_context_ids_as_an_unbroken_rollout(
    name: str, turns: list[str], overrun: str
) -> None:
    tokenizer = load(name)
    prompt_length = len(asyncio.run(play(ScriptedModel([""], tokenizer), tokenizer)).samples[0].prompt_ids)
    reply = by_depth(turns, tokenizer, prompt_length)
    model = ScriptedModel(reply, tokenizer, overrun)
    whole = asyncio.run(play(model, tokenizer))
    check_invariants(whole, tokenizer)
    contexts = [request.prompt for request in model.requests]
    num_cuts = len(whole.without_turn_end().segments)
    # The turn goes on, so its end is no part of a prefix.
    assert whole.prefix(len(whole.segments), tokenizer, TOOL_DIALECT).text == whole.without_turn_end().text
    for number in range(num_cuts + 1):
        prefix = whole.prefix(number, tokenizer, TOOL_DIALECT)
        begun = ScriptedModel(reply, tokenizer, overrun)
        tool = FixedTool("search")
        continued = asyncio.run(play(begun, tokenizer, prefix=prefix, tool=tool))
        check_invariants(continued, tokenizer)
        assert continued.text.startswith(render(whole.segments[:number]))
        if prefix.pending or number == 0 or whole.segments[number - 1].kind == "result":
            assert [request.prompt for request in begun.requests] == contexts[len(contexts) - len(begun.requests) :]
            assert (continued.text, continued.samples[0].ids, continued.samples[0].origins, continued.segments) == (
                *(whole.text, whole.samples[0].ids, whole.samples[0].origins, whole.segments),
            )
            assert (continued.calls, continued.status, continued.num_turns) == (
                *(whole.calls, whole.status, whole.num_turns),
            )
        elif 2 not in prefix.origins[-1:]:
            end = prompt_length + len(prefix.ids)
            assert begun.requests[0].prompt == [*whole.samples[0].prompt_ids, *whole.samples[0].ids][:end]


@pytest.mark.covers("flywheel-17")
async def test_continuation_counts_its_prefix_and_gets_an_extra_call_allowance(tokenizer: ChatTokenizer) -> None:
    environment = settings(search={"max_calls": 1})
    whole = await play(ScriptedModel([SEARCH, ANSWER], tokenizer), tokenizer, environment=environment)
    tool = FixedTool("search")
    continued = await play(
        ScriptedModel([SEARCH, SEARCH, SEARCH], tokenizer),
        tokenizer,
        environment=environment,
        prefix=whole.prefix(3, tokenizer, TOOL_DIALECT),
        additional=1,
        tool=tool,
    )
    assert [call.status for call in continued.calls] == ["ok", "ok", "refused", "refused"]
    assert (tool.calls, continued.status) == (1, "limit")
    assert continued.num_turns == 4


async def test_open_block_in_a_prefix_is_closed_by_the_continuation(tokenizer: ChatTokenizer) -> None:
    whole = await play(ScriptedModel([("<think>half", "length")], tokenizer), tokenizer)
    prefix = whole.prefix(1, tokenizer, TOOL_DIALECT)
    continued = await play(ScriptedModel([" more</think><answer>x</answer>"], tokenizer), tokenizer, prefix=prefix)
    assert [(segment.kind, segment.text) for segment in continued.segments] == [
        ("think", "<think>half more</think>"),
        ("answer", "<answer>x</answer>"),
    ]
    check_invariants(continued, tokenizer)


class ListeningTool(FixedTool):
    """Records what it received of the rollout."""

    def __init__(self) -> None:
        super().__init__("search")
        self.told: list[CallContext] = []

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        assert context is not None
        self.told.append(context)
        return await super().call(argument, deadline=deadline)


async def test_tool_receives_the_whole_turn_so_far_even_in_a_continuation(tokenizer: ChatTokenizer) -> None:
    turns = [SEARCH, "<think>b</think><python>1</python>", "<search>r</search>", ANSWER]
    blocks = ["<result>found: q</result>", "<result>found: 1</result>"]
    tool = ListeningTool()
    whole = await play(ScriptedModel(turns, tokenizer), tokenizer, tool=tool)
    first, second = tool.told
    assert list(first.log) == [SEARCH]
    assert list(second.log) == [SEARCH, blocks[0], turns[1], blocks[1], turns[2]]
    assert first.question == QUESTION.user_message and first.seed != second.seed
    kinds = [segment.kind for segment in whole.segments]
    for num_segments, left in ((2, 1), (3, 1), (5, 2), (6, 2)):
        tool = ListeningTool()
        prefix = whole.prefix(num_segments, tokenizer, TOOL_DIALECT)
        again = await play(ScriptedModel(turns[left:], tokenizer), tokenizer, tool=tool, prefix=prefix)
        assert [segment.kind for segment in again.segments] == kinds
        assert tool.told[-1] == second and tool.told[:-1] == [first] * (num_segments == 2)
