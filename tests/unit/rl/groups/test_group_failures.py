"""Infrastructure failures of rollout groups: failures, outages that are waited out, time that does not count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.servers import own_clock
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
)

from treadle.agent.contract import EpisodeOptions, InitialState, Task
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.search import SearchTool, SearchToolSettings
from treadle.core.errors import EndpointUnavailable, EngineError, ModelError, ToolError
from treadle.core.seeds import derive_seed
from treadle.core.work_clock import work_clock
from treadle.environments.question.episode import QuestionEpisode
from treadle.environments.question.runtime import QuestionRuntime
from treadle.retriever.index import Hit
from treadle.rl.groups.attempts import require_groups
from treadle.rl.groups.batching import BatchedModel, BatchMembership
from treadle.rl.groups.branching import Branching
from treadle.rl.groups.group import Group
from treadle.rl.groups.rollout import GroupRollouts, roll_out_groups


class Counted(QuestionEpisode):
    """Records when it is closed."""

    opened = 0
    closed = 0

    async def reset(self, task: Task, options: EpisodeOptions) -> InitialState:
        type(self).opened += 1
        return await super().reset(task, options)

    async def close(self) -> None:
        type(self).closed += 1


@dataclass(frozen=True)
class RuntimeOf(QuestionRuntime):
    """Makes episodes of one class."""

    kind: type[QuestionEpisode] = QuestionEpisode

    def episode(self) -> QuestionEpisode:
        return self.kind(self.settings, self.tools)


class Broken(StubTool):
    """Out of order for some calls."""

    def __init__(self, error: Exception, fails: Callable[[str], bool]) -> None:
        super().__init__("search")
        self._error = error
        self._fails = fails

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        await super().call(argument, deadline=deadline, context=context)
        if self._fails(argument):
            raise self._error
        return ToolOutcome("ok", "found")


def search_outage() -> ToolError:
    error = ToolError("the search service at x is down")
    error.retryable = True
    return error


def with_tool(tool: StubTool, reply: Callable[[str, int], str], branching: Branching = ALONE) -> GroupRollouts:
    codec = WordCodec()

    class Episode(Counted):
        pass

    rollouts = make_rollouts(ScriptedGenerator(codec, reply), codec, branching=branching)
    return replace(rollouts, runtime=RuntimeOf(settings(), {"search": tool}, kind=Episode))


def search_by_seed(context: str, seed: int) -> str:
    return ANSWER if num_results(context) else f"<search>{seed}</search>"


@pytest.mark.parametrize("branching", [ALONE, Branching(2, probability=1.0)])
@pytest.mark.parametrize("error", [search_outage(), EndpointUnavailable("all of them are down"), ModelError("refused")])
async def test_infrastructure_failure_fails_its_group_only(error: Exception, branching: Branching) -> None:
    seeds = {str(derive_seed(derive_seed(1, session), 0)) for session in range(2)}
    tool = Broken(error, lambda argument: argument in seeds)
    rollouts = with_tool(tool, search_by_seed, branching)
    failed, fine = await roll_out_groups(rollouts, [job(4, 1, "a"), job(4, 2, "b")])
    assert (failed.group_id, failed.trajectories, failed.items) == ("a", [], [])
    assert failed.error == str(error)
    assert failed.retryable == getattr(error, "retryable", False)
    assert (fine.error, len(fine.trajectories)) == ("", 4)
    assert rollouts.membership.num_active == 0
    episode = type(rollouts.runtime.episode())
    assert issubclass(episode, Counted)
    assert episode.opened == episode.closed > 0


async def test_failure_ends_waiting_siblings() -> None:
    first = str(derive_seed(derive_seed(1, 0), 0))
    ended: list[str] = []

    class Stuck(StubTool):
        async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
            if argument == first:
                raise search_outage()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append(argument)
                raise
            raise AssertionError

    rollouts = with_tool(Stuck("search"), search_by_seed)
    (group,) = await roll_out_groups(rollouts, [job(4)])
    assert group.error
    assert len(ended) == 3


class LateStart(Counted):
    """Cannot be opened the first two times."""

    async def reset(self, task: Task, options: EpisodeOptions) -> InitialState:
        made = await super().reset(task, options)
        if type(self).opened <= 2:
            raise search_outage()
        return made


async def test_rollouts_after_lost_first_ones_are_still_started() -> None:
    codec = WordCodec()
    rollouts = make_rollouts(ScriptedGenerator(codec, rounds_of_tools(1)), codec, branching=Branching(2))
    rollouts = replace(rollouts, runtime=RuntimeOf(settings(), {"search": StubTool("search")}, kind=LateStart))
    (group,) = await require_groups(rollouts, [job(4)], attempts=1, keeps_rest=True)
    assert [made.lost_to for made in group.trajectories] == ["environment"] * 2 + [""] * 2
    assert [made.branch_parent for made in group.trajectories] == [None] * 4


class Pauses:
    """Notes pauses in place of making them."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


