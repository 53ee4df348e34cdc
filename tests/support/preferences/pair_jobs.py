"""Pairs of token ids that a small policy can be trained on in seconds, and a plan for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.config import Machine
from treadle.rl.dpo.arguments import training_plan
from treadle.rl.dpo.config import DpoOptions
from treadle.rl.dpo.launch import DpoFolder
from treadle.rl.dpo.rows import ENGINE_ROWS

PARENT = """
import sys
from pathlib import Path
import orjson
from treadle.core.engines.training import EngineOptions
from treadle.rl.dpo.engine import ENGINE
from treadle.rl.dpo.launch import DpoFolder, train_on_pairs
folder = DpoFolder(Path(sys.argv[1]))
plan = orjson.loads((folder.path / "given.json").read_bytes())
train_on_pairs(folder, plan, EngineOptions(variant="cpu"), ENGINE, prompt=[1, 2, 3])
"""
"""Program that trains in a folder that holds the plan, as `python -c PARENT FOLDER`."""


def write_pairs(
    path: Path, codec: ChatTokenizer, *, num_train: int = 12, num_held_out: int = 4
) -> list[dict[str, Any]]:
    """Write pairs of dialogues of two turns: the chosen one says yes, the rejected one no."""
    end = min(codec.eos_ids)
    human = codec.encode(" Sure? ")
    rows = []
    for number in range(num_train + num_held_out):
        row: dict[str, Any] = {"prompt_ids": codec.encode(f"{number}? "), "held_out": number >= num_train}
        for side, word in (("chosen", "yes"), ("rejected", "no")):
            turns = [[*codec.encode(word), end], [*codec.encode(f"{word} {word}"), end]]
            row[f"{side}_ids"] = [*turns[0], *human, *turns[1]]
            row[f"{side}_mask"] = [1] * len(turns[0]) + [0] * len(human) + [1] * len(turns[1])
            row[f"{side}_turns"] = [len(turn) for turn in turns]
        rows.append(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, ENGINE_ROWS), path)
    return rows


def make_plan(folder: DpoFolder, policy: Path, num_rows: int = 12, **options: Any) -> dict[str, Any]:
    """Return a plan as the stage makes it, and write it for a parent that is killed."""
    given = {"aggregate": "turn_sum", "num_train_epochs": 3.0, "batch_size": 4, "save_steps": 1, "learning_rate": 1e-3}
    made = DpoOptions.model_validate({**given, **options})
    shape = {"num_rows": num_rows, "has_holdout": True, "longest_row": 60, "output": str(folder.output), "seed": 1}
    plan = training_plan(made, str(policy), Machine(), **shape)
    folder.path.mkdir(parents=True, exist_ok=True)
    (folder.path / "given.json").write_bytes(orjson.dumps(plan))
    return plan
