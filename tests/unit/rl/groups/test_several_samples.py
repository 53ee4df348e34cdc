"""Groups of rollouts with several token sequences each: what is trained, and how batches are filled."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
    settings,
)

from treadle.agent.contract import Task
from treadle.agent.trajectory import Trajectory
from treadle.core.errors import ConfigError
from treadle.rl.credit.outcome import group_advantages
from treadle.rl.engine.group_source import ScoredGroup
from treadle.rl.engine.trl.sample_rows import SampleRow, rows_of_updates
from treadle.rl.groups.branching import Branching
from treadle.rl.groups.rollout import Group, GroupTrajectory, roll_out_groups
from treadle.rl.groups.samples import GroupSample, spread_over
from treadle.rl.rewards.rewarded import RewardedItem

THINKING = {"manager": "linear_think", "think_hint": "Think."}


def searching(most: int) -> ScriptedGenerator:
    """Return a model that searches 0 to `most` times, by its seed, then answers."""
    return ScriptedGenerator(
        WordCodec(), lambda context, seed: SEARCH if num_results(context) < seed % (most + 1) else ANSWER
    )


@pytest.mark.parametrize("context", [THINKING, {"manager": "context_selfclip", "clip_tokens": 1}])
async def test_samples_hold_what_the_model_saw_and_the_sampled_logprobs(context: dict[str, object]) -> None:
    generator = searching(3)
    rollouts = make_rollouts(
        generator, generator._codec, branching=ALONE, environment=settings(context=context), tools=[StubTool("search")]
    )
    (group,) = await roll_out_groups(rollouts, [job(8)])
    saw = [list(request.prompt) for request in generator.requests]
    num_turns = [made.trajectory.num_turns for made in group.trajectories]
    assert max(num_turns) > 1
    if context is THINKING:
        assert [len(made.samples) for made in group.trajectories] == num_turns
    for made, item in zip(group.trajectories, group.items, strict=True):
        assert item.num_turns == len(made.turn_starts) == made.trajectory.num_turns
        assert item.model_tokens == sum(made.env_mask) and len(made.env_mask) == len(made.completion_ids)
        for sample in made.samples:
            ends = [*sample.turn_starts[1:], len(sample.completion_ids)]
            for start, end in zip(sample.turn_starts, ends, strict=True):
                assert [*sample.prompt_ids, *sample.completion_ids[:start]] in saw
                trained = [
                    value
                    for value, mask in zip(sample.logprobs[start:end], sample.env_mask[start:end], strict=True)
                    if mask
                ]
                assert trained == [-1.0 - place for place in range(len(trained))] and trained
        assert len(made.samples) == 1 or made.samples[0].env_mask[-1] == 1
        assert item.total_tokens == sum(len(sample.ids) for sample in made.trajectory.samples)


async def test_groups_whose_rollouts_have_several_contexts_do_not_branch() -> None:
    generator = searching(1)
    rollouts = make_rollouts(
        generator, generator._codec, branching=Branching(1), environment=settings(context=THINKING)
    )
    with pytest.raises(ConfigError, match="branch only if each has one context"):
        await roll_out_groups(rollouts, [job(2)])


async def test_samples_beyond_the_limit_are_not_trained() -> None:
    generator = searching(5)
    environment = settings(context={**THINKING, "max_samples": 2})
    rollouts = make_rollouts(
        generator, generator._codec, branching=ALONE, environment=environment, tools=[StubTool("search")]
    )
    (group,) = await roll_out_groups(rollouts, [job(8)])
    for made in group.trajectories:
        trained = [sample.is_trained for sample in made.samples]
        assert sum(trained) == min(2, len(trained)) and trained[-1]
    rows = rows_of_updates([ScoredGroup(group, [rewarded(1.0)] * 8)], 1, 1, lambda number: number)
    assert sum(any(row.env_mask) for row in rows) == sum(min(2, len(made.samples)) for made in group.trajectories)


@given(st.integers(1, 50), st.none() | st.integers(1, 60))
def test_trained_samples_are_spread_over_the_rollout(number: int, most: int | None) -> None:
    places = sorted(spread_over(number, most))
    assert len(places) == (number if most is None else min(number, most)) and places[-1] == number - 1
    gaps = [after - before for before, after in itertools.pairwise([-1, *places])]
    assert max(gaps) - min(gaps) <= 1


def rewarded(value: float | None) -> RewardedItem:
    made = object.__new__(RewardedItem)
    for name, one in {"reward": value or 0.0, "scored": value is not None}.items():
        object.__setattr__(made, name, one)
    return made


def scored(group: int, numbers: list[int], rewards: list[float | None], *, by_turn: bool) -> ScoredGroup:
    """Return a group whose trajectories have so many samples of one turn each; ids name trajectory and sample."""
    trajectories = [
        GroupTrajectory(
            session=place,
            samples=[
                GroupSample([1], [100 * group + place, number], [1, 0], [-1.0, 0.0], [0]) for number in range(count)
            ],
            trajectory=Trajectory("answered", "", [], [], [], count),
            branch_parent=None,
            branch_depth=0,
            seed=0,
        )
        for place, count in enumerate(numbers)
    ]
    advantages = [[100.0 * place + number for number in range(count)] for place, count in enumerate(numbers)]
    return ScoredGroup(
        Group(str(group), Task("q", "?"), trajectories),
        [rewarded(reward) for reward in rewards],
        advantages if by_turn else None,
    )


@given(
    data=st.data(),
    group_size=st.integers(1, 4),
    num_updates=st.integers(1, 3),
    per_update=st.integers(1, 3),
    others=st.integers(0, 40),
    by_turn=st.booleans(),
)
def test_updates_are_filled_to_one_length_and_no_sample_is_dropped(
    data: st.DataObject, group_size: int, num_updates: int, per_update: int, others: int, by_turn: bool
) -> None:
    counts = st.lists(st.integers(1, 5), min_size=group_size, max_size=group_size)
    rewards = st.lists(st.none() | st.sampled_from([0.0, 0.5, 1.0]), min_size=group_size, max_size=group_size)
    made = [
        scored(number, data.draw(counts), data.draw(rewards), by_turn=by_turn)
        for number in range(num_updates * per_update)
    ]
    share = per_update * group_size
    micro_batches = data.draw(st.sampled_from([n for n in range(1, share + 1) if share % n == 0]))
    rows = rows_of_updates(made, num_updates, micro_batches, lambda number: max(number, others))
    length, rest = divmod(len(rows), num_updates)
    assert not rest and length % micro_batches == 0 and len(rows) % group_size == 0 and length >= others
    for update in range(num_updates):
        part = rows[update * length : (update + 1) * length]
        groups = made[update * per_update : (update + 1) * per_update]
        real = [row for row in part if any(row.env_mask)]
        samples = [sample for one in groups for trajectory in one.group.trajectories for sample in trajectory.samples]
        assert [row.completion_ids for row in real] == [sample.completion_ids for sample in samples]
        assert all(row.reward is None and row.advantage in (0.0, [0.0]) for row in part if row not in real)
        check_shared(real, groups)


def check_shared(rows: list[SampleRow], groups: list[ScoredGroup]) -> None:
    """Check that samples share their rollout's advantage, and that each rollout counts once in its group."""
    left = iter(rows)
    for one in groups:
        values = [reward.reward for reward in one.rewards if reward.scored]
        expected = iter(group_advantages(values) if len(values) > 1 else [0.0] * len(values))
        for place, (trajectory, reward) in enumerate(zip(one.group.trajectories, one.rewards, strict=True)):
            advantage = next(expected) if reward.scored else 0.0
            own = list(itertools.islice(left, len(trajectory.samples)))
            assert [row.reward for row in own] == [reward.reward if reward.scored else None, *[None] * (len(own) - 1)]
            if one.advantages is None:
                assert {row.advantage for row in own if isinstance(row.advantage, float)} == {advantage}
            else:
                assert [row.advantage for row in own] == [[value] * 2 for value in one.advantages[place]]
