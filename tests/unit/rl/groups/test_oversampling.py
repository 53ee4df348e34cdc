"""Over-sampled groups: when they end, which rollouts are kept, and what is known of those that are not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers import own_clock
from support.training.scripted_groups import ALONE, ANSWER, QUESTION, ScriptedGenerator, WordCodec, make_rollouts

from treadle.agent.contract import EpisodeOptions, InitialState, Task
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.seeds import derive_seed
from treadle.environments.question.episode import QuestionEpisode
from treadle.rl.groups.batching import BatchedModel, BatchMembership
from treadle.rl.groups.group import Group, GroupJob, OverSampler
from treadle.rl.groups.oversampling import OverSampling, StartedRollout, diverse_subset, oversampling_figures
from treadle.rl.groups.rollout import GroupRollouts, roll_out_groups

RULE = OverSampling.of(4, 2.0)
RIGHT, WRONG = "<answer>\\boxed{1}</answer>", "<answer>\\boxed{2}</answer>"


def test_numbers_of_a_group_follow_from_size_and_multiplier() -> None:
    assert (RULE.size, RULE.num_started, RULE.num_confirmed) == (4, 8, 6)
    assert OverSampling.of(10, 2.3).num_started == 23, "not 22, which floating point gives"
    for size, multiplier in ((4, 1.0), (4, 1.25), (1, 2.0), (2, 1.5)):
        with pytest.raises(ValueError, match=f"for a group of {size}"):
            OverSampling.of(size, multiplier)


@pytest.mark.covers("service-22")
def test_group_is_done_with_different_rewards_or_when_equal_ones_are_confirmed() -> None:
    assert [RULE.is_done([1.0] * number, 8 - number) for number in range(9)] == [False] * 6 + [True] * 3
    assert [RULE.is_done([0.0, 1.0, 1.0, 1.0, 1.0][:number], 8 - number) for number in range(2, 6)] == [
        False,
        False,
        True,
        True,
    ]
    assert RULE.is_done([1.0], 0), "no other is in progress"


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0])), st.integers(1, 8))
def test_subset_has_as_many_values_as_possible(rewards: list[float], size: int) -> None:
    chosen = diverse_subset(rewards, size)
    kept = [rewards[place] for place in chosen]
    assert chosen == sorted(set(chosen)) and len(chosen) == min(size, len(rewards))
    assert len(set(kept)) == min(size, len(set(rewards)))
    # No value is taken twice more often than another one that was left.
    left = [rewards[place] for place in range(len(rewards)) if place not in chosen]
    assert all(kept.count(value) <= kept.count(other) + 1 for value in kept for other in left)


class Paced(ScriptedGenerator):
    """A model whose answer to the trajectory `number` takes `number` + 1 seconds, and is wrong if it is in `wrong`."""

    def __init__(self, codec: WordCodec, wrong: Sequence[int], seconds: Mapping[int, float] | None = None) -> None:
        super().__init__(codec, lambda _, seed: WRONG if self.numbers[seed] in wrong else RIGHT)
        self.numbers = {derive_seed(derive_seed(1, number), 0): number for number in range(8)}
        self.ended: list[int] = []
        self.seconds = seconds or {}

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        number = self.numbers[request.seed]
        await asyncio.sleep(self.seconds.get(number, number + 1.0))
        self.ended.append(number)
        return await super().complete(request, session=session, deadline=deadline)


class Opened(QuestionEpisode):
    """Counts episodes in use."""

    in_use = 0
    most = 0

    async def reset(self, task: Task, options: EpisodeOptions) -> InitialState:
        Opened.in_use += 1
        Opened.most = max(Opened.most, Opened.in_use)
        return await super().reset(task, options)

    async def close(self) -> None:
        Opened.in_use -= 1


async def right_or_wrong(group: Group) -> float | None:
    (made,) = group.trajectories
    return float("boxed{1}" in made.trajectory.text)


def oversampled(model: ScriptedGenerator, codec: WordCodec, rule: OverSampling = RULE) -> GroupRollouts:
    rollouts = make_rollouts(model, codec, branching=ALONE)
    return replace(rollouts, over_sampler=OverSampler(rule, right_or_wrong))


def roll_out(wrong: Sequence[int], rule: OverSampling = RULE, **keys: float) -> tuple[Group, Paced, float]:
    codec = WordCodec()
    model = Paced(codec, wrong, {int(name[1:]): value for name, value in keys.items()})

    async def work() -> tuple[Group, float]:
        began = asyncio.get_running_loop().time()
        (group,) = await roll_out_groups(oversampled(model, codec, rule), [GroupJob("g", QUESTION, 4, 1)])
        return group, asyncio.get_running_loop().time() - began

    group, seconds = own_clock.run(work())
    return group, model, seconds


@pytest.mark.covers("service-22")
@pytest.mark.parametrize(
    ("wrong", "num_finished", "trained"),
    [
        ([], 6, [0, 1, 2, 3]),
        ([0], 4, [0, 1, 2, 3]),
        ([3], 4, [0, 1, 2, 3]),
        ([4], 5, [0, 1, 2, 4]),
        ([6], 6, [0, 1, 2, 3]),
    ],
    ids=["equal", "mixed", "mixed at last", "mixed later", "mixed too late"],
)
def test_surplus_rollouts_are_cancelled_and_released(
    wrong: list[int], num_finished: int, trained: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.environments.question.runtime.QuestionEpisode", Opened)
    Opened.in_use = Opened.most = 0
    group, model, seconds = roll_out(wrong)
    assert (model.ended, seconds) == (list(range(num_finished)), pytest.approx(num_finished))
    assert len(group.trajectories) == 4
    uses = [one.use for one in group.started]
    assert uses.count("trained") == 4 and uses[num_finished:] == ["cancelled"] * (8 - num_finished)
    assert [one.place for one in group.started if one.place is not None] == list(range(num_finished))
    assert [made.session for made in group.trajectories] == trained, "the only wrong one is kept"
    assert [one.session for one in group.started if one.use == "trained"] == trained
    assert (Opened.most, Opened.in_use) == (8, 0)


def test_one_slow_server_does_not_set_the_pace() -> None:
    """One rollout of eight is on a server ten times slower; without over-sampling the group waits for it."""
    slow = {"n2": 80.0}
    _, _, seconds = roll_out([0], **slow)
    assert seconds == pytest.approx(5.0)

    async def alone() -> float:
        codec = WordCodec()
        began = asyncio.get_running_loop().time()
        await roll_out_groups(
            make_rollouts(Paced(codec, [0], {2: 80.0}), codec, branching=ALONE), [GroupJob("g", QUESTION, 4, 1)]
        )
        return asyncio.get_running_loop().time() - began

    assert own_clock.run(alone()) == pytest.approx(80.0)


def test_audited_group_runs_to_its_end_and_trains_on_the_same_rollouts() -> None:
    usual, _, _ = roll_out([4])
    audited, model, seconds = roll_out([4], replace(RULE, audit_share=1.0))
    assert audited.is_audit and not usual.is_audit
    assert (len(model.ended), seconds) == (8, pytest.approx(8.0))
    assert [made.session for made in audited.trajectories] == [made.session for made in usual.trajectories]
    assert [one.use for one in audited.started].count("audit") == 3
    assert all(one.reward is not None for one in audited.started)


def test_share_of_audited_groups_is_drawn_by_their_seeds() -> None:
    codec = WordCodec()
    rollouts = oversampled(ScriptedGenerator(codec, lambda *_: ANSWER), codec, replace(RULE, audit_share=0.25))
    jobs = [GroupJob(str(seed), QUESTION, 4, seed) for seed in range(200)]

    async def work() -> list[bool]:
        return [group.is_audit for group in await roll_out_groups(rollouts, jobs)]

    first = asyncio.run(work())
    assert first == asyncio.run(work())
    assert 30 <= sum(first) <= 70


def test_without_oversampling_every_sampled_rollout_is_trained() -> None:
    """The trained distribution is the sampled one: nothing is left out, whatever the lengths."""
    codec = WordCodec()
    words = {number: "word " * number for number in range(8)}
    model = Paced(codec, [])
    model._reply = lambda _, seed: f"<think>{words[model.numbers[seed]]}</think>{ANSWER}"  # type: ignore[method-assign]
    rollouts = make_rollouts(model, codec, branching=ALONE)
    (group,) = own_clock.run(roll_out_groups(rollouts, [GroupJob("g", QUESTION, 8, 1)]))
    assert group.started == () and [made.session for made in group.trajectories] == list(range(8))
    trained = sorted(item.model_tokens for item in group.items)
    assert trained == sorted(len(codec.encode(model._reply("", seed))) + 0 for seed in model.numbers)


def test_batches_of_the_engine_wait_for_the_rewards_of_a_group() -> None:
    """In batches, which rollouts are cancelled does not depend on the speed of the rewards."""
    codec = WordCodec()
    membership = BatchMembership()
    seeds = {derive_seed(1, number): number for number in range(8)}
    turns = {derive_seed(seed, turn): (number, turn) for seed, number in seeds.items() for turn in range(9)}

    def reply(_: str, seed: int) -> str:
        number, turn = turns[seed]
        return (WRONG if number == 0 else RIGHT) if turn == number // 2 else "<search>q</search>"

    with BatchedModel(ScriptedGenerator(codec, reply), membership) as model:
        rollouts = make_rollouts(model, codec, branching=ALONE, membership=membership)
        rollouts = replace(rollouts, over_sampler=OverSampler(RULE, right_or_wrong))
        (group,) = asyncio.run(roll_out_groups(rollouts, [GroupJob("g", QUESTION, 4, 1)]))
    assert model.batch_sizes == [8, 6]
    assert [made.session for made in group.trajectories] == [0, 1, 2, 3]
    assert [(one.use, one.num_turns) for one in group.started[4:]] == [("cancelled", 2)] * 4
    assert all(one.model_tokens > 0 for one in group.started), "tokens so far"
    assert membership.num_active == 0


def test_figures_compare_trained_with_cancelled_rollouts_and_estimate_the_bias() -> None:
    audited = [
        StartedRollout(0, "trained", 10, 1, 1.0, 0),
        StartedRollout(1, "trained", 20, 1, 1.0, 1),
        StartedRollout(2, "audit", 60, 3, 0.0, 2),
    ]
    usual = [
        StartedRollout(0, "trained", 10, 1, 1.0, 0),
        StartedRollout(1, "unused", 12, 1, 1.0, 1),
        StartedRollout(2, "cancelled", 30, 2),
        StartedRollout(3, "cancelled", 50, 2),
    ]
    figures = oversampling_figures([(audited, True), (usual, False)])
    assert figures == {
        "num_cancelled": 2,
        "cancelled_length": 40.0,
        "num_unused": 1,
        "num_audited_groups": 1,
        "length_bias": 15.0 - 30.0,
        "reward_bias": pytest.approx(1.0 - 2 / 3),
    }
    assert oversampling_figures([(usual, False)])["length_bias"] is None
