"""RL by real TRL with a judge over HTTP: a replica freezes in a step, an over-sampled training is killed in one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.model_servers.judge_process import JudgeProcess, judge_process
from support.runs.processes import end_family, until
from support.training import trl_jobs

from treadle.core.engines.training import EngineOptions
from treadle.core.runs.live_status import read_live_status
from treadle.core.runs.records import LiveStatus
from treadle.core.runs.stage import Progress
from treadle.rl.groups.dump import started_rollouts
from treadle.rl.groups.live import ProcessStatus
from treadle.rl.training.events import RlStep
from treadle.rl.training.launch import EngineJob, Listener, RlFolder, reinforce
from treadle.rl.training.plan import RlPlan
from treadle.rl.training.progress import RlProgress
from treadle.rl.verl.rows import TRAINING_SCHEMA

NUM_ROWS = 16


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RlFolder]:
    """Yield a reinforcement's folder, with its rows."""
    made = RlFolder(tmp_path / "training")
    write_rows(made)
    yield made
    shutil.rmtree(made.path, ignore_errors=True)


def write_rows(folder: RlFolder) -> None:
    """Write the sums four times, each time with other accepted answers: verdicts on one are none on another."""
    folder.logs.mkdir(parents=True)
    sums = trl_jobs.rows()
    rows = [
        {**sums[number % 4], "question_key": f"q{number}", "answers": [*sums[number % 4]["answers"], f"#{number}"]}
        for number in range(NUM_ROWS)
    ]
    pq.write_table(pa.Table.from_pylist(rows, TRAINING_SCHEMA), folder.parquet)


def make_plan(judges: list[JudgeProcess], **options: Any) -> RlPlan:
    endpoints = [{"url": judge.url} for judge in judges]
    model = {"model": "scripted", "endpoints": endpoints, "probe_base_s": 0.5, "probe_max_s": 0.5}
    reward = {"type": "judge", "model": model}
    sizes = {"prompts_per_step": 1, "mini_batch_prompts": 1}
    return trl_jobs.make_plan(NUM_ROWS, reward=reward, learning_rate=1e-3, **sizes, **options)


def job_of(policy: Path) -> EngineJob:
    return EngineJob(model=str(policy), environments=trl_jobs.environments_json(), interpreter=trl_jobs.interpreter())


class Watcher(RlProgress):
    """Keeps what `treadle status` shows, and lets a frozen judge continue once a step has ended without it."""

    def __init__(self, scratch: Path, frozen: JudgeProcess) -> None:
        super().__init__(Progress(), scratch)
        self.shown: list[LiveStatus] = []
        self.was_frozen = False
        self._frozen, self._folder = frozen, scratch

    def live(self, status: ProcessStatus) -> None:
        super().live(status)
        self.shown.append(read_live_status(self._folder))

    def step(self, step: RlStep) -> None:
        super().step(step)
        if self._frozen.is_frozen():
            self.was_frozen = True
            self._frozen.thaw()


@pytest.mark.covers("service-15")
def test_judge_that_freezes_in_a_step_is_replaced_by_another_and_comes_back(
    folder: RlFolder, policy: Path, tmp_path: Path
) -> None:
    with judge_process(tmp_path / "one.log") as one, judge_process(tmp_path / "two.log") as two:
        one.freeze_at_next_request()
        seen = Watcher(tmp_path, one)
        listener = Listener(begin=seen.begin, step=seen.step, live=seen.live)
        done = reinforce(folder, make_plan([one, two]), job_of(policy), EngineOptions(variant="cpu"), listener)
        assert seen.was_frozen, "a step ended with the other judge alone"
        last = {server.url: server for server in seen.shown[-2].model_servers}  # No process runs at the very end.
        cases = Counter([*one.cases, *two.cases])
    assert len(done.steps) == 16 and all(step.num_rollouts == 4 for step in done.steps)
    shown = [server for status in seen.shown for server in status.model_servers if server.url == one.url]
    assert any(server.health == "down" and server.errors.get("silence") for server in shown)
    assert last[one.url].health == "healthy" and last[one.url].answered > 0, "it is asked again"
    # What it held when it froze was judged by both, and counts where the answer was taken.
    assert last[one.url].answered + last[two.url].answered == len(cases) and max(cases.values()) == 2
    texts = [shown.doing for shown in seen.shown if shown.doing]
    assert all("of 4 rollouts finished" in text for text in texts)
    assert {"step 1 of 16", "step 16 of 16"} <= {text.partition(":")[0] for text in texts}


