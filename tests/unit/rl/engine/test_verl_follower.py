"""verl's log as events; the groups are those that the agent loop writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support.training.rewards import group_rewards
from support.training.verl_plans import verl_plan

from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.core.engines.errors import Diverged
from treadle.core.engines.events import STATE_MARKER, EventFile
from treadle.core.errors import EngineError
from treadle.rl.engine.dynamic_sampling import NoSpread
from treadle.rl.engine.errors import BadEnvironment
from treadle.rl.engine.verl.folder import VerlFolder
from treadle.rl.engine.verl.metrics_follower import Follower
from treadle.rl.groups.dump import drawn_questions
from treadle.rl.rewards.base import GroupItem
from treadle.rl.training.events import RlEvents
from treadle.rl.training.plan import RlPlan

RIGHT, WRONG = "<think>t</think><answer>\\boxed{12}</answer>", "<think>t</think><answer>\\boxed{13}</answer>"
METRICS = {
    "actor/pg_loss": 0.25,
    "actor/entropy": 1.5,
    "actor/lr": 1e-6,
    "actor/grad_norm": 0.5,
    "critic/score/mean": 9.0,
}


def plan_of_two(**keys: Any) -> RlPlan:
    """Two questions a step, two in a validation."""
    return verl_plan(prompts_per_step=2, mini_batch_prompts=2, num_validation_rows=2, **keys)


class Bench:
    """A training's folder into which verl and its workers write."""

    def __init__(self, root: Path, plan: RlPlan, resumed_step: int = 0) -> None:
        self.root = root
        self.folder = VerlFolder(root / "verl")
        self.folder.path.mkdir()
        self.events = RlEvents(root / "events.jsonl")
        self.follower = Follower(
            plan, self.folder, root / "output", root / "rollouts", EventFile(root / "events.jsonl"), resumed_step
        )

    def group(self, step: int, name: str, texts: list[str], *, validation: bool = False) -> None:
        """Write what a worker leaves of one group."""
        items = [GroupItem.from_text(text, model_tokens=10, dialect=TOOL_DIALECT) for text in texts]
        rewards = group_rewards(items, ["12"], "math", 0.1, 0.1, dialect=TOOL_DIALECT)
        known = {"question_key": name, "group": name, "dataset": "d", "environment": "default", "domain": "math"}
        lines = [{"row": {**known, "session": at}, "reward": asdict(reward)} for at, reward in enumerate(rewards)]
        self.folder.write_group(step, name, lines, validation=validation)

    def made(self, step: int, metrics: Mapping[str, Any] = METRICS) -> list[dict[str, Any]]:
        """Both groups of a step, which verl logs."""
        self.group(step, "b", [RIGHT, WRONG])
        self.group(step, "a", [RIGHT, RIGHT])
        return self.logged(step, metrics)

    def logged(self, step: int, metrics: Mapping[str, Any] = METRICS, *, torn: bool = False) -> list[dict[str, Any]]:
        """verl logs a step; returns the events that follow."""
        line = json.dumps({"step": step, "data": dict(metrics)}) + "\n"
        with (self.folder.path / "metrics.jsonl").open("a") as file:
            file.write(line[:20] if torn else line)
        self.follower.poll()
        return list(self.events.new())


def test_step_is_reported_with_its_groups(tmp_path: Path) -> None:
    bench = Bench(tmp_path, plan_of_two(save_steps=2, validation_steps=2))
    (step,) = bench.made(1)
    assert (step["event"], step["step"], step["num_groups"], step["num_equal_groups"]) == ("step", 1, 2, 1)
    assert (step["score"], step["reward"], step["loss"], step["entropy"]) == (0.75, 0.75, 0.25, 1.5)
    rows = [json.loads(line) for line in (tmp_path / "rollouts" / "step-000001.jsonl").read_text().splitlines()]
    assert [(row["group"], row["session"]) for row in rows] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert bench.follower.last_step == 1


def test_groups_with_equal_rewards_are_left_out_with_dynamic_sampling(tmp_path: Path) -> None:
    bench = Bench(tmp_path, plan_of_two(dynamic_sampling=True))
    bench.group(1, "c", [WRONG, RIGHT])
    bench.group(1, "d", [WRONG, RIGHT])
    (step,) = bench.made(1)
    assert (step["num_groups"], step["num_equal_groups"]) == (3, 0)
    assert (step["num_dropped_groups"], step["num_surplus_groups"]) == (1, 1)
    (logged,) = bench.events.steps
    assert (logged.num_draws, logged.num_dropped_groups, logged.num_surplus_groups) == (None, 1, 1)
    rows = [json.loads(line) for line in (tmp_path / "rollouts" / "step-000001.jsonl").read_text().splitlines()]
    assert {row["group"] for row in rows} == {"b", "c", "d"}
    drawn = drawn_questions(tmp_path / "rollouts", 1)
    assert {one["question_key"]: one["kind"] for one in drawn} == {
        "a": "easy",
        "b": "mixed",
        "c": "mixed",
        "d": "mixed",
    }


def test_dynamic_sampling_without_end_is_ended(tmp_path: Path) -> None:
    bench = Bench(tmp_path, plan_of_two(dynamic_sampling=True, gen_prompts=2, max_extra_batches=1))
    for name in "abc":
        bench.group(1, name, [RIGHT, RIGHT])
    bench.follower.poll()
    bench.group(1, "d", [RIGHT, WRONG])
    with pytest.raises(NoSpread, match="step 1: of 4 groups, 1 have rewards that differ, but a step needs 2"):
        bench.follower.poll()
    bench.group(1, "e", [RIGHT, WRONG])
    bench.follower.poll()


