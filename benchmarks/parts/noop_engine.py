"""Replace the engines `sft` and `rl` in the orchestration benchmark: report training as finished at once.

Called like them, `-m treadle.<stage>.engine <command> <job.json>`. The exported model is a copy of the start model.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from support.training import scripted_rl_engine

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.events import EventFile

NUM_STEPS = 2


def main() -> int:
    """Run one command of the engine that the arguments name."""
    command, job = sys.argv[-2], json.loads(Path(sys.argv[-1]).read_text())
    if "config" not in job:
        return scripted_rl_engine.main()
    fine_tune(command, job, EventFile(Path(job["events"])).write)
    return 0


def fine_tune(command: str, job: dict[str, Any], tell: Callable[..., None]) -> None:
    """Run a command of `treadle.sft.engine`."""
    config = Path(job["config"]).read_bytes()
    start = _start_of(config.decode())
    if command == "prepare":
        Path(job["rows"]).mkdir(exist_ok=True)
        facts = {"versions": {"llamafactory": "0"}, "revision": "", "num_rows": 1}
        digest = ChatTokenizer.load(start).digest
        tell("prepared", **facts, config_digest=hashlib.sha256(config).hexdigest(), tokenizer_digest=digest)
    elif command == "train":
        tell("begin", resumed_step=0, num_steps=NUM_STEPS, num_epochs=1, num_trained_parameters=5, device="none")
        for step in range(1, NUM_STEPS + 1):
            facts = {"num_steps": NUM_STEPS, "learning_rate": 0.1, "grad_norm": 1.0, "epoch": 1.0}
            tell("step", step=step, loss=1.0 / step, seconds=0.0, **facts)
        state = Path(job["output"]) / f"checkpoint-{NUM_STEPS}"
        state.mkdir(parents=True)
        (state / "treadle-complete").touch()
        tell("end", step=NUM_STEPS, epoch=1.0, seconds=0.0)
    else:
        shutil.copytree(start, job["model"], dirs_exist_ok=True)
        tell("greedy", ids=[1], margins=[0.5])


def _start_of(yaml: str) -> Path:
    """Return the folder of the model to train from LLaMA-Factory's configuration."""
    line = next(line for line in yaml.splitlines() if line.startswith("model_name_or_path:"))
    return Path(line.partition(":")[2].strip().strip("'\""))


if __name__ == "__main__":
    sys.exit(main())
