"""A scripted engine of `rl` for tests of the stage: the process follows a script, and trains nothing.

Run like an engine, `-m treadle.rl.engine <command> <job.json>`; the script is the file that `SCRIPT` in its environment
names. Real training is in tests/e2e.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from support.rollouts.scripted_mishaps import act, take_step

from treadle.core.engines.events import EventFile, mark_complete

SCRIPT = "TREADLE_TEST_RL_SCRIPT"
WORDS = {"ids": [7, 8, 9], "margins": [2.0, 2.0, 2.0]}
GROUP = 4


def main() -> int:
    command, job = sys.argv[-2], json.loads(Path(sys.argv[-1]).read_text())
    script: dict[str, Any] = json.loads(Path(os.environ[SCRIPT]).read_text())
    tell = EventFile(Path(job["events"])).write
    print(f"scripted engine: {command}", os.environ.get("OMP_NUM_THREADS"), os.getcwd(), flush=True)
    print(f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}", flush=True)
    if command == "check":
        if "refuse" in script:
            tell("error", kind="arguments", message=f"BadPlan: {script['refuse']}")
            return 1
        tell("prepared", versions={"trl": "0"})
    elif command == "train":
        return train(script, job, tell)
    else:
        finish(script, job, tell)
    return 0


def num_steps(job: dict[str, Any]) -> int:
    options, rows = job["plan"]["options"], job["plan"]["num_rows"]
    steps = rows // options["prompts_per_step"] * options["num_epochs"]
    return min(steps, options["max_steps"] or steps)


def train(script: dict[str, Any], job: dict[str, Any], tell: Any) -> int:
    options, last = job["plan"]["options"], num_steps(job) + script.get("more_steps", 0)
    first = int(job["resume"].rpartition("-")[2]) if job["resume"] else 0
    tell("begin", resumed_step=first, num_steps=last, num_trained_parameters=5, device="none\x1b[31m")
    for step in range(first + 1, last + 1):
        if step == script.get("at") and not (script.get("once") and first):
            code = act(script["do"], tell)
            if code is not None:
                return code
        take_step(script, step)
        # Generation is not reproducible, unless the script sets that.
        write_dump(Path(job["rollouts"]), step, 0 if script.get("repeatable") else step - first)
        if "warn" in script:
            tell("warning", message=f"step {step}: {script['warn']}")
        tell("step", **figures(script, options, step), seconds=10.0 * (step - first))
        if step % options["save_steps"] == 0 or step == last:
            save(script, job, step, tell)
    tell("end", step=last, epoch=1.0)
    return 0


def figures(script: dict[str, Any], options: dict[str, Any], step: int) -> dict[str, Any]:
    """Return the metrics of one step; the script's `reward` may be one for all steps."""
    groups = options["prompts_per_step"]
    equal = script.get("equal", False)
    return {
        "step": step,
        "reward": script.get("reward", step / 10),
        "reward_std": 0.0 if equal else 0.5,
        "score": step / 20,
        "calls": 2.0,
        "tool_failures": 0.25,
        "web_misses": script.get("web_misses"),
        "length": 40.0,
        "parts": {
            "format_ok": 0.5 + step / 100,
            "f_tool": 1.0,
            "sigma_tool": options["reward"]["sigma_tool"],
            "sigma_length": options["reward"]["sigma_length"],
        },
        "num_rollouts": 0 if script.get("unscored") else groups * options["group_size"],
        "num_groups": 0 if script.get("unscored") else groups,
        "num_equal_groups": groups if equal else 0,
        "loss": 0.01,
        "learning_rate": 1e-5,
        "grad_norm": 1.0,
        **({"environments": script["environments"]} if "environments" in script else {}),
    }


def save(script: dict[str, Any], job: dict[str, Any], step: int, tell: Any) -> None:
    """Validate if there are questions, then save a state; `correct` gives the policy's accuracy at each step."""
    if job["validation"]:
        score, efficiency = script.get("correct", {}).get(str(step), (step / 100, 0.0))
        made = {
            "num_questions": 2,
            "score": score,
            "parts": {"format_ok": 1.0},
            "efficiency": efficiency,
            "calls": 1.0,
            "length": 30.0,
            "executed": None,
            "web_misses": script.get("validation_misses"),
        }
        by_environment = {name: made for name in script.get("environments", ())}
        tell("validation", step=step, **made, by_domain={"qa": made}, by_environment=by_environment)
    state = Path(job["output"]) / f"checkpoint-{step}"
    state.mkdir(parents=True)
    (state / "weights").write_text(str(step))
    tell("live_greedy", step=step, **WORDS)
    if step == script.get("torn"):
        return
    mark_complete(state)
    if step == script.get("untold"):
        os.kill(os.getpid(), signal.SIGKILL)
    tell("saved", step=step, state=state.name)


def write_dump(folder: Path, step: int, since: int) -> None:
    folder.mkdir(exist_ok=True)
    row = {
        "step": step, "group": f"{step}-q", "session": 0, "question_key": "q0", "dataset": "world", "domain": "qa",
        "environment": "default",
        "input": "who?", "output": f"done {since}", "num_turns": 1,
        "segments": json.dumps([{"kind": "text", "text": f"done {since}", "start": 0, "end": 3}]),
        "reward": 1.0, "score": 1.0, "parts": [{"name": "f_tool", "value": 1.0}], "notes": "",
        "prediction": "me", "tool_calls": 1, "tool_failures": 0,
        "model_tokens": 3, "total_tokens": 5,
        "finish": "answered", "truncated": False, "turn_rewards": [], "branch_parent": None, "branch_depth": 0,
        "seed": 1,
    }  # fmt: skip
    (folder / f"step-{step:06d}.jsonl").write_text(json.dumps(row) + "\n")


def finish(script: dict[str, Any], job: dict[str, Any], tell: Any) -> None:
    """Write the model, a copy of its start which the script may damage, in addition to the weights of the state."""
    model = Path(job["final"])
    shutil.copytree(job["model"], model)
    shutil.copy(Path(job["state"]) / "weights", model / "step.txt")
    for name, text in script.get("spoil", {}).items():
        (model / name).write_bytes(text.encode("latin-1"))
    tell("greedy", **{**WORDS, **script.get("says", {})})


if __name__ == "__main__":
    sys.exit(main())
