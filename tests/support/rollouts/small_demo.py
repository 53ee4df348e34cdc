"""The demo at the smallest size at which training changes the model output; tests/e2e run it once, and resume it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.runs.processes import end_family, kill_alone, remaining, until

from treadle.core.journal.journal import count_finished
from treadle.core.runs.run import Run

NUM_ROWS, NUM_QUESTIONS = 48, 16
NUM_STEPS, GROUP_SIZE = 2, 4
NUM_OWN_QUESTIONS = 16
"""Questions of `pools` in iterations behind the first, in which the policy answers them itself."""
TRAINING = (
    f"sft.max_rows={NUM_ROWS}", f"rollouts.max_questions={NUM_QUESTIONS}",
    "curriculum.rollouts.max_questions=8", "curriculum.rollouts.samples_per_question=4", "selection.max_questions=4",
    f"rl.group_size={GROUP_SIZE}", "rl.prompts_per_step=2", "rl.mini_batch_prompts=2", f"rl.max_steps={NUM_STEPS}",
)  # fmt: skip
FIRST_BY_THE_TUTOR = (
    'overrides."1/pools"={ max_questions = 80, roles.policy = { model = "tutor", sampling.max_tokens = 4096 } }',
    "pools.roles.policy.model=base",
    "pools.roles.policy.sampling={ temperature = 0.3, repetition_penalty = 1.0, max_tokens = 96 }",
    *(f"pools.roles.{role}.model=tutor" for role in ("critic", "refiner", "judge")),
    f"pools.max_questions={NUM_OWN_QUESTIONS}",
)  # fmt: skip
"""The policy of `pools` is the tutor in the first iteration, and SmolLM2 in those that may follow."""
DEMO = ("demo", *(part for key in (*TRAINING, *FIRST_BY_THE_TUTOR) for part in ("--set", key)))
TREADLE = Path(sys.executable).with_name("treadle")


def start(arguments: tuple[str, ...], said: Path) -> subprocess.Popen[bytes]:
    """Start a Treadle command in a session of its own; its output goes to `said`, its errors to `said` with `.err`."""
    with said.open("wb") as out, said.with_suffix(".err").open("wb") as err:
        return subprocess.Popen([str(TREADLE), *arguments], stdout=out, stderr=err, start_new_session=True)


def finish(arguments: tuple[str, ...], said: Path, limit_s: float) -> tuple[str, str]:
    """Run a command to its end; returns what it printed and reported."""
    child = start(arguments, said)
    try:
        child.wait(limit_s)
    finally:
        end_family(child)
    out, err = said.read_text(), said.with_suffix(".err").read_text()
    assert child.returncode == 0, err
    return out, err


def kill_when(condition: Callable[[], bool], what: str, arguments: tuple[str, ...], said: Path) -> None:
    """Start a command, kill it alone with SIGKILL when a condition becomes true, and fail unless all its children
    end with it.
    """
    child = start(arguments, said)

    def is_fulfilled() -> bool:
        assert child.poll() is None, said.with_suffix(".err").read_text()
        return condition()

    try:
        until(is_fulfilled, what, limit_s=1500, pause_s=0.2)
        orphans = kill_alone(child)
        assert orphans, "it was over before it was killed"
        until(lambda: not remaining(orphans), "all that the command started has ended with it")
    finally:
        end_family(child)


@pytest.fixture(scope="session")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a small demo that was killed while the untrained model answered, and run again."""
    root = tmp_path_factory.mktemp("demo")
    command = (*DEMO, "--root", str(root))
    journal = root / "runs" / "demo" / "journal" / "1" / "rollouts@base"
    said = tmp_path_factory.mktemp("said")

    def answered() -> bool:
        return any(count_finished(folder) for folder in journal.glob("*"))

    kill_when(answered, "the untrained model answers", command, said / "first")
    before = sum(count_finished(folder) for folder in journal.glob("*"))
    out, err = finish(command, said / "second", limit_s=1500)
    assert "Traceback" not in err
    assert "1/sft: checkpoint 1 (unchanged, reused)" in err
    assert f"{before} of {NUM_QUESTIONS} rollouts already finished" in err
    assert "tutor (rules" in out and "base (SmolLM2" in out and "tuned (the same" in out and "loss" in out
    assert "reinforced (tuned" in out and f"Reinforcement: {NUM_STEPS} steps" in out and "Rollouts in training" in out
    return Run.open(root, "demo")