async def test_outage_is_waited_out_with_growing_pauses(caplog: pytest.LogCaptureFixture) -> None:
    pauses = Pauses()
    service = Broken(search_outage(), lambda _: sum(pauses.seconds) < 30)
    jobs = [job(3, seed, str(seed)) for seed in range(3)]
    groups = await require_groups(with_tool(service, search_by_seed), jobs, sleep=pauses)
    assert [group.error for group in groups] == [""] * 3
    assert pauses.seconds == [0.0, 5.0, 10.0, 20.0]
    wanted = "3 of 3 groups failed, retrying in {:g} s; first cause: the search service at x is down"
    assert [record.getMessage() for record in caplog.records] == [wanted.format(pause) for pause in pauses.seconds]


async def test_failed_groups_are_retried_and_then_raise() -> None:
    failures = iter([True, *[False] * 100])
    mended = with_tool(Broken(search_outage(), lambda _: next(failures)), search_by_seed)
    jobs = [job(3, seed, str(seed)) for seed in range(3)]
    once, always, never = Pauses(), Pauses(), Pauses()
    groups = await require_groups(mended, jobs, sleep=once)
    assert once.seconds == [0.0]
    assert [(group.group_id, group.error, len(group.trajectories)) for group in groups] == [
        ("0", "", 3),
        ("1", "", 3),
        ("2", "", 3),
    ]
    broken = Broken(search_outage(), lambda _: True)
    with pytest.raises(EngineError, match="3 of 3 groups could not be rolled out; first cause: the search service"):
        await require_groups(with_tool(broken, search_by_seed), jobs, sleep=always)
    assert always.seconds == sorted(always.seconds) and 300 <= sum(always.seconds) <= 360
    final = Broken(ModelError("no such model"), lambda _: True)
    with pytest.raises(EngineError, match="no such model"):
        await require_groups(with_tool(final, lambda *_: SEARCH), [job(1)], sleep=never)
    assert (len(final.arguments), never.seconds) == (1, [])


@pytest.mark.parametrize("error", [ToolError("set up wrongly"), ZeroDivisionError("a defect")])
async def test_permanent_error_is_raised(error: Exception) -> None:
    rollouts = with_tool(Broken(error, lambda _: True), search_by_seed)
    with pytest.raises(type(error), match=str(error)):
        await roll_out_groups(rollouts, [job(2, 1, "a"), job(2, 2, "b")])
    episode = type(rollouts.runtime.episode())
    assert issubclass(episode, Counted)
    assert episode.opened == episode.closed


async def test_environment_that_fails_to_close_keeps_no_other_open() -> None:
    class Stubborn(Counted):
        async def close(self) -> None:
            await super().close()
            if self.closed == 2:
                raise ZeroDivisionError("a defect")

    rollouts = with_tool(StubTool("search"), search_by_seed)
    rollouts = replace(rollouts, runtime=RuntimeOf(settings(), {"search": StubTool("search")}, kind=Stubborn))
    with pytest.raises(ZeroDivisionError):
        await roll_out_groups(rollouts, [job(4)])
    assert (Stubborn.opened, Stubborn.closed, rollouts.membership.num_active) == (4, 4, 0)


