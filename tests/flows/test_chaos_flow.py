"""A whole flow to which everything happens, under `treadle prefect up`: it ends as if nothing had been.

TREADLE_CHAOS_KILLS sets the number of misfortunes, of every kind in turn (none: two kinds that no other test has),
TREADLE_CHAOS_SEED repeats kinds and moments.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.flow_chaos import GONE_S, Chaos
from support.flow_site import HANG_S, MOST_IN_FLIGHT, RUN, FlowRun, Site, site
from support.runs.crash_bench import artifact_files
from support.runs.failing_disk import namespaces
from support.runs.processes import until
from support.servers.ports import free_port

from treadle.core.runs.run import Run
from treadle.core.store.leases import holder_of

KILLS = int(os.environ.get("TREADLE_CHAOS_KILLS", "0"))
SAMPLE = ("retriever", "database locked")
PER_RUN = 4
NUM_QUESTIONS = 32 if KILLS else 16


@dataclass
class Story:
    """The events of one run."""

    root: Path
    begin: int
    """Where its requests begin in the tutor's log."""
    flow_runs: list[FlowRun] = field(default_factory=list)
    happened: list[str] = field(default_factory=list)
    goes_on: bool = True
    """Whether nothing has happened of which the last flow run may have ended."""

    @property
    def may_repeat(self) -> int:
        """Return an upper bound of the requests in flight whenever a flow run or the tutor was killed."""
        return MOST_IN_FLIGHT * (len(self.flow_runs) - 1 + self.happened.count("model server"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    ports = {name: free_port() for name in ("prefect", "tutor", "search")}
    folder = tmp_path_factory.mktemp("chaos")
    with site(folder, ports, documents=200, questions=NUM_QUESTIONS, reinforce=KILLS > 0) as started:
        yield started


@pytest.mark.sweep
@pytest.mark.skipif(bool(namespaces()), reason=f"no mount namespace: {namespaces()}")
def test_flow_with_every_fault_matches_an_undisturbed_one(place: Site, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("TREADLE_CHAOS_SEED") or int.from_bytes(os.urandom(4), "big"))
    draws, chaos, began = random.Random(seed), Chaos(place), time.monotonic()
    with capsys.disabled():
        print(f"\nTREADLE_CHAOS_SEED={seed}", flush=True)
    is_up = place.begin_prefect()
    calm = Story(place.disk.path / "undisturbed", 0)
    place.run_alone(calm.root)
    expected, files = place.requests(calm.begin), artifact_files(place.seen(calm.root))
    length = place.progress(calm.root, calm.begin)
    assert set(expected.values()) == {1}
    is_up()
    left = misfortunes(draws, list(chaos.kinds))
    for number in range(len(left) + 2):
        if not left:
            break
        # The sample is to need one run.
        moments = sorted(draws.sample(range(1, length if KILLS else length // 2), PER_RUN))
        story = Story(place.disk.path / str(number), place.log_size)
        endure(place, chaos, story, list(zip(moments, left, strict=False)), draws)
        check(place, story, expected, files)
        left = left[len(story.happened) :]
        with capsys.disabled():
            again = sum(place.requests(story.begin).values()) - len(expected)
            print(
                f"\n{', '.join(story.happened) or 'nothing'}: {ends(place, story)}; {again} requests answered twice "
                f"of {story.may_repeat} in flight at most; {time.monotonic() - began:.0f} s",
                flush=True,
            )
        shutil.rmtree(place.seen(story.root))
    assert not left, "runs ended too soon for what was to happen to them"
    place.stop_prefect()
    until(lambda: not place.strays(), "nothing is left but tutor and retriever", GONE_S)


def misfortunes(draws: random.Random, kinds: list[str]) -> list[str]:
    """Kinds in random order, each as often as the others."""
    if not KILLS:
        return list(SAMPLE)
    drawn: list[str] = []
    while len(drawn) < KILLS:
        drawn += draws.sample(kinds, len(kinds))
    return drawn[:KILLS]


def endure(place: Site, chaos: Chaos, story: Story, moments: list[tuple[int, str]], draws: random.Random) -> None:
    """Run to the end whatever happens: at each moment, given as progress, one misfortune."""
    story.flow_runs.append(place.submit(story.root))
    for moment, kind in moments:
        if not reach(place, story, moment, draws):
            return
        story.goes_on = chaos.inject_fault(kind, story.flow_runs[-1])
        story.happened.append(kind)
    reach(place, story, None, draws)


def reach(place: Site, story: Story, moment: int | None, draws: random.Random) -> bool:
    """Wait for a moment, or for the end; False at the end.

    A flow run that ended badly is asked for again, where something has happened to it that ends flow runs.
    """
    while True:
        flow_run = story.flow_runs[-1]

        def is_there() -> bool:
            return moment is not None and place.progress(story.root, story.begin) >= moment

        until(lambda run=flow_run: place.is_over(run) or is_there(), f"{story.happened}: it goes on", 2 * HANG_S, 0.1)
        if not place.is_over(flow_run):
            return True
        if place.state(flow_run)["type"] == "COMPLETED":
            return False
        assert not story.goes_on, f"{story.happened}: the flow run was to go on: {ends(place, story)}"
        start = draws.choice([place.submit, place.run_in_terminal])
        story.flow_runs.append(start(story.root))
        story.goes_on = True


def check(place: Site, story: Story, expected: dict[int, int], files: dict[str, str]) -> None:
    """Check for the same bytes, no unnecessary request, a correct UI, and no leftover process or lock."""
    told = f"{story.happened}, {ends(place, story)}"
    assert artifact_files(place.seen(story.root)) == files, told
    asked = place.requests(story.begin)
    assert asked.keys() == expected.keys() and all(asked.values()), told
    assert sum(asked.values()) - len(asked) <= story.may_repeat, told
    run = Run.open(place.seen(story.root), RUN)
    assert {status.state for status in run.statuses()} == {"completed"}, told
    assert not any(run.verify().values())
    assert not [key for key in run.storage.keys(f"runs/{RUN}/locks") if holder_of(run.storage, key) is not None]
    assert not list(place.seen(story.root).rglob(".tmp-*"))
    assert not place.open_task_runs(), told
    states = [place.state(flow_run)["type"] for flow_run in story.flow_runs]
    assert states[-1] == "COMPLETED" and set(states[:-1]) <= {"CRASHED", "FAILED"}, told
    until(lambda: not place.strays(), "its processes end", HANG_S, 0.1)


def ends(place: Site, story: Story) -> str:
    """Return the states that the UI shows for its flow runs."""
    states = [place.state(flow_run) for flow_run in story.flow_runs]
    return ", ".join(f"{state['name']} ({(state['message'] or '')[:100]})" for state in states)
