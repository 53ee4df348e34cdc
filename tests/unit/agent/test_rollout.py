"""A rollout from its start: its turns and requests, the ways to end, and resuming after an interruption."""

from __future__ import annotations

import asyncio

import pytest
from support.rollouts.rollout_bench import (
    ANSWER,
    QUESTION,
    SEARCH,
    FixedTool,
    Reply,
    ScriptedModel,
    check_invariants,
    load,
    play,
    settings,
)
from support.sandbox.memories import Remembering

from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ContextTooLong, DeadlineExceeded, EndpointUnavailable
from treadle.core.seeds import derive_seed


@pytest.fixture(params=["qwen", "smollm2"])
def tokenizer(request: pytest.FixtureRequest) -> ChatTokenizer:
    return load(request.param)


@pytest.mark.covers("flywheel-1")
async def test_text_after_a_closing_marker_is_dropped_and_the_prompt_ends_with_the_result(
    tokenizer: ChatTokenizer,
) -> None:
    model = ScriptedModel([f"{SEARCH}\n<result>invented</result> and so on", ANSWER], tokenizer)
    trajectory = await play(model, tokenizer)
    assert trajectory.status == "answered"
    assert trajectory.text == f"{SEARCH}<result>found: q</result>{ANSWER}"
    assert [segment.kind for segment in trajectory.segments] == ["think", "search", "result", "think", "answer"]
    prompt = tokenizer.decode(model.requests[1].prompt)  # type: ignore[arg-type]
    assert prompt.endswith("<search>q</search><result>found: q</result>")
    assert trajectory.usage.wasted_tokens > 0
    check_invariants(trajectory, tokenizer)


@pytest.mark.covers("flywheel-2", "flywheel-26")
async def test_every_request_contains_stops_sampling_and_its_own_seed(tokenizer: ChatTokenizer) -> None:
    model = ScriptedModel([SEARCH, ANSWER], tokenizer)
    await play(model, tokenizer, max_tokens=99)
    assert {request.stop for request in model.requests} == {("</python>", "</search>", "</answer>")}
    assert {request.max_tokens for request in model.requests} == {99}
    assert [request.seed for request in model.requests] == [derive_seed(7, 0), derive_seed(7, 1)]


@pytest.mark.parametrize(
    ("replies", "status"),
    [
        ([ANSWER], "answered"),
        (["<think>t</think> forty-two"], "no_answer"),
        ([""], "no_answer"),
        ([("<think>t", "length")], "length"),
        ([SEARCH] * 8, "limit"),
        (["<python>1</python>", "</search>", ANSWER], "answered"),
    ],
)
async def test_each_way_to_end_has_its_status(tokenizer: ChatTokenizer, replies: list[Reply], status: str) -> None:
    trajectory = await play(ScriptedModel(replies, tokenizer), tokenizer)
    assert trajectory.status == status
    check_invariants(trajectory, tokenizer)


@pytest.mark.covers("flywheel-4")
async def test_model_that_never_calls_nor_answers_ends_with_max_turns(tokenizer: ChatTokenizer) -> None:
    model = ScriptedModel(lambda _: ("on and on ", "length"), tokenizer)
    trajectory = await play(model, tokenizer, environment=settings(on_unmarked="continue"))
    assert (trajectory.status, len(model.requests), trajectory.num_turns) == ("max_turns", 16, 16)
    silent = settings(on_limit="silent", max_turns=9)
    model = ScriptedModel(lambda _: SEARCH, tokenizer)
    trajectory = await play(model, tokenizer, environment=silent)
    assert (trajectory.status, len(trajectory.calls)) == ("max_turns", 9)
    check_invariants(trajectory, tokenizer)


@pytest.mark.covers("flywheel-4", "service-16")
async def test_full_context_is_not_requested_again(tokenizer: ChatTokenizer) -> None:
    model = ScriptedModel(lambda _: SEARCH, tokenizer)
    short = await play(model, tokenizer, max_model_len=40)
    assert (short.status, model.requests) == ("context_full", [])
    model = ScriptedModel([ContextTooLong("too long")], tokenizer)
    rejected = await play(model, tokenizer)
    assert (rejected.status, len(model.requests)) == ("context_full", 1)


async def test_remaining_context_bounds_each_request(tokenizer: ChatTokenizer) -> None:
    model = ScriptedModel([SEARCH, ("<think>cut", "length")], tokenizer)
    window = len(tokenizer.prompt_ids([{"role": "user", "content": QUESTION.text}])) + 60
    trajectory = await play(model, tokenizer, max_model_len=window, environment=settings(system_prompt=""))
    # The default system message of a template may take room as well.
    for request in model.requests:
        assert len(request.prompt) + request.max_tokens <= window
    assert trajectory.status == "context_full"


