"""A stub of verl's trainer: takes its overrides, logs steps, leaves groups and states like verl and our loop.

`STUB_DIES_AT=<step>` ends it with code 3 in that step, after its state was saved and before it was logged, one of its
groups failed. `STUB_GRADIENT` is the gradient's length in all steps.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from dataclasses import asdict
from pathlib import Path

from support.training.rewards import group_rewards

from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.rl.engine.verl.folder import VerlFolder
from treadle.rl.rewards.base import GroupItem

RIGHT, WRONG = "<think>t</think><answer>\\boxed{12}</answer>", "<think>t</think><answer>\\boxed{13}</answer>"


def main(overrides: dict[str, str]) -> None:
    """All steps that are left."""
    metrics = Path(os.environ["VERL_FILE_LOGGER_PATH"])
    assert Path(overrides["actor_rollout_ref.rollout.agent.agent_loop_config_path"]).is_file()
    assert Path(overrides["data.train_files"]).is_file() and Path(overrides["data.val_files"]).is_file()
    resume = overrides["trainer.resume_from_path"]
    first = 0 if resume == "null" else int(resume.rpartition("_")[2])
    last = int(overrides["trainer.total_training_steps"])
    for step in range(first + 1, last + 1):
        folder = VerlFolder(metrics.parent)
        dies = os.environ.get("STUB_DIES_AT") == str(step)
        for name, texts in (("a", [RIGHT, WRONG]), ("b", [WRONG, WRONG]), ("c", [WRONG, WRONG])):
            if dies and name == "c":
                folder.fail_group(step, str(uuid.uuid4()), "the server was gone", validation=False)
            else:
                write_group(folder, step, name, texts)
        if step == last or step % int(overrides["trainer.save_freq"]) == 0:
            (Path(overrides["trainer.default_local_dir"]) / f"global_step_{step}" / "actor").mkdir(parents=True)
        if dies:
            sys.exit(3)
        data = {"actor/pg_loss": 1.0 / step, "actor/grad_norm": float(os.environ.get("STUB_GRADIENT", "1"))}
        with metrics.open("a") as file:
            file.write(json.dumps({"step": step, "data": data}) + "\n")


def write_group(folder: VerlFolder, step: int, name: str, texts: list[str]) -> None:
    """Write what the agent loop leaves of a group; verl gives it another id in each attempt."""
    items = [GroupItem.from_text(text, dialect=TOOL_DIALECT) for text in texts]
    rewards = group_rewards(items, ["12"], "math", 0.1, 0.1, dialect=TOOL_DIALECT)
    lines = [
        {"row": {"question_key": name, "group": name, "session": at, "domain": "math"}, "reward": asdict(reward)}
        for at, reward in enumerate(rewards)
    ]
    folder.write_group(step, str(uuid.uuid4()), lines, validation=False)


if __name__ == "__main__":
    main(dict(argument.lstrip("+").split("=", 1) for argument in sys.argv[1:]))