def over_sampled_rows(folder: RlFolder) -> dict[str, bytes]:
    """Return the files of the rollouts of each step: those that were trained on, and all that were started."""
    return {str(path.relative_to(folder.rollouts)): path.read_bytes() for path in folder.rollouts.rglob("*.jsonl")}


@pytest.mark.sweep
@pytest.mark.covers("service-22")
def test_over_sampled_training_killed_in_a_step_pays_for_nothing_twice(
    folder: RlFolder, policy: Path, tmp_path: Path
) -> None:
    options = {"group_size": 2, "max_steps": 6}
    with judge_process(tmp_path / "judge.log") as judge:
        plan = make_plan([judge], oversample=3.0, audit_share=0.3, **options)
        (folder.path / "given.json").write_text(plan.to_json())
        tests = str(Path(__file__).parents[1])
        killed = subprocess.Popen([sys.executable, "-c", trl_jobs.PARENT, str(folder.path), str(policy), tests])
        try:
            until(lambda: killed.poll() is not None or '"event": "saved"' in text(folder.events), "a state", 400)
            judge.freeze_at_next_request()
            until(lambda: killed.poll() is not None or judge.is_frozen(), "a rollout of a later step is judged", 400)
        finally:
            end_family(killed)
        assert judge.is_frozen(), "it was over before it was killed"
        # Rollouts of one group are judged one after the other, so the verdicts on all of these have arrived.
        paid = judge.cases
        judge.thaw()
        until(lambda: len(judge.cases) == len(paid) + 1, "the case of the killed training is judged")
        before = over_sampled_rows(folder)
        resumed = reinforce(folder, plan, job_of(policy), EngineOptions(variant="cpu"))
        assert resumed.resumed_step >= 1 and [step.step for step in resumed.steps] == [1, 2, 3, 4, 5, 6]
        again = judge.cases[len(paid) + 1 :]
        assert again and not set(again) & set(paid) and len(set(again)) == len(again)
    # Those that end first are trained on, so later steps may differ from those of another run.
    kept = {name for number in range(1, resumed.resumed_step + 1) for name in before if f"step-{number:06}" in name}
    after = over_sampled_rows(folder)
    assert len(kept) == 2 * resumed.resumed_step and {name: after[name] for name in kept} == {
        name: before[name] for name in kept
    }
    assert len(after) == 12
    started = list(started_rollouts(folder.rollouts, 6))
    assert len(started) == 36 and Counter(one["use"] for one in started)["trained"] == 12
    rows = [orjson.loads(line) for name, data in after.items() if "/" not in name
            for line in data.splitlines()]  # fmt: skip
    assert len(rows) == 12


@pytest.mark.sweep
def test_attributed_training_killed_in_a_step_pays_for_no_label_twice(
    folder: RlFolder, policy: Path, tmp_path: Path
) -> None:
    with judge_process(tmp_path / "attributor.log") as attributor:
        model = {"model": "scripted", "endpoints": [{"url": attributor.url}]}
        credit = {"type": "attribution", "model": model, "concurrency": 1}
        sizes = {"prompts_per_step": 1, "mini_batch_prompts": 1, "group_size": 2, "max_steps": 6}
        plan = trl_jobs.make_plan(NUM_ROWS, reward="outcome", credit=credit, learning_rate=1e-3, **sizes)
        (folder.path / "given.json").write_text(plan.to_json())
        tests = str(Path(__file__).parents[1])
        killed = subprocess.Popen([sys.executable, "-c", trl_jobs.PARENT, str(folder.path), str(policy), tests])
        try:
            until(lambda: killed.poll() is not None or '"event": "saved"' in text(folder.events), "a state", 400)
            attributor.freeze_at_next_request()
            until(lambda: killed.poll() is not None or attributor.is_frozen(), "a later rollout is labelled", 400)
        finally:
            end_family(killed)
        assert attributor.is_frozen(), "it was over before it was killed"
        # One request is sent at a time, so the labels before this one have arrived.
        paid = attributor.cases
        attributor.thaw()
        until(lambda: len(attributor.cases) == len(paid) + 1, "the case of the killed training is labelled")
        resumed = reinforce(folder, plan, job_of(policy), EngineOptions(variant="cpu"))
        assert resumed.resumed_step >= 1 and [step.step for step in resumed.steps] == [1, 2, 3, 4, 5, 6]
        again = attributor.cases[len(paid) + 1 :]
    assert again and not set(again) & set(paid) and len(set(again)) == len(again)
    assert all((step.parts or {})["labels_read"] == 1.0 for step in resumed.steps)


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