async def test_trajectory_token_budget_ends_with_budget(tokenizer: ChatTokenizer) -> None:
    model = ScriptedModel([SEARCH, ("<think>cut", "length")], tokenizer)
    trajectory = await play(model, tokenizer, environment=settings(max_trajectory_tokens=60))
    assert trajectory.status == "budget"
    assert model.requests[1].max_tokens == 60 - len(model.requests[1].prompt) + len(trajectory.samples[0].prompt_ids)


async def test_wall_time_ends_with_timeout_and_keeps_the_text(tokenizer: ChatTokenizer) -> None:
    model = ScriptedModel([SEARCH, DeadlineExceeded("late")], tokenizer)
    trajectory = await play(model, tokenizer)
    assert (trajectory.status, len(trajectory.calls)) == ("timeout", 1)
    past = await play(ScriptedModel([], tokenizer), tokenizer, deadline=asyncio.get_running_loop().time())
    assert (past.status, past.num_turns) == ("timeout", 0)


@pytest.mark.covers("evaluation-17")
async def test_two_rollouts_with_one_engine_do_not_mix(tokenizer: ChatTokenizer) -> None:
    model = ScriptedModel(lambda request: ANSWER if len(request.prompt) > 500 else SEARCH, tokenizer)
    both = await asyncio.gather(play(model, tokenizer), play(model, tokenizer))
    assert both[0].text == both[1].text


@pytest.mark.parametrize("broken_at", [0, 1, 2])
async def test_interrupted_rollout_is_replayed_without_model_or_tool(tokenizer: ChatTokenizer, broken_at: int) -> None:
    texts: list[Reply] = [SEARCH, "<python>1</python>", ANSWER]
    whole = await play(ScriptedModel(texts, tokenizer, "\n"), tokenizer)
    cache, tool = Remembering(), FixedTool("search")
    broken: list[Reply] = [*texts[:broken_at], EndpointUnavailable("down")]
    with pytest.raises(EndpointUnavailable):
        await play(ScriptedModel(broken, tokenizer, "\n"), tokenizer, cache=cache, tool=tool)
    model = ScriptedModel(texts[broken_at:], tokenizer, "\n")
    resumed = await play(model, tokenizer, cache=cache, tool=tool)
    assert len(model.requests) == 3 - broken_at
    assert tool.calls == 1
    assert (resumed.text, resumed.samples[0].ids, resumed.samples[0].origins, resumed.calls, resumed.segments) == (
        *(whole.text, whole.samples[0].ids, whole.samples[0].origins, whole.calls, whole.segments),
    )


async def test_rollout_interrupted_after_a_call_reruns_only_that_tool(
    tokenizer: ChatTokenizer,
) -> None:
    cache = Remembering()
    await play(ScriptedModel([SEARCH, ANSWER], tokenizer), tokenizer, cache=cache)
    for unit in ("tool-0", "llm-1"):
        del cache.units[unit]
    model, tool = ScriptedModel([ANSWER], tokenizer), FixedTool("search")
    trajectory = await play(model, tokenizer, cache=cache, tool=tool)
    assert (tool.calls, len(model.requests), trajectory.status) == (1, 1, "answered")


async def test_text_mode_gives_the_same_text_and_no_ids(tokenizer: ChatTokenizer) -> None:
    model = ScriptedModel([f"{SEARCH} and more", "t</search>", ANSWER], None)
    trajectory = await play(model, None)
    assert trajectory.text == f"{SEARCH}<result>found: q</result>t</search><result>found: </result>{ANSWER}"
    assert (trajectory.samples[0].prompt_ids, trajectory.samples[0].ids, trajectory.samples[0].origins) == ([], [], [])
    assert {(segment.start, segment.end) for segment in trajectory.segments} == {(0, 0)}
    assert str(model.requests[1].prompt).endswith("<|im_start|>assistant\n" + SEARCH + "<result>found: q</result>")
    assert [call.status for call in trajectory.calls] == ["ok", "invalid"]


def test_seeds_differ_in_every_part_and_fit() -> None:
    seeds = {
        derive_seed(run, key, model, sample) for run in (0, 1) for key in "ab" for model in "xy" for sample in (0, 1)
    }
    assert len(seeds) == 16
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert derive_seed("a", "bc") != derive_seed("ab", "c")


def test_stops_are_the_closing_markers_of_calls_and_answer() -> None:
    assert set(TOOL_DIALECT.stops) == {"</search>", "</python>", "</answer>"}
