"""A scripted engine `sft` for tests of its launch: the process follows a script, and trains nothing.

Run like the engine, `-m treadle.sft.engine <command> <job.json>`; the script `script.json` is in the job's folder. Real
training is in tests/e2e/test_sft_engine.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from support.rollouts.scripted_mishaps import act, take_step

from treadle.core.engines.events import EventFile

BASE = {"revision": "c0ffee", "tokenizer_digest": "d1"}
NUM_STEPS = 6
SAVE_STEPS = 2


def main() -> int:
    command, job = sys.argv[-2], json.loads(Path(sys.argv[-1]).read_text())
    script: dict[str, Any] = json.loads((Path(job["config"]).parent / "script.json").read_text())
    tell = EventFile(Path(job["events"])).write
    print(f"scripted engine: {command}", os.environ.get("OMP_NUM_THREADS"), os.getcwd(), flush=True)
    print(*(f"{name}={os.environ.get(name)}" for name in ("CUDA_VISIBLE_DEVICES", "RANK", "WORLD_SIZE")), flush=True)
    if command == "prepare":
        if "refuse" in script:
            tell("error", kind=script.get("kind", "arguments"), message=f"BadArguments: {script['refuse']}")
            return 1
        Path(job["rows"]).mkdir(exist_ok=True)
        digest = hashlib.sha256(Path(job["config"]).read_bytes()).hexdigest()
        tell(
            "prepared",
            num_rows=1,
            versions={"llamafactory": "0"},
            config_digest=digest,
            **BASE | script.get("base", {}),
        )
    elif command == "train":
        print("revision", job["revision"])
        return train(script, job, tell)
    else:
        print("revision", job["revision"])
        hand_over(script, Path(job["model"]))
        if "finish" in script:
            return act(script["finish"], tell) or 0
        tell("greedy", ids=[1], margins=[0.5])
    return 0


def hand_over(script: dict[str, Any], model: Path) -> None:
    """Make the folder of the model appear, complete: empty, or a copy of the folder that the script names."""
    part = model.with_name("part")
    shutil.rmtree(part, ignore_errors=True)
    if "copy" in script:
        shutil.copytree(script["copy"], part)
    else:
        part.mkdir()
    if not model.exists():
        part.rename(model)


def train(script: dict[str, Any], job: dict[str, Any], tell: Any) -> int:
    first = int(job["resume"].rpartition("-")[2]) if job["resume"] else 0
    tell("begin", resumed_step=first, num_steps=NUM_STEPS, num_epochs=1, num_trained_parameters=5, device="none")
    for step in range(first + 1, NUM_STEPS + 1):
        if step == script.get("at") and not (script.get("once") and first):
            code = act(script["do"], tell)
            if code is not None:
                return code
        take_step(script, step)
        loss = script.get("loss", 1.0 / step)
        if step > script.get("quiet", 0):
            tell(
                "step",
                **{"step": step, "num_steps": NUM_STEPS, "loss": loss, "learning_rate": 0.1, "grad_norm": 1.0},
                **{"epoch": step / NUM_STEPS, "seconds": 1.0 * (step - first)},
            )
        if step % SAVE_STEPS == 0:
            state = Path(job["output"]) / f"checkpoint-{step}"
            state.mkdir(parents=True)
            if step != script.get("torn"):
                (state / "treadle-complete").touch()
    tell("end", step=NUM_STEPS, epoch=1.0, seconds=1.0 * (NUM_STEPS - first) + 0.5)
    return 0


if __name__ == "__main__":
    sys.exit(main())
