"""Run by the Python of the engine environment `sft`: how LLaMA-Factory itself reads our files, as JSON.

`ANSWER.json PATH...`: for a config file, the keys that its parser does not have; for a folder with
`dataset_info.json`, system, user and assistant of each row, as its loader and converter read them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def unknown_keys(file: str) -> list[str]:
    """Return keys that its parser does not have."""
    import dataclasses

    from llamafactory.hparams.parser import _TRAIN_ARGS
    from omegaconf import OmegaConf

    known = {field.name for kind in _TRAIN_ARGS for field in dataclasses.fields(kind)}
    return sorted(set(OmegaConf.load(file)) - known)


def rows(folder: str) -> list[dict[str, Any]]:
    """Return the rows of data set `sft` in its own form."""
    from llamafactory.data.loader import _get_merged_dataset
    from llamafactory.hparams.parser import get_train_args

    arguments = {
        "stage": "sft", "do_train": True, "model_name_or_path": "none", "dataset": "sft", "dataset_dir": folder,
        "output_dir": str(Path(folder) / "out"), "use_cpu": True, "template": "qwen",
    }  # fmt: skip
    model, data, training, _, _ = get_train_args(arguments)
    dataset = _get_merged_dataset(data.dataset, model, data, training, "sft")
    return [
        {
            "system": row["_system"],
            "user": [turn["content"] for turn in row["_prompt"]],
            "assistant": [turn["content"] for turn in row["_response"]],
        }
        for row in dataset
    ]


if __name__ == "__main__":
    found = {path: rows(path) if Path(path).is_dir() else unknown_keys(path) for path in sys.argv[2:]}
    Path(sys.argv[1]).write_text(json.dumps(found))
