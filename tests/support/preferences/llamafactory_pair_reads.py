"""Run by the Python of the engine environment `sft`: how LLaMA-Factory itself reads exported pairs, as JSON.

`ANSWER.json TOKENIZER FOLDER`: `arguments` of its training as it parsed them, and `rows` as its loader, converter,
template and processor of rankings read them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

_ASKED = (
    "stage", "finetuning_type", "pref_loss", "pref_beta", "pref_ftx", "learning_rate", "num_train_epochs",
    "per_device_train_batch_size", "gradient_accumulation_steps", "lr_scheduler_type", "lr_scheduler_kwargs",
    "weight_decay", "adam_beta2", "max_grad_norm", "cutoff_len", "val_size",
)  # fmt: skip


def read(tokenizer_folder: str) -> dict[str, Any]:
    """Read `train.yaml` in the working directory, with no more changed than a CPU needs, and the pairs it names."""
    from llamafactory.data.loader import _get_merged_dataset
    from llamafactory.data.processor import PairwiseDatasetProcessor
    from llamafactory.data.template import get_template_and_fix_tokenizer
    from llamafactory.hparams.parser import get_train_args
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer

    written: Any = OmegaConf.to_container(OmegaConf.load("train.yaml"))
    model, data, training, finetuning, _ = get_train_args({**written, "use_cpu": True, "bf16": False})
    parsed = vars(data) | vars(training) | vars(finetuning)
    dataset = _get_merged_dataset(data.dataset, model, data, training, "rm")
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    template = get_template_and_fix_tokenizer(tokenizer, data)
    processor = PairwiseDatasetProcessor(template, tokenizer, None, data)
    encoded = processor.preprocess_dataset({name: [row[name] for row in dataset] for name in dataset.column_names})
    rows = []
    for number in range(len(dataset)):
        row: dict[str, Any] = {"ids": encoded["chosen_input_ids"][number]}
        for side in ("chosen", "rejected"):
            ids, labels = encoded[f"{side}_input_ids"][number], encoded[f"{side}_labels"][number]
            learned = [label for label in labels if label != -100]
            row[side] = tokenizer.decode(learned)
            row["prompt"] = tokenizer.decode(ids[: len(ids) - len(learned)])
        rows.append(row)
    return {"arguments": {name: parsed[name] for name in _ASKED}, "rows": rows}


if __name__ == "__main__":
    answer, tokenizer, folder = sys.argv[1:]
    os.chdir(folder)
    Path(answer).write_text(json.dumps(read(tokenizer), default=str))
