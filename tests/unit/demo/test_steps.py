"""Steps of the demo: their numbers, and the time that is left by what they usually take."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.core.figures import duration
from treadle.core.runs.run import Run
from treadle.demo import steps
from treadle.demo.steps import STEPS, DemoSteps
from treadle.tasks.catalog import flow_instances
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.order import flow_addresses

MODELS = {name: {"model": name, "endpoints": [{"url": "http://127.0.0.1:9/v1"}]} for name in ("tutor", "base")}
CONFIG = TreadleConfig.model_validate({
    "models": MODELS,
    "flow": {"stages": ["pools", "rollouts", "scores", "report"], "models": ["tutor", "base"]},
    "questions": {"sources": [{"path": __file__, "dataset": "d", "domain": "math"}]},
    "environment": {"search": {"enabled": False}},
})  # fmt: skip
ADDRESSES = list(map(str, flow_addresses(CONFIG)))


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Demo:
    """A demo of which nothing is made at first."""

    def __init__(self, run: Run, *, timed: bool = True) -> None:
        self.instances = {str(item.address): item for item in flow_instances(CONFIG)}
        self.steps = DemoSteps(list(self.instances.values()), run, timed=timed)
        self.run = run

    def begin(self, address: str) -> tuple[str, float | None, float | None]:
        return self.steps.begin(self.instances[address], self.run)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(steps, "time", made)
    return made


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return a table of instance states to fill; instances without an entry are still to run."""
    there: dict[str, str] = {}
    monkeypatch.setattr(steps, "planned_action", lambda item, run: there.get(str(item.address), "run"))
    return there


@pytest.fixture
def run(tmp_path: Path, clock: Clock, states: dict[str, str]) -> Run:
    return Run.create(tmp_path, "r", {}, {})


def usual_s(*names: str) -> float:
    return sum(STEPS[name].usual_s for name in names)


def test_instant_steps_are_not_counted(run: Run) -> None:
    demo = Demo(run, timed=False)
    lines = [line for address in ADDRESSES if (line := demo.begin(address)[0])]
    assert len(ADDRESSES) == 7
    assert [line.partition(":")[0] for line in lines] == [f"step {number} of 4" for number in (1, 2, 3, 4)]
    assert lines[0] == f"step 1 of 4: {STEPS['pools'].words}", "sizes of the user's own have no usual times"


def test_finished_steps_are_neither_announced_nor_awaited(run: Run, states: dict[str, str]) -> None:
    states |= {"1/questions": "reuse", "1/pools": "reuse", "1/rollouts@tutor": "take over"}
    states |= {"1/scores@base": "missing input", "1/report": "missing input"}
    demo = Demo(run)
    assert demo.begin("1/pools") == ("", None, None)
    line, this_s, later_stages_s = demo.begin("1/scores@tutor")
    assert (line, this_s) == ("", 1.0)
    assert later_stages_s == usual_s("rollouts@base", "report") + 1.0


def test_remaining_time_follows_the_pace_of_earlier_steps(run: Run, clock: Clock) -> None:
    demo = Demo(run)
    line, this_s, later_stages_s = demo.begin("1/pools")
    after_pools_s = usual_s("rollouts@tutor", "rollouts@base", "report") + 2.0
    assert (this_s, later_stages_s) == (usual_s("pools"), after_pools_s)
    assert line.endswith(f"(about {duration(this_s)}; about {duration(this_s + after_pools_s)} left for all steps)")
    clock.now += 3.0 * usual_s("pools") + 2.0 * 60.0
    demo.steps.end()
    # It took 60 s as usual and as long as the pools: three times as long.
    _, this_s, _ = demo.begin("1/rollouts@tutor")
    assert this_s == pytest.approx(3.0 * usual_s("rollouts@tutor"))


def test_previously_finished_step_does_not_affect_the_pace(run: Run, clock: Clock, states: dict[str, str]) -> None:
    states["1/pools"] = "reuse"
    demo = Demo(run)
    demo.begin("1/pools")
    clock.now += 0.1
    demo.steps.end()
    assert demo.begin("1/rollouts@tutor")[1] == usual_s("rollouts@tutor")
