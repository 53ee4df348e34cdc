"""Training engines of a user, in one file: they train nothing, but keep to what Treadle asks of an engine.

They run in Treadle's own interpreter. `fault` lets them fail as a wrong engine does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.api import EventFile, RlEngine, SftEngine, mark_complete
from treadle.core.config import Operational
from treadle.core.errors import ConfigError

WORDS = {"ids": [7, 8], "margins": [2.0, 2.0]}
NUM_SFT_STEPS = 4


class CopyRl(RlEngine):
    """Engine of `rl` whose policy is a copy of its start."""

    strength: float = 1.0
    """Factor of the rewards."""
    fault: Operational[str] = ""
    """What goes wrong."""
    trace: Operational[Path | None] = None
    """File that takes the steps and their trackers."""

    def check_plan(self, plan: Any) -> None:
        if plan.options.tensor_parallel > 1:
            raise ConfigError("rl.tensor_parallel: CopyRl has one process; set it to 1")

    def check(self, job: Mapping[str, Any], events: EventFile) -> None:
        if self.fault == "refused":
            raise ConfigError("there is no key 'x'")
        if self.fault != "unprepared":
            events.write("prepared", versions={self.type: "1.2"})

    def train(self, job: dict[str, Any], events: EventFile) -> None:
        plan = job["plan"]
        options, rows = plan["options"], plan["num_rows"]
        num_steps = rows // options["prompts_per_step"] * options["num_epochs"]
        first = int(job["resume"].rpartition("-")[2]) if job["resume"] else 0
        facts = {"num_trained_parameters": 5, "device": "none"}
        events.write("begin", resumed_step=first, num_steps=num_steps, **facts)
        for step in range(first + 1, num_steps + 1):
            fail(self.fault, step, first, events)
            if self.trace is not None:
                with self.trace.open("a") as file:
                    file.write(f"{step} {options['trackers']}\n")
            write_rollout(Path(job["rollouts"]), step)
            events.write("step", **self.figures(options, step), seconds=1.0 * (step - first))
            if step % options["save_steps"] == 0 or step == num_steps:
                save(Path(job["output"]) / f"checkpoint-{step}", step, events)
        events.write("end", step=num_steps, epoch=1.0)

    def figures(self, options: Mapping[str, Any], step: int) -> dict[str, Any]:
        groups = options["prompts_per_step"]
        return {
            "step": step, "reward": self.strength * step / 10, "reward_std": 0.5, "score": step / 20,
            "calls": 2.0, "length": 40.0, "num_rollouts": groups * options["group_size"], "num_groups": groups,
            "num_equal_groups": 0, "loss": 0.01, "parts": {"own": 0.5},
        }  # fmt: skip

    def finish(self, job: Mapping[str, Any], events: EventFile) -> None:
        if self.fault != "no model":
            copy_model(Path(job["model"]), Path(job["final"]), self.fault)
        events.write("greedy", **WORDS)


class CopySft(SftEngine):
    """Engine of `sft` whose model is a copy of its base."""

    fault: Operational[str] = ""
    """What goes wrong."""

    def check(self, job: Mapping[str, Any], events: EventFile) -> None:
        if self.fault != "unprepared":
            self.write_prepared(job, events, {self.type: "1.2"})

    def train(self, job: dict[str, Any], events: EventFile) -> None:
        arguments, output = self.arguments(job), Path(job["output"])
        first = int(job["resume"].rpartition("-")[2]) if job["resume"] else 0
        facts = {"num_trained_parameters": 5, "device": "none"}
        events.write("begin", resumed_step=first, num_steps=NUM_SFT_STEPS, **facts)
        for step in range(first + 1, NUM_SFT_STEPS + 1):
            fail(self.fault, step, first, events)
            events.write(
                "step", step=step, num_steps=NUM_SFT_STEPS, loss=1.0 / step, epoch=step / NUM_SFT_STEPS,
                learning_rate=arguments["learning_rate"], seconds=1.0 * (step - first),
            )  # fmt: skip
            if step % 2 == 0:
                save(output / f"checkpoint-{step}", step, events)
        events.write("end", step=NUM_SFT_STEPS, epoch=1.0, seconds=1.0 * (NUM_SFT_STEPS - first))

    def finish(self, job: Mapping[str, Any], events: EventFile) -> None:
        if self.fault != "no model":
            copy_model(Path(self.arguments(job)["model_name_or_path"]), Path(job["model"]), self.fault)
        events.write("greedy", **WORDS)


def fail(fault: str, step: int, first: int, events: EventFile) -> None:
    """Fail at the third step as the fault says; a process that resumes does not die again."""
    if step != 3:
        return
    if fault == "dies" and not first:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "freezes":
        while True:
            time.sleep(0.1)
    if fault == "garbage":
        events.write("step", step="three\x1b[31m", seconds=1.0)
    if fault == "no facts":
        events.write("end")
    if fault == "no name":
        with events.path.open("a") as file:
            file.write("[1, 2]\n")
    if fault == "stops":
        raise SystemExit(0)


def save(state: Path, step: int, events: EventFile) -> None:
    state.mkdir(parents=True)
    (state / "weights").write_text(str(step))
    events.write("live_greedy", step=step, **WORDS)
    mark_complete(state)
    events.write("saved", step=step, state=state.name)


def copy_model(start: Path, folder: Path, fault: str) -> None:
    """Write the model at once: a copy with a changed configuration, and another template if that is the fault."""
    part = folder.with_name("part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(start, part)
    config = json.loads((part / "config.json").read_text())
    (part / "config.json").write_text(json.dumps({**config, "trained": True}))
    if fault == "other template":
        (part / "chat_template.jinja").write_text("x")
    part.rename(folder)


def write_rollout(folder: Path, step: int) -> None:
    # An engine's process does not see the `PYTHONPATH` of the tests.
    sys.path.append(str(Path(__file__).parents[2]))
    from support.training.scripted_rl_engine import write_dump

    write_dump(folder, step, 0)