async def test_failed_tool_call_is_an_agent_outcome_and_fails_no_group() -> None:
    codec = WordCodec()
    tool = StubTool("search", "no", status="error")
    rollouts = make_rollouts(ScriptedGenerator(codec, rounds_of_tools(2)), codec, branching=ALONE, tools=[tool])
    (group,) = await roll_out_groups(rollouts, [job(2)])
    assert [(item.tool_calls, item.tool_failures) for item in group.items] == [(2, 2)] * 2


class Lasting(StubTool):
    """Takes this number of seconds; records its time limit."""

    def __init__(self, seconds: float) -> None:
        super().__init__("search")
        self.given: list[float] = []
        self.budgets_s: list[float | None] = []
        self._seconds = seconds

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        self.given.append(deadline - work_clock().time())
        self.budgets_s.append(context.budget_s if context else None)
        await asyncio.sleep(self._seconds)
        return replace(await super().call(argument, deadline=deadline, context=context), seconds=self._seconds)


class Slow:
    """A corpus behind a service that freezes for a while."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def search(self, query: str, top_n: int, *, deadline: float) -> Sequence[Hit]:
        async with asyncio.timeout_at(deadline):
            await asyncio.sleep(30.0)
        return [Hit("1", "Title", "Text", 1.0)]


def test_frozen_search_service_takes_no_time_of_a_trajectory(tmp_path: Path) -> None:
    async def work() -> Group:
        codec = WordCodec()
        tool = SearchTool(SearchToolSettings(corpus=(tmp_path / "corpus.jsonl",)), Slow())
        scripted = ScriptedGenerator(codec, rounds_of_tools(2))
        rollouts = make_rollouts(scripted, codec, branching=ALONE, tools=[tool])  # type: ignore[list-item]
        (group,) = await roll_out_groups(replace(rollouts, rollout_time_s=5.0), [job(2)])
        return group

    group = own_clock.run(work())
    assert [(item.status, item.tool_calls, item.tool_failures) for item in group.items] == [("answered", 2, 0)] * 2
    assert all(call.seconds == 30.0 for made in group.trajectories for call in made.trajectory.calls)


@pytest.mark.parametrize("branching", [ALONE, Branching(4, probability=1.0)])
async def test_waiting_for_siblings_and_engine_takes_no_time_of_a_trajectory(branching: Branching) -> None:
    codec, membership = WordCodec(), BatchMembership()
    with BatchedModel(ScriptedGenerator(codec, rounds_of_tools(3)), membership, max_batch=1) as model:
        rollouts = make_rollouts(model, codec, branching=branching, membership=membership)
        # Any wait at all is longer.
        (group,) = await roll_out_groups(replace(rollouts, rollout_time_s=1e-9), [job(8)])
    assert [(item.status, item.tool_calls) for item in group.items] == [("answered", 3)] * 8


def test_calls_use_trajectory_time_and_a_branch_inherits_the_remainder() -> None:
    own_clock.run(_use_up_the_time())


async def _use_up_the_time() -> None:
    codec, tool = WordCodec(), Lasting(3.0)
    endless, once = Branching(1, probability=1.0), rounds_of_tools(1)
    rollouts = make_rollouts(ScriptedGenerator(codec, lambda *_: SEARCH), codec, branching=endless, tools=[tool])
    (group,) = await roll_out_groups(replace(rollouts, rollout_time_s=5.0), [job(2)])
    assert [(item.status, item.tool_calls) for item in group.items] == [("timeout", 2)] * 2
    assert all(given <= left for given, left in zip(tool.given, [5.0, 2.0, 2.0], strict=True))
    # Not a moment of waiting is taken off.
    assert tool.budgets_s == [5.0, 2.0, 2.0]
    rollouts = make_rollouts(ScriptedGenerator(codec, once), codec, branching=endless, tools=[Lasting(3.0)])
    for time_s, status in ((3.5, "answered"), (3.0, "timeout")):
        (group,) = await roll_out_groups(replace(rollouts, rollout_time_s=time_s), [job(2)])
        assert [item.status for item in group.items] == [status] * 2
