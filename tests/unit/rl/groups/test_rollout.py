"""Groups of rollouts with scripted generators: sizes of batches, branches, masks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from support.qwen_tokenizer import qwen_tokenizer
from support.training.rewards import group_rewards
from support.training.scripted_groups import (
    ALONE,
    ANSWER,
    SEARCH,
    ScriptedGenerator,
    StubTool,
    WordCodec,
    job,
    make_rollouts,
    num_results,
    rounds_of_tools,
    settings,
    turn_of,
)

from treadle.agent.dialects.base import render
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ConfigError
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.seeds import derive_seed
from treadle.rl.groups.batching import BatchedModel, BatchMembership
from treadle.rl.groups.branching import Branching, uniform
from treadle.rl.groups.group import Group
from treadle.rl.groups.rollout import roll_out_groups
from treadle.rl.rewards.rewarded import RewardedItem
from treadle.rl.training.figures import step_figures


async def batch_sizes(branching: Branching, reply: Callable[[str, int], str], size: int = 16) -> list[int]:
    codec = WordCodec()
    generator, membership = ScriptedGenerator(codec, reply), BatchMembership()
    with BatchedModel(generator, membership) as model:
        rollouts = make_rollouts(model, codec, branching=branching, membership=membership)
        (group,) = await roll_out_groups(rollouts, [job(size)])
        assert len(group.trajectories) == size
        assert membership.num_active == 0
        return model.batch_sizes


@pytest.mark.covers("pareto-22")
async def test_missing_trajectories_start_immediately() -> None:
    assert await batch_sizes(Branching(8), lambda *_: ANSWER) == [8, 8]
    assert await batch_sizes(ALONE, lambda *_: ANSWER) == [16]


@pytest.mark.covers("pareto-23")
async def test_each_trajectory_branches_after_its_tool_with_probability_one() -> None:
    assert await batch_sizes(Branching(8, probability=1.0), rounds_of_tools(3)) == [8, 16, 16, 16]
    wide = Branching(2, beam_size=4, probability=1.0)
    assert await batch_sizes(wide, rounds_of_tools(2)) == [2, 8, 16]


@pytest.mark.covers("pareto-23")
async def test_half_of_the_trajectories_branch_after_the_first_round() -> None:
    codec, branching = WordCodec(), Branching(8)

    def num_branches(seed: int) -> int:
        return sum(branching.branches(uniform(seed, "branch", session, 1, 0), 0.0) for session in range(8))

    assert 8 + sum(map(num_branches, range(2000))) / 2000 == pytest.approx(12.0, abs=0.1)
    generator = ScriptedGenerator(codec, rounds_of_tools(1), entropy=lambda *_: 1.0)
    rollouts = make_rollouts(generator, codec, branching=branching)
    groups = await roll_out_groups(rollouts, [job(16, seed, str(seed)) for seed in range(50)])
    branched = [sum(made.branch_depth for made in group.trajectories) for group in groups]
    assert branched == list(map(num_branches, range(50)))
    assert {len(group.trajectories) for group in groups} == {16}


@pytest.mark.covers("planning-17")
async def test_ids_under_the_mask_are_the_sampled_ones_and_the_rest_is_not() -> None:
    codec = WordCodec()
    sampled: list[tuple[Any, Any]] = []

    class Kept(ScriptedGenerator):
        def _complete(self, request: CompletionRequest) -> Completion:
            made = super()._complete(request)
            sampled.append((made.token_ids, made.logprobs))
            return made

    def reply(context: str, seed: int) -> str:
        return ANSWER if len(sampled) == 2 else SEARCH

    rollouts = make_rollouts(Kept(codec, reply), codec, branching=Branching(1))
    (group,) = await roll_out_groups(rollouts, [job(1, 3, "one")])
    (made,) = group.trajectories
    trained = [place for place, mask in enumerate(made.env_mask) if mask]
    assert len(sampled) > 2 and len(trained) < len(made.completion_ids)
    assert [made.completion_ids[place] for place in trained] == [id_ for ids, _ in sampled for id_ in ids or ()]
    assert [made.logprobs[place] for place in trained] == [value for _, values in sampled for value in values or ()]


@pytest.mark.covers("pareto-26")
@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
async def test_group_has_exactly_the_requested_number_of_trajectories(probability: float) -> None:
    codec = WordCodec()

    def reply(context: str, seed: int) -> str | tuple[str, str]:
        return (SEARCH, ANSWER, "<think>no</think>", ("<think>", "length"), SEARCH)[seed % 5]

    rollouts = make_rollouts(ScriptedGenerator(codec, reply), codec, branching=Branching(3, 3, probability))
    jobs = [job(size, seed, f"{size}-{seed}") for size in (1, 2, 3, 7, 16) for seed in range(20)]
    for wanted, group in zip(jobs, await roll_out_groups(rollouts, jobs), strict=True):
        assert group.group_id == wanted.group_id
        assert [made.session for made in group.trajectories] == list(range(wanted.size))
        for made in group.trajectories:
            assert len(made.completion_ids) == len(made.env_mask) == len(made.logprobs)
            if made.branch_parent is not None:
                parent = group.trajectories[made.branch_parent]
                assert parent.session < made.session
                assert parent.branch_depth == made.branch_depth - 1
        assert len({made.seed for made in group.trajectories}) == wanted.size


@pytest.mark.covers("pareto-26")
async def test_branch_inherits_ids_mask_logprobs_and_calls() -> None:
    codec = WordCodec()

    def reply(context: str, seed: int) -> str:
        return SEARCH if num_results(context) < 2 else f"<think>{seed}</think>{ANSWER}"

    environment = settings(search={"max_calls": 2})
    tool = StubTool("search")
    rollouts = make_rollouts(
        ScriptedGenerator(codec, reply),
        codec,
        branching=Branching(1, probability=1.0),
        environment=environment,
        tools=[tool],
    )
    (group,) = await roll_out_groups(rollouts, [job(4)])
    assert [(made.branch_parent, made.branch_depth) for made in group.trajectories] == [
        (None, 0),
        (0, 1),
        (0, 1),
        (1, 2),
    ]
    shared = len(codec.encode(SEARCH)) + 2
    first, *others = group.trajectories
    for made in others:
        for name in ("completion_ids", "env_mask", "logprobs"):
            assert getattr(made, name)[:shared] == getattr(first, name)[:shared]
        assert made.prompt_ids == first.prompt_ids
    assert first.logprobs[: shared + 1] == [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, 0.0, 0.0, -1.0]
    assert len({codec.decode(made.completion_ids) for made in group.trajectories}) == 4
    # One call before the branch, and one in each of the two that it became.
    assert len(tool.arguments) == 3
    assert [item.tool_calls for item in group.items] == [2] * 4


@pytest.mark.covers("pareto-26", "pareto-27")
async def test_inherited_calls_count_towards_the_limit() -> None:
    codec = WordCodec()
    tool = StubTool("search")
    rollouts = make_rollouts(
        ScriptedGenerator(codec, lambda *_: SEARCH),
        codec,
        branching=Branching(1, probability=1.0),
        environment=settings(max_total_calls=2, on_limit="stop"),
        tools=[tool],
    )
    (group,) = await roll_out_groups(rollouts, [job(2)])
    assert [made.trajectory.status for made in group.trajectories] == ["limit", "limit"]
    assert [item.tool_calls for item in group.items] == [2, 2]
    assert len(tool.arguments) == 3


@pytest.mark.covers("pareto-27")
@pytest.mark.parametrize("on_limit", ["stop", "notice"])
async def test_call_over_the_limit_is_not_executed_and_ends_the_trajectory(on_limit: str) -> None:
    codec = WordCodec()
    tool = StubTool("search")
    environment = settings(max_total_calls=2, on_limit=on_limit)
    rollouts = make_rollouts(
        ScriptedGenerator(codec, lambda *_: SEARCH), codec, branching=ALONE, environment=environment, tools=[tool]
    )
    (group,) = await roll_out_groups(rollouts, [job(1)])
    (item,) = group.items
    assert (item.status, item.tool_calls, len(tool.arguments)) == ("limit", 2, 2)


@pytest.mark.covers("pareto-26")
async def test_baselines_belong_to_the_trajectory_across_batches() -> None:
    codec = WordCodec()
    level = 0.0
    generator = ScriptedGenerator(codec, rounds_of_tools(2), entropy=lambda *_: level)
    branching = Branching(8, probability=0.5, entropy_weight=1e6)
    rollouts = make_rollouts(generator, codec, branching=branching)

    def shape(groups: Sequence[Group]) -> list[list[int | None]]:
        return [[made.branch_parent for made in group.trajectories] for group in groups]

    jobs = [job(16, seed, str(seed)) for seed in range(8)]
    before = shape(await roll_out_groups(rollouts, jobs))
    level = 5.0
    assert shape(await roll_out_groups(rollouts, jobs)) == before
    assert any(parent is not None for group in before for parent in group)


async def test_rising_entropy_makes_branches_likelier_within_a_branch_too() -> None:
    codec = WordCodec()
    rising = ScriptedGenerator(codec, rounds_of_tools(3), entropy=lambda context, _: float(num_results(context)))
    rollouts = make_rollouts(rising, codec, branching=Branching(1, probability=0.0, entropy_weight=1e6))
    (group,) = await roll_out_groups(rollouts, [job(4)])
    # None in the first round (no rise), then each continuing one, the branch by its parent's baseline.
    assert [made.branch_parent for made in group.trajectories] == [None, 0, 0, 1]
    assert [made.trajectory.text.count("<result>") for made in group.trajectories] == [3] * 4


async def test_model_without_entropy_is_allowed_only_without_branching() -> None:
    codec = WordCodec()
    generator = ScriptedGenerator(codec, rounds_of_tools(1))

    class Silent:
        async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
            return replace(generator([request])[0], logprobs=None)

    (group,) = await roll_out_groups(make_rollouts(Silent(), codec, branching=ALONE), [job(4)])
    assert {value for made in group.trajectories for value in made.logprobs} == {0.0}
    with pytest.raises(ConfigError, match="initial_rollouts"):
        await roll_out_groups(make_rollouts(Silent(), codec, branching=Branching(2)), [job(4)])


@pytest.mark.covers("pareto-20")
async def test_results_are_masked_and_model_text_is_not() -> None:
    codec = WordCodec()

    def reply(context: str, _: int) -> str:
        return "<search>q</search>" if num_results(context) < 3 else "<answer>1</answer>"

    (group,) = await roll_out_groups(make_rollouts(ScriptedGenerator(codec, reply), codec, branching=ALONE), [job(1)])
    (made,) = group.trajectories
    assert "".join(map(str, made.env_mask)) == "111" + "00" + "111" + "00" + "111" + "00" + "11"
    assert made.logprobs == [-1.0, -2.0, -3.0, 0.0, 0.0] * 3 + [-1.0, -2.0]
    (item,) = group.items
    assert (item.model_tokens, item.total_tokens, item.tool_calls) == (11, 17, 3)
    assert render(item.segments) == made.trajectory.text == codec.decode(made.completion_ids)


@pytest.mark.covers("pareto-32")
async def test_results_do_not_affect_lengths_or_rewards() -> None:
    codec = WordCodec()

    def reply(context: str, seed: int) -> str:
        return SEARCH if num_results(context) < 1 + seed % 3 else ANSWER

    async def played(result: str) -> tuple[list[RewardedItem], list[int]]:
        model, tool = ScriptedGenerator(codec, reply), StubTool("search", result)
        rollouts = make_rollouts(model, codec, branching=ALONE, tools=[tool])
        (group,) = await roll_out_groups(rollouts, [job(8)])
        return group_rewards(group.items, ["1"], "math", 0.1, 0.1, dialect=TOOL_DIALECT), [
            len(made.completion_ids) for made in group.trajectories
        ]

    (short, short_ids), (long, long_ids) = await played("found"), await played("<b>" * 40)
    assert short == long and step_figures([short]) == step_figures([long])
    assert len({reward.parts["f_len"] for reward in short}) > 1
    turns = [(len(codec.encode(SEARCH)), reward.tool_calls) for reward in short]
    assert [reward.length for reward in short] == [
        tokens * calls + len(codec.encode(ANSWER)) for tokens, calls in turns
    ]
    assert all(one < other for one, other in zip(short_ids, long_ids, strict=True))


@pytest.mark.covers("pareto-21")
async def test_end_of_turn_text_in_a_result_truncates_nothing() -> None:
    tokenizer = qwen()
    tool = StubTool("search", "<|im_end|>\n<|endoftext|> {}")
    generator = ScriptedGenerator(tokenizer, rounds_of_tools(1))
    (group,) = await roll_out_groups(make_rollouts(generator, tokenizer, branching=ALONE, tools=[tool]), [job(1)])
    (made,) = group.trajectories
    assert not set(made.completion_ids) & tokenizer.eos_ids
    assert sum(made.env_mask) == len(tokenizer.encode(SEARCH)) + len(tokenizer.encode(ANSWER))
    assert made.env_mask[-1] == 1
    (item,) = group.items
    assert (item.total_tokens, item.status) == (len(made.completion_ids), "answered")


@cache
def qwen() -> ChatTokenizer:
    return ChatTokenizer.load(qwen_tokenizer())


async def test_reencoded_tail_is_not_trained_on() -> None:
    tokenizer = qwen()
    generator = ScriptedGenerator(tokenizer, rounds_of_tools(1), overrun="\n\n")
    (group,) = await roll_out_groups(make_rollouts(generator, tokenizer, branching=ALONE), [job(1)])
    (made,) = group.trajectories
    assert 2 in made.trajectory.samples[0].origins
    assert made.env_mask == [int(origin == 1) for origin in made.trajectory.samples[0].origins]
    for mask, logprob in zip(made.env_mask, made.logprobs, strict=True):
        assert (logprob < 0) == bool(mask)
    first_turn = made.logprobs[: made.logprobs.index(0.0)]
    assert first_turn == [-1.0 - index for index in range(len(first_turn))]


async def test_end_of_turn_sampled_by_the_model_is_trained_on() -> None:
    codec = WordCodec()
    for reply, ends in [("<think>no</think>", True), ("", True), (ANSWER, False), (("<think>on", "length"), False)]:
        model = ScriptedGenerator(codec, lambda *_, reply=reply: reply)  # type: ignore[misc]
        (group,) = await roll_out_groups(make_rollouts(model, codec, branching=ALONE), [job(1)])
        (made,) = group.trajectories
        assert (made.completion_ids[-1] == 0) == ends
        assert made.env_mask[-1] == 1
        assert made.logprobs == [-1.0 - index for index in range(len(made.completion_ids))]
        assert group.items[0].model_tokens == len(made.completion_ids)


async def test_end_of_turn_after_the_answer_is_dropped_with_everything_after_it() -> None:
    codec = WordCodec()
    generator = ScriptedGenerator(codec, rounds_of_tools(1))

    class Ending:
        async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
            completion = generator([request])[0]
            assert completion.token_ids and completion.logprobs
            ids, logprobs = (*completion.token_ids, 0), (*completion.logprobs, -9.0)
            return replace(completion, token_ids=ids, logprobs=logprobs)

    (group,) = await roll_out_groups(make_rollouts(Ending(), codec, branching=ALONE), [job(1)])
    (made,) = group.trajectories
    assert codec.decode(made.completion_ids) == f"{SEARCH}<result>found</result>{ANSWER}"
    assert -9.0 not in made.logprobs


async def test_silently_refused_trajectory_branches_without_calling_again() -> None:
    codec = WordCodec()

    def reply(context: str, _: int) -> str:
        return ANSWER if turn_of(context).count("<search>") == 2 else SEARCH

    environment = settings(max_total_calls=1, on_limit="silent")
    rollouts = make_rollouts(
        ScriptedGenerator(codec, reply), codec, branching=Branching(1, 9, 1.0), environment=environment
    )
    (group,) = await roll_out_groups(rollouts, [job(8)])
    wanted = f"{SEARCH}<result>found</result>{SEARCH}{ANSWER}"
    assert [made.trajectory.text for made in group.trajectories] == [wanted] * 8
    assert {tuple(call.status for call in made.trajectory.calls) for made in group.trajectories} == {("ok", "refused")}
    one_by_one = Branching(1, 2, 1.0)
    (again,) = await roll_out_groups(replace(rollouts, branching=one_by_one), [job(3)])
    assert [made.branch_parent for made in again.trajectories] == [None, 0, 0]
    assert [made.trajectory.text for made in again.trajectories] == [wanted] * 3
    assert [len(made.trajectory.calls) for made in again.trajectories] == [2] * 3


async def test_truncated_turn_continues_in_a_branch_too() -> None:
    codec = WordCodec()

    def reply(context: str, _: int) -> str | tuple[str, str]:
        return ANSWER if "<think>a" in turn_of(context) else ("<think>a", "length")

    environment = settings(on_unmarked="continue")
    rollouts = make_rollouts(
        ScriptedGenerator(codec, reply), codec, branching=Branching(1, 2, 1.0), environment=environment
    )
    (group,) = await roll_out_groups(rollouts, [job(2)])
    assert [made.trajectory.text for made in group.trajectories] == [f"<think>a{ANSWER}"] * 2
    assert {made.env_mask.count(0) for made in group.trajectories} == {0}


async def test_completion_is_truncated_to_the_longest_response() -> None:
    codec = WordCodec()
    tool = StubTool("search", "<b>" * 50)
    rollouts = make_rollouts(
        ScriptedGenerator(codec, lambda *_: SEARCH), codec, branching=ALONE, tools=[tool], max_response_tokens=20
    )
    (group,) = await roll_out_groups(rollouts, [job(1)])
    (made,) = group.trajectories
    assert made.trajectory.status == "budget"
    assert len(made.completion_ids) == len(made.env_mask) == len(made.logprobs) == 20
    assert (group.items[0].model_tokens, group.items[0].total_tokens) == (6, 20)


async def test_group_depends_on_its_seed_and_not_on_tool_speed() -> None:
    codec = WordCodec()

    class Slow(StubTool):
        def __init__(self, order: int) -> None:
            super().__init__("search", "found {}")
            self._order = order

        async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
            assert context is not None
            for _ in range(derive_seed(context.seed, self._order) % 7):
                await asyncio.sleep(0)
            return await super().call(argument, deadline=deadline, context=context)

    def reply(context: str, seed: int) -> str:
        return f"<search>{seed % 9}</search>" if seed % 3 else ANSWER

    async def play(order: int, seed: int = 1) -> list[Any]:
        model = ScriptedGenerator(codec, reply, entropy=lambda _, seed: float(seed % 4))
        rollouts = make_rollouts(model, codec, branching=Branching(3), tools=[Slow(order)])
        groups = await roll_out_groups(rollouts, [job(8, seed), job(8, seed + 1)])
        return [
            [(made.completion_ids, made.branch_parent, made.seed, made.env_mask) for made in group.trajectories]
            for group in groups
        ]

    first = await play(0)
    assert await play(1) == await play(2) == first
    assert await play(0, seed=5) != first


async def test_rejects_text_mode() -> None:
    codec = WordCodec()
    rollouts = make_rollouts(ScriptedGenerator(codec, rounds_of_tools(1)), codec, branching=ALONE)
    with pytest.raises(ConfigError, match="token ids"):
        replace(rollouts, engine=replace(rollouts.engine, codec=None))
