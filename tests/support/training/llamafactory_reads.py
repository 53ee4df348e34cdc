"""Run by the Python of the engine environment `sft`: how LLaMA-Factory itself reads our files, as JSON.

`ANSWER.json TOKENIZER PATH...`: for a config file, the keys that its parser does not have; for a folder with
`dataset_info.json`, each row as its loader, converter and template read it.
"""

from __future__ import annotations

import itertools
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


def rows(folder: str, tokenizer_folder: str) -> list[dict[str, Any]]:
    """Return the rows of data set `sft` in its own form, and `learned`: runs of (whether there is loss, text)."""
    from llamafactory.data.loader import _get_merged_dataset
    from llamafactory.data.processor import SupervisedDatasetProcessor
    from llamafactory.data.template import get_template_and_fix_tokenizer
    from llamafactory.hparams.parser import get_train_args
    from transformers import AutoTokenizer

    arguments = {
        "stage": "sft", "do_train": True, "model_name_or_path": "none", "dataset": "sft", "dataset_dir": folder,
        "output_dir": str(Path(folder) / "out"), "use_cpu": True, "template": "qwen", "cutoff_len": 100_000,
    }  # fmt: skip
    model, data, training, _, _ = get_train_args(arguments)
    dataset = _get_merged_dataset(data.dataset, model, data, training, "sft")
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    template = get_template_and_fix_tokenizer(tokenizer, data)
    processor = SupervisedDatasetProcessor(template, tokenizer, None, data)
    columns = {name: [row[name] for row in dataset] for name in dataset.column_names}
    encoded = processor.preprocess_dataset(columns)
    return [
        {
            "system": row["_system"],
            "user": [turn["content"] for turn in row["_prompt"]],
            "assistant": [turn["content"] for turn in row["_response"]],
            "roles": [turn["role"] for turn in row["_prompt"] + row["_response"]],
            "learned": [
                (has_loss, tokenizer.decode([token for token, _ in run]))
                for has_loss, run in itertools.groupby(zip(ids, labels, strict=True), lambda pair: pair[1] != -100)
            ],
        }
        for row, ids, labels in zip(dataset, encoded["input_ids"], encoded["labels"], strict=True)
    ]


if __name__ == "__main__":
    answer, tokenizer, *paths = sys.argv[1:]
    found = {path: rows(path, tokenizer) if Path(path).is_dir() else unknown_keys(path) for path in paths}
    Path(answer).write_text(json.dumps(found))
