"""Attempts at rollouts of groups: new episodes, rollouts that are lost, environments that hang, prompts too long."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from support.servers import own_clock
from support.training.scripted_groups import (
    ALONE,
    ANSWER,
    ScriptedGenerator,
    StubTool,
    WordCodec,
    make_rollouts,
    settings,
)

from treadle.agent.contract import EpisodeOptions, InitialState, ModelTurn, Observation, StepContext, Task
from treadle.core.errors import EndpointUnavailable, EngineError, ModelError, ToolError
from treadle.environments.question.episode import QuestionEpisode
from treadle.environments.question.runtime import QuestionRuntime
from treadle.rl.groups.attempts import check_step, require_groups, retry_pauses_s
from treadle.rl.groups.branching import Branching
from treadle.rl.groups.group import Group, GroupJob
from treadle.rl.groups.rollout import GroupRollouts, roll_out_groups
from treadle.rl.groups.session import CLOSE_S, TimedEpisode
from treadle.rl.rewards.rewarded import RewardedItem
from treadle.rl.training.figures import step_figures


def outage() -> ToolError:
    error = ToolError("the environment crashed")
    error.retryable = True
    return error


@dataclass
class Episodes:
    """Notes which episodes are open, and decides which ones fail: by task, and by their number for it."""

    fails: Callable[[str, int], Exception | None]

    def __post_init__(self) -> None:
        self.opened = Counter[str]()
        self.instances = set[int]()
        self.in_use = set[int]()

    def open(self, key: str) -> tuple[int, Exception | None]:
        number = self.opened[key]
        self.opened[key] += 1
        instance = len(self.instances)
        self.instances.add(instance)
        self.in_use.add(instance)
        return instance, self.fails(key, number)


@dataclass(frozen=True)
class Runtime(QuestionRuntime):
    """Makes episodes that fail as told."""

    episodes: Episodes | None = None

    def episode(self) -> QuestionEpisode:
        assert self.episodes is not None
        episode = Fragile(self.settings, self.tools)
        episode.episodes = self.episodes
        return episode


class Fragile(QuestionEpisode):
    """Reports to `Episodes`; fails when it takes its first step."""

    episodes: Episodes
    instance = -1
    error: Exception | None = None

    async def reset(self, task: Task, options: EpisodeOptions) -> InitialState:
        self.instance, self.error = self.episodes.open(task.key)
        return await super().reset(task, options)

    async def step(self, turn: ModelTurn, context: StepContext) -> Observation:
        if self.error is not None:
            raise self.error
        return await super().step(turn, context)

    async def close(self) -> None:
        self.episodes.in_use.discard(self.instance)
        await super().close()


def fragile(episodes: Episodes, branching: Branching = ALONE) -> GroupRollouts:
    codec = WordCodec()
    rollouts = make_rollouts(ScriptedGenerator(codec, lambda *_: ANSWER), codec, branching=branching)
    tools = {"search": StubTool("search"), "python": StubTool("python")}
    return replace(rollouts, runtime=Runtime(settings(), tools, episodes=episodes))


def jobs(number: int, size: int) -> list[GroupJob]:
    return [GroupJob(f"1-{place}", Task(f"t{place}", "Where?"), size, place) for place in range(number)]


async def no_pause(_: float) -> None: ...


def statuses(group: Group) -> list[str]:
    return [item.status for item in group.items]


@pytest.mark.covers("service-12")
async def test_trajectories_come_in_the_order_of_tasks_and_of_their_numbers() -> None:
    for number in (4, 12):
        groups = await require_groups(fragile(Episodes(lambda *_: None)), jobs(number, 8), sleep=no_pause)
        order = [(group.question.key, made.session) for group in groups for made in group.trajectories]
        assert order == [(f"t{task}", session) for task in range(number) for session in range(8)]


@pytest.mark.covers("service-13")
async def test_every_attempt_has_new_episodes_and_all_are_released() -> None:
    """The first two episodes of the first attempt, and of the second, fail."""
    episodes = Episodes(lambda _, number: outage() if number in (0, 2) else None)
    (group,) = await require_groups(fragile(episodes), jobs(1, 2), sleep=no_pause)
    assert statuses(group) == ["answered"] * 2
    assert len(episodes.instances) == 6 and not episodes.in_use


@pytest.mark.covers("service-14")
@pytest.mark.parametrize("error", [outage(), EndpointUnavailable("no server"), ModelError("refused")])
async def test_group_that_always_fails_is_dropped_and_counted_and_others_are_intact(error: Exception) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    episodes = Episodes(lambda key, _: error if key == "t1" else None)
    groups = await require_groups(fragile(episodes), jobs(4, 8), attempts=3, keeps_rest=True, sleep=pause)
    assert [set(statuses(group)) for group in groups] == [{"answered"}, {"failed"}, {"answered"}, {"answered"}]
    cause = "model" if isinstance(error, ModelError) else "environment"
    assert {made.lost_to for made in groups[1].trajectories} == {cause}
    assert len(groups[1].trajectories) == 8 and all(made.prompt_ids for made in groups[1].trajectories)
    assert pauses == ([0.0, 5.0] if getattr(error, "retryable", False) else [])
    assert episodes.opened["t0"] == 8 and not episodes.in_use
    figures = step_figures([[_rewarded(status) for status in statuses(group)] for group in groups])
    assert (figures["num_lost"], figures["num_lost_groups"], figures["num_rollouts"]) == (8, 1, 24)


def _rewarded(status: str) -> RewardedItem:
    return RewardedItem(
        reward=1.0, scored=status == "answered", parts={}, notes=(), score=None, answer="", scorer="em", status=status,
        tool_calls=0, tool_failures=0, length=1,
    )  # fmt: skip


async def test_rollout_that_always_fails_is_lost_alone_while_two_are_left() -> None:
    """In the last attempt, the given number of the four rollouts of the first task fail."""
    for num_failing, left in ((1, 3), (2, 2), (3, 0)):

        def fails(key: str, number: int, num_failing: int = num_failing) -> Exception | None:
            return outage() if key == "t0" and number % 4 < num_failing else None

        episodes = Episodes(fails)
        groups = await require_groups(fragile(episodes), jobs(3, 4), attempts=2, keeps_rest=True, sleep=no_pause)
        assert statuses(groups[0]).count("answered") == left and len(groups[0].trajectories) == 4
        assert [made.session for made in groups[0].trajectories] == list(range(4))
        assert statuses(groups[1]) == ["answered"] * 4 and not episodes.in_use


async def test_step_fails_if_fewer_than_half_of_its_rollouts_are_left() -> None:
    for num_lost, fails in ((2, False), (3, True)):
        episodes = Episodes(lambda key, _, num_lost=num_lost: outage() if int(key[1:]) < num_lost else None)  # type: ignore[misc]
        work = require_groups(fragile(episodes), jobs(4, 4), attempts=2, keeps_rest=True, sleep=no_pause)
        if fails:
            with pytest.raises(
                EngineError,
                match=r"only 4 of 16 rollouts of a step are left, .*lost to environment 12.*the environment crashed",
            ):
                check_step(await work)
        else:
            check_step(await work)


async def test_validation_loses_nothing() -> None:
    episodes = Episodes(lambda key, _: outage() if key == "t0" else None)
    with pytest.raises(EngineError, match="1 of 4 groups could not be rolled out"):
        await require_groups(fragile(episodes), jobs(4, 1), attempts=2, sleep=no_pause)


async def test_branching_group_goes_on_without_lost_trajectories() -> None:
    episodes = Episodes(lambda _, number: outage() if number == 0 else None)
    rollouts = fragile(episodes, Branching(2))
    (group,) = await roll_out_groups(rollouts, [replace(jobs(1, 4)[0], keeps_rest=True)])
    assert statuses(group) == ["failed", "answered", "answered", "answered"]
    assert rollouts.membership.num_active == 0


def test_pauses_grow_and_are_as_many_as_further_attempts() -> None:
    assert [retry_pauses_s(number) for number in (1, 2, 4)] == [[], [0.0], [0.0, 5.0, 10.0]]
    assert retry_pauses_s(8)[-1] == 160.0 and 300 <= sum(retry_pauses_s(8)) <= 360


class Hanging(QuestionEpisode):
    """Ignores its deadlines; may also hang in `reset`."""

    closed = 0

    async def step(self, turn: ModelTurn, context: StepContext) -> Observation:
        await asyncio.sleep(10**6)
        raise AssertionError

    async def close(self) -> None:
        type(self).closed += 1


@dataclass(frozen=True)
class HangingRuntime(QuestionRuntime):
    def episode(self) -> QuestionEpisode:
        return Hanging(self.settings, self.tools)


def test_environment_that_hangs_is_given_up_at_the_wall_limit() -> None:
    Hanging.closed = 0
    codec = WordCodec()
    rollouts = make_rollouts(ScriptedGenerator(codec, lambda *_: ANSWER), codec, branching=ALONE)
    rollouts = replace(rollouts, runtime=HangingRuntime(settings(), {}), rollout_time_s=100.0, wall_limit_s=1800.0)

    async def work() -> tuple[Group, float]:
        (group,) = await roll_out_groups(rollouts, jobs(1, 3))
        return group, asyncio.get_running_loop().time()

    group, seconds = own_clock.run(work())
    assert group.retryable and "within 1800 s of work (the longer of wall_limit_s" in group.error
    assert (seconds, Hanging.closed, group.lost_to) == (1800.0, 3, "environment")
    longer = TimedEpisode(Hanging(settings(), {}), 5000.0, wall_limit_s=1800.0)
    assert longer._wall_left_s == 5060.0, "never before the agent's own time is up"


def test_episode_that_hangs_in_its_end_is_left() -> None:
    class Endless(Hanging):
        async def close(self) -> None:
            await asyncio.sleep(10**6)

    async def work() -> float:
        episode = TimedEpisode(Endless(settings(), {}), 100.0)
        await episode.close()
        await episode.close()
        return asyncio.get_running_loop().time()

    assert own_clock.run(work()) == CLOSE_S


@pytest.mark.covers("service-16")
async def test_prompt_that_is_too_long_has_no_reward_and_costs_one_attempt() -> None:
    episodes = Episodes(lambda *_: None)
    fine = fragile(episodes)
    limits = replace(fine.engine.limits, max_prompt_tokens=1)
    rollouts = replace(fine, engine=replace(fine.engine, limits=limits))

    class Both:
        async def roll_out(self, job: GroupJob) -> Group:
            return await (rollouts if job.question.key == "t0" else fine).roll_out(job)

    groups = await require_groups(Both(), jobs(3, 2), keeps_rest=True, sleep=no_pause)
    assert statuses(groups[0]) == ["context_full"] * 2 and not any(item.was_played for item in groups[0].items)
    assert all(len(made.prompt_ids) == 1 and not made.completion_ids for made in groups[0].trajectories)
    assert episodes.opened == {"t0": 2, "t1": 2, "t2": 2}
    assert [item.was_played for group in groups[1:] for item in group.items] == [True] * 4
