"""What is shown of a step while it runs: rollouts by state, the time that they need, the servers of all processes."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

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
)

from treadle.core.errors import EndpointUnavailable
from treadle.core.llm.types import Completion, CompletionRequest, EndpointState
from treadle.core.runs.live_status import read_live_status
from treadle.core.runs.stage import Progress
from treadle.core.seeds import derive_seed
from treadle.rl.groups.attempts import require_groups
from treadle.rl.groups.group import Group, OverSampler
from treadle.rl.groups.live import LiveRollouts, ProcessStatus, RolloutCounts
from treadle.rl.groups.live_files import LiveFiles, together
from treadle.rl.groups.oversampling import OverSampling
from treadle.rl.groups.rollout import GroupRollouts, roll_out_groups
from treadle.rl.training.progress import RlProgress, step_text


class Paced(ScriptedGenerator):
    """A model that takes a second per turn of the first rollout, two of the second, and so on."""

    def __init__(self, lost: tuple[int, ...] = ()) -> None:
        super().__init__(WordCodec(), lambda context, _: SEARCH if num_results(context) == 0 else ANSWER)
        self.lost = lost
        self.numbers = {derive_seed(derive_seed(1, number), turn): number for number in range(6) for turn in range(2)}

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        number = self.numbers[request.seed]
        await asyncio.sleep(number + 1.0)
        if number in self.lost:
            raise EndpointUnavailable("the model is down")
        return await super().complete(request, session=session, deadline=deadline)


def rollouts_of(model: Paced, live: LiveRollouts) -> GroupRollouts:
    rollouts = make_rollouts(model, model._codec, branching=ALONE, tools=[StubTool("search")])  # type: ignore[arg-type]
    return replace(rollouts, live=live)


def test_rollouts_of_a_step_are_counted_by_state_while_it_runs() -> None:
    live, seen = LiveRollouts(), []

    async def watch() -> None:
        for _ in range(5):
            await asyncio.sleep(0.9)
            seen.append(live.status().rollouts)

    async def work() -> None:
        live.begin(1)
        watching = asyncio.create_task(watch())
        await require_groups(rollouts_of(Paced(lost=(2,)), live), [job(3)], attempts=1, keeps_rest=True)
        await watching

    own_clock.run(work())
    shown = [(one.queued, one.running, one.finished, one.failed) for one in seen]
    # The rollouts end after 2, 4 and 3 seconds.
    assert shown == [(0, 3, 0, 0), (0, 3, 0, 0), (0, 2, 1, 0), (0, 1, 1, 1), (0, 0, 2, 1)]
    assert 0 == seen[0].tokens < seen[1].tokens < seen[3].tokens < seen[4].tokens


def test_cancelled_rollouts_of_over_sampled_groups_are_counted() -> None:
    async def reward_of(group: Group) -> float | None:
        return float(group.trajectories[0].session)

    live = LiveRollouts()

    async def work() -> None:
        live.begin(1)
        over = OverSampler(OverSampling.of(2, 3.0), reward_of)
        await roll_out_groups(replace(rollouts_of(Paced(), live), over_sampler=over), [job(2)])

    own_clock.run(work())
    counts = live.status().rollouts
    assert (counts.finished, counts.cancelled, counts.num_open) == (2, 4, 0)


def test_group_that_is_tried_again_counts_once_and_its_tokens_stay() -> None:
    live = LiveRollouts()
    live.begin(1)
    for counts in (RolloutCounts(running=2, queued=1, tokens=5), RolloutCounts(finished=3, tokens=7)):
        with live.group("g", lambda counts=counts: counts):
            pass
    assert live.status().rollouts == RolloutCounts(finished=3, tokens=7) and live.status().tokens == 12
    live.begin(2)
    assert live.status().rollouts == RolloutCounts() and live.status().tokens == 12
    assert live.status().usual_s is not None


def test_estimate_is_by_the_step_before_else_by_the_share_that_ended() -> None:
    counts = RolloutCounts(running=2, queued=1, finished=1)
    assert ProcessStatus(step=1, rollouts=counts, elapsed_s=10.0).left_s == 30.0
    assert ProcessStatus(step=2, rollouts=counts, elapsed_s=10.0, usual_s=50.0).left_s == 40.0
    assert ProcessStatus(step=2, rollouts=counts, elapsed_s=60.0, usual_s=50.0).left_s == 180.0, "it takes longer"
    assert ProcessStatus(step=1, rollouts=RolloutCounts(running=4), elapsed_s=9.0).left_s is None
    assert ProcessStatus(step=2, rollouts=RolloutCounts(finished=4), elapsed_s=9.0, usual_s=50.0).left_s is None
    status = ProcessStatus(step=2, rollouts=counts + RolloutCounts(failed=1), elapsed_s=10.0, usual_s=400.0)
    assert step_text(status, 8) == (
        "step 2 of 8: 1 of 5 rollouts finished, 2 running, 1 queued, 1 failed; about 6 min left for them"
    )


def server(url: str, health: str, answered: int, **errors: int) -> EndpointState:
    return EndpointState(url, health, 1, 2, answered, 10 * answered, errors, "refused" if errors else "")


def test_files_of_processes_are_added_up_and_reported_once(tmp_path: Path) -> None:
    one, two = server("http://one/v1", "healthy", 3), server("http://one/v1", "down", 4, connect=2)
    other = server("http://two/v1", "trial", 1)
    statuses = [
        ProcessStatus(step=3, rollouts=RolloutCounts(running=1), elapsed_s=4.0, usual_s=9.0, tokens=10,
                      servers=(("rl.reward", one), ("rl.reward", other))),
        ProcessStatus(step=3, rollouts=RolloutCounts(finished=2), elapsed_s=5.0, tokens=20,
                      servers=(("rl.reward", two),)),
        ProcessStatus(step=2, rollouts=RolloutCounts(finished=7), elapsed_s=99.0, tokens=1),
    ]  # fmt: skip
    files = LiveFiles(tmp_path)
    assert files.new() is None
    for number, status in enumerate(statuses):
        (tmp_path / f"{number}.json").write_text(json.dumps(asdict(status)))
    (tmp_path / "damaged.json").write_text("{")
    whole = files.new()
    assert whole == together(statuses) and files.new() is None
    assert (whole.step, whole.rollouts, whole.elapsed_s, whole.usual_s, whole.tokens) == (
        3, RolloutCounts(running=1, finished=2), 5.0, 9.0, 31,
    )  # fmt: skip
    assert [(model, state.url, state.health, state.answered, state.errors) for model, state in whole.servers] == [
        ("rl.reward", "http://one/v1", "down", 7, {"connect": 2}),
        ("rl.reward", "http://two/v1", "trial", 1, {}),
    ]


def test_stage_passes_on_what_the_processes_write(tmp_path: Path) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    states = [("rl.reward", server("http://one/v1", "healthy", 3))]
    progress = RlProgress(Progress(), scratch)
    progress.begin(4, 0)
    files = LiveFiles(tmp_path / "live")
    with LiveRollouts(tmp_path / "live", lambda: states) as live:
        live.begin(2)
        with live.group("g", lambda: RolloutCounts(running=1, finished=1, tokens=5)):
            live.write()
            status = files.new()
            assert status is not None
            progress.live(status)
            shown = read_live_status(scratch)
            assert shown.doing.startswith("step 2 of 4: 1 of 2 rollouts finished, 1 running")
            assert [(one.model, one.url, one.answered) for one in shown.model_servers] == [
                ("rl.reward", "http://one/v1", 3)
            ]
    progress.live(ProcessStatus())
    assert read_live_status(scratch).doing == ""


def test_exit_in_a_rule_ends_neither_the_training_nor_what_is_shown(tmp_path: Path) -> None:
    def leave() -> list[tuple[str, EndpointState]]:
        sys.exit(0)

    with LiveRollouts(tmp_path, leave) as live:
        live.write()
    assert list(tmp_path.iterdir()) == []