def test_group_that_fails_while_it_is_read_leaves_its_draw_to_verl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, plan_of_two(dynamic_sampling=True, gen_prompts=2, max_extra_batches=1))
    for name in "abcd":
        bench.group(1, name, [RIGHT, RIGHT])
    read_bytes = Path.read_bytes

    def fail_then_read(path: Path) -> bytes:
        monkeypatch.undo()
        bench.folder.fail_group(1, path.stem, "its sessions were cancelled", validation=False)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", fail_then_read)
    bench.follower._check_draws()
    assert bench.folder.num_groups(1) == 3


def test_state_is_reported_before_validation(tmp_path: Path) -> None:
    bench = Bench(tmp_path, plan_of_two(save_steps=2, validation_steps=2))
    bench.group(2, "v", [RIGHT], validation=True)
    bench.group(2, "w", [WRONG], validation=True)
    state = tmp_path / "output" / "global_step_2"
    (state / "actor").mkdir(parents=True)
    told = bench.made(2)
    assert [event["event"] for event in told] == ["step", "saved", "validation"]
    assert bench.events.validations[2].overall.score == 0.5
    assert bench.events.validations[2].by_domain["math"].num_questions == 2
    assert bench.events.saved == {2: "global_step_2"} and (state / STATE_MARKER).is_file()
    assert not list(bench.folder.groups.rglob("*.jsonl"))


def test_few_failed_groups_are_reported(tmp_path: Path) -> None:
    bench = Bench(tmp_path, verl_plan(prompts_per_step=4, mini_batch_prompts=4, num_validation_rows=3))
    for name in "abc":
        bench.group(1, name, [RIGHT, WRONG])
        bench.folder.fail_group(1, "d", "the search was gone", validation=False)
    warning, step = bench.logged(1)
    said = "1 of 4 groups of step 1 could not be rolled out; first cause: the search was gone"
    assert warning == {"event": "warning", "message": said}
    assert (step["event"], step["num_groups"]) == ("step", 3)


@pytest.mark.parametrize("trained", [False, True])
def test_training_ends_if_half_of_the_groups_fail(tmp_path: Path, trained: bool) -> None:
    bench = Bench(tmp_path, plan_of_two(save_steps=1))
    (tmp_path / "output" / "global_step_1").mkdir(parents=True)
    bench.group(1, "a", [RIGHT, WRONG])
    if not trained:
        bench.folder.fail_group(1, "b", "the search was gone", validation=False)
    with pytest.raises(EngineError, match="1 of 2 groups of step 1 could not be rolled out"):
        bench.logged(1) if trained else bench.follower.poll()
    assert not bench.events.saved and not list(tmp_path.rglob(STATE_MARKER))


def test_validation_on_fewer_questions_is_never_silent(tmp_path: Path) -> None:
    plan = verl_plan(prompts_per_step=2, mini_batch_prompts=2, validation_steps=1, num_validation_rows=3)
    bench = Bench(tmp_path, plan)
    for name in "uvw":
        bench.group(1, name, [RIGHT], validation=True)
    bench.folder.fail_group(1, "w", "the search was gone", validation=True)
    _, warning, validation = bench.made(1)
    assert warning["message"].startswith("1 of 3 questions of the validation after step 1 could not be rolled out")
    assert validation["num_questions"] == 2
    bench.group(2, "u", [RIGHT], validation=True)
    bench.folder.fail_group(2, "v", "gone", validation=True)
    bench.folder.fail_group(2, "w", "gone", validation=True)
    with pytest.raises(EngineError, match="2 of 3 questions of the validation after step 2"):
        bench.made(2)


def test_failed_validation_costs_no_state(tmp_path: Path) -> None:
    bench = Bench(tmp_path, plan_of_two(save_steps=1, validation_steps=1))
    state = tmp_path / "output" / "global_step_1"
    state.mkdir(parents=True)
    bench.group(1, "v", [RIGHT], validation=True)
    with pytest.raises(EngineError, match="questions of the validation"):
        bench.made(1)
    assert [event["event"] for event in bench.events.new()] == ["step", "saved"]
    assert (state / STATE_MARKER).is_file()


def test_more_groups_than_expected_do_not_count_as_missing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, plan_of_two())
    bench.group(1, "c", [RIGHT, WRONG])
    assert [event["event"] for event in bench.made(1)] == ["step"]


def test_environment_that_one_worker_cannot_open_ends_the_training(tmp_path: Path) -> None:
    bench = Bench(tmp_path, plan_of_two())
    bench.folder.environment_failure.write_text("no sandbox here")
    with pytest.raises(BadEnvironment, match="no sandbox here"):
        bench.follower.poll()


def test_truncated_line_waits_for_its_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, verl_plan())
    assert bench.logged(1, torn=True) == [] and bench.follower.last_step == 0


@pytest.mark.parametrize("broken", [float("nan"), None])
@pytest.mark.parametrize("name", ["actor/pg_loss", "actor/grad_norm"])
def test_nan_loss_ends_the_training(tmp_path: Path, name: str, broken: float | None) -> None:
    bench = Bench(tmp_path, verl_plan(), resumed_step=4)
    with pytest.raises(Diverged, match="is not finite at step 5"):
        bench.logged(5, {**METRICS, name: broken})


def test_metrics_not_logged_by_verl_are_not_reported(tmp_path: Path) -> None:
    (step,) = Bench(tmp_path, plan_of_two()).made(1, {})
    assert (step["loss"], step["entropy"], step["learning_rate"], step["grad_norm"]) == (None,) * 4


def test_resumed_training_continues_the_step_count(tmp_path: Path) -> None:
    bench = Bench(tmp_path, plan_of_two(), resumed_step=30)
    assert bench.follower.last_step == 30
    (step,) = bench.made(31)
    assert step["step"] == bench.follower.last_step == 31
