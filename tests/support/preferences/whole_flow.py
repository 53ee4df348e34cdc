"""The smallest flow of the recipe `sweet` with real engines: its tasks, its configuration, and what may be hidden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from treadle.demo.programs.tasks import make_tasks

CANARY = "canary 5e1f00d"
NUM_TRAIN, NUM_HELDOUT = 4, 2
NUM_GUIDED = 2 * NUM_HELDOUT
CONFIG = """
seed = 1

[flow]
recipe = "sweet"
stages = [
    "sft_rows", "sft", "rollouts", "scores", "preferences", "dpo", "guided_rollouts", "candidates", "advantages",
    "report",
]
models = ["start", "policy"]

[models.start]
model = "start"
server = { type = "vllm", model = "1/sft", max_model_len = 512, dtype = "float32" }

[models.policy]
model = "policy"
server = { type = "vllm", model = "1/dpo@policy", max_model_len = 512, dtype = "float32" }

[models.human]
model = "treadle-tutor-human"
server = { type = "tutor" }

[[questions.sources]]
path = "FOLDER/tasks.jsonl"
split_field = "split"
domain = "code"
scorer = "wordy"
payload = ["reference", "tests"]

[environment]
type = "colbench/backend"
max_turns = 2
instructions = "Ask, then write I WANT TO ANSWER: and the code."

# An untrained model solves nothing, but it says more or less.
[scorers.wordy]
type = "FOLDER/scorers.py:Wordy"

[sft_rows]
tokenizer = "embedded"
texts = [{ path = "FOLDER/texts.json", domain = "code", question_label = "" }]

[sft]
batch_size = 2

[rollouts]
samples_per_question = 3
sampling = { temperature = 1.0, max_tokens = 24 }

[overrides."1/rollouts@policy"]
split = "heldout"
samples_per_question = 1

[preferences]
rule = "gap"
min_gap = 0.01

[guided_rollouts]
num_candidates = 3
samples_per_question = 2
sampling = { temperature = 1.0, max_tokens = 24 }
max_concurrent = 1

[candidates]
num_candidates = 3
data_fraction = 0.5
sampling = { temperature = 1.0, max_tokens = 24 }

[dpo]
model = "1/sft"
batch_size = 2
max_rows = 4
num_train_epochs = 1
learning_rate = 1e-4
warmup_ratio = 0.0
holdout_share = 0.0
"""
SCORERS = '''
from treadle.api import Scorer, StoredRollout, Task


class Wordy(Scorer):
    """Like long messages."""

    async def score(self, task: Task, rollout: StoredRollout) -> float:
        return min(1.0, sum(len(turn) for turn in rollout.turns) / 400)
'''


def write_flow(folder: Path) -> Path:
    """Write tasks, texts, scorer and configuration; return the path of the latter."""
    rows = [
        {
            "question": task["problem_description"],
            "reference": f"{task['ground_truth']}\n# {CANARY}",
            "tests": task["test_cases"],
            "split": split,
        }
        for split, number in (("train", NUM_TRAIN), ("heldout", NUM_HELDOUT))
        for task in make_tasks("train" if split == "train" else "heldout", number, 0)
    ]
    texts: list[dict[str, Any]] = [
        {"input": task["problem_description"], "output": f"<answer>{task['ground_truth']}</answer>"}
        for task in make_tasks("train", NUM_TRAIN, 1)
    ]
    (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "texts.json").write_text(json.dumps(texts))
    (folder / "scorers.py").write_text(SCORERS)
    (folder / "flow.toml").write_text(CONFIG.replace("FOLDER", str(folder)))
    return folder / "flow.toml"
