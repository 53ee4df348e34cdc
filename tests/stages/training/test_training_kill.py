"""Trainings killed at random moments, in each of their processes, and resumed: the same bytes, no step taken twice.

`sft` and `rl` run as stages with scripted engines in their own supervisors. TREADLE_KILL_POINTS sets the kills
(a tenth of them for each engine here, at least 1), TREADLE_KILL_SEED repeats the moments of an earlier test.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.rollouts.scripted_environment import write_python
from support.runs.crash_bench import artifact_files
from support.runs.forked import Forked
from support.runs.processes import Seen, family, freeze, remaining, thaw, until
from support.tables import rl_tables, sft_tables
from support.training import scripted_engine

from treadle.core.chat import ChatTokenizer
from treadle.core.config import load_config
from treadle.core.engines import training_engine
from treadle.core.engines.training import EngineFolder
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.sft import launch, stage
from treadle.sft.config import SftSettings
from treadle.sft.entry import SFT_STAGE

KILLS = max(1, int(os.environ.get("TREADLE_KILL_POINTS", "1")) // 10)
KILLS_PER_RUN = 4
STEP_S = 0.05
NUM_STEPS = scripted_engine.NUM_STEPS
TARGETS = ("treadle", "supervisor", "engine")


@dataclass(frozen=True)
class Training:
    """A stage that trains, over rows that a root holds."""

    address: Address
    root: Path
    """A root with its rows, to be copied."""
    train: Callable[[Run, Path], None]
    """Run the stage; the file takes the steps that the engine takes."""


def sft(folder: Path) -> Training:
    model = rl_tables.write_policy(folder / "base")
    digest = ChatTokenizer.load(model).digest
    sft_tables.run_with_rows(folder / "rows", [sft_tables.sft_row(name, tokenizer_digest=digest) for name in "abc"])
    write_python(folder / "python", scripted_engine)
    address = Address.parse("1/sft")
    settings = load_config(SftSettings, data={"options": {"model": str(model), "variant": "cpu"}})
    work = Instance(
        address=address, stage=SFT_STAGE, settings=settings, inputs={"sft_rows": (Address.parse("1/sft_rows"),)}
    )

    def train(run: Run, trace: Path) -> None:
        training_engine.python_of = lambda engine, variant: folder / "python"
        script = {"copy": str(model), "base": {"tokenizer_digest": digest}, "step_s": STEP_S, "trace": str(trace)}
        write_script = launch.store_rows

        def stored(training: launch.TrainingFolder, *rows: object) -> int:
            # This engine's script is in the job's folder, which the stage makes.
            number = write_script(training, *rows)  # type: ignore[arg-type]
            (training.path / "script.json").write_text(json.dumps(script))
            return number

        stage.store_rows = stored
        execute(work, run)

    return Training(address, folder / "rows", train)


def rl(folder: Path) -> Training:
    model = rl_tables.write_policy(folder / "base")
    rl_tables.run_with_rows(folder / "rows")

    def train(run: Run, trace: Path) -> None:
        rl_tables.train(run, model, {"step_s": STEP_S, "trace": str(trace), "repeatable": True})

    return Training(Address.parse(rl_tables.PLACE), folder / "rows", train)


def engines(process: Forked) -> tuple[list[Seen], list[Seen]]:
    """Return the supervisors and the engines below a process."""
    members = family(process.pid)
    supervisors = [seen for seen in members if seen.parent == process.pid]
    return supervisors, [seen for seen in members if seen.parent in {one.pid for one in supervisors}]


def kill(process: Forked, target: str) -> tuple[str, list[Seen]]:
    """Kill one of the processes of a training; which one it was, and all that were there."""
    if not freeze(process):  # type: ignore[arg-type]
        return "", []
    members = family(process.pid)
    victims = dict(zip(("supervisor", "engine"), engines(process), strict=True)).get(target, [])
    if victims:
        thaw(process)  # type: ignore[arg-type]
        with suppress(ProcessLookupError):
            os.kill(victims[-1].pid, signal.SIGKILL)
        return target, members
    process.kill()
    return "treadle", members


def newest_state(root: Path) -> int:
    """Step of the newest complete state of a training that has not ended."""
    states = (EngineFolder(path.parent).complete_states() for path in root.glob("runs/*/workspaces/*/*/*/output"))
    return max((step for found in states for step in found), default=0)


@pytest.mark.covers("flywheel-25")
@pytest.mark.parametrize("kind", [sft, rl])
def test_training_with_any_process_killed_matches_an_undisturbed_one(
    kind: Callable[[Path], Training], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("TREADLE_KILL_SEED") or int.from_bytes(os.urandom(4), "big"))
    moments, training, trace = random.Random(seed), kind(tmp_path), tmp_path / "trace"
    print(f"TREADLE_KILL_SEED={seed}")

    def start(root: Path) -> Forked:
        trace.write_text("")
        return Forked(lambda: training.train(Run.open(root, "test"), trace), tmp_path / "said")

    calm = shutil.copytree(training.root, tmp_path / "calm")
    began = time.monotonic()
    assert start(calm).wait(300.0) == 0, (tmp_path / "said").read_text()
    whole_s, all_steps = time.monotonic() - began, trace.read_text().split()
    assert len(all_steps) == NUM_STEPS
    killed: Counter[str] = Counter()
    num_runs = 0
    while killed.total() < KILLS:
        root = shutil.copytree(training.root, tmp_path / str(num_runs))
        num_runs += 1
        steps: set[str] = set()
        for life in range(KILLS_PER_RUN + 1):
            known = newest_state(root)
            process = start(root)
            last = life == KILLS_PER_RUN or killed.total() == KILLS
            target = moments.choice(TARGETS)
            if not last and target != "treadle":
                until(lambda at=process: at.poll() is not None or bool(engines(at)[1]), "an engine runs")
                process.wait(moments.uniform(0.0, 1.5) * NUM_STEPS * STEP_S)
            else:
                process.wait(300.0 if last else moments.uniform(0.1, 1.0) * whole_s)
            target, members = kill(process, target)
            code = process.wait(60.0)
            until(lambda seen=members: not remaining(seen), f"the end of {[one.name for one in members]}", 30.0)
            taken = trace.read_text().split()
            assert all(int(step) > known for step in taken), f"steps {taken} were taken again after state {known}"
            steps.update(taken)
            if code == 0:
                break
            assert target, (tmp_path / "said").read_text()
            killed[target] += 1
            run = Run.open(root, "test")
            # A process that lost its engine reports that; a killed one cannot.
            assert (run.record(training.address) is not None) or run.status(training.address).state in (
                "crashed", "failed", "absent"
            )  # fmt: skip
        assert steps == set(all_steps)
        assert artifact_files(root) == artifact_files(calm)
        assert Run.open(root, "test").status(training.address).state == "completed"
        assert not list(root.rglob(".tmp-*")) and not list(root.glob("runs/test/workspaces/*/*/*/output"))
        shutil.rmtree(root)
    with capsys.disabled():
        told = ", ".join(f"{count} of the {name}" for name, count in sorted(killed.items()))
        print(
            f"\n{kind.__name__}: {killed.total()} kills ({told}) in {num_runs} runs; {time.monotonic() - began:.0f} s"
        )
