"""Runs inside the environment of the engine `sft`: trains, and notes what reaches the model and with what loss.

Arguments: LLaMA-Factory's YAML, rows (parquet), folder for the merged model, ids of a prompt as JSON. Prints one JSON
object as its last line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, TrainerCallback

from treadle.core.engines.events import EventFile
from treadle.core.engines.export_model import greedy_ids, write_model
from treadle.sft.engine.arguments import BadArguments, check_arguments, read_arguments
from treadle.sft.engine.rows import save_rows
from treadle.sft.engine.training import train


class Notes(TrainerCallback):  # type: ignore[misc]
    """Remembers `input_ids` and `labels` of every forward pass in training, without padding."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[list[int], list[int]]]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        rows = zip(kwargs["input_ids"], kwargs["labels"], kwargs["attention_mask"], strict=True)
        self.batches.append(
            [(ids[mask == 1].tolist(), labels[mask == 1].tolist()) for ids, labels, mask in rows]
            + [([], labels[mask == 0].tolist()) for _, labels, mask in zip(*(kwargs[n] for n in NAMES), strict=True)]
        )


NAMES = ("input_ids", "labels", "attention_mask")


def loss_by_hand(base: str, rows: list[tuple[list[int], list[int]]]) -> float:
    """Mean of -log p over the labels that are not -100, row by row."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    total, number = 0.0, 0
    with torch.inference_mode():
        for ids, labels in rows:
            scores = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
            for place, label in enumerate(labels[1:]):
                if label != -100:
                    total -= float(scores[place, label])
                    number += 1
    return total / number


def first_id_with_adapter(base: str, adapter: str, prompt: list[int]) -> tuple[int, float]:
    """Return the likeliest next id and its log-probability, with the adapter loaded on the base model, not merged."""
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
    with torch.inference_mode():
        best = torch.log_softmax(model(torch.tensor([prompt])).logits[0, -1], -1).topk(2)
    return int(best.indices[0]), float(best.values[0] - best.values[1])


def refusals(arguments: dict[str, Any]) -> list[str]:
    """Return the messages for invalid configs."""
    said = []
    for change in ({"lerning_rate": 1.0, "lora_rnk": 8}, {"learning_rate": "fast"}, {"finetuning_type": "some"}):
        try:
            check_arguments({**arguments, **change})
        except BadArguments as error:
            said.append(str(error))
    return said


def main(config: str, parquet: str, merged: str, prompt_json: str) -> None:
    arguments, notes, prompt = read_arguments(Path(config)), Notes(), json.loads(prompt_json)
    base, output = arguments["model_name_or_path"], arguments["output_dir"]
    said = refusals(arguments)
    save_rows(Path(parquet), Path(arguments["tokenized_path"]))
    train(arguments, EventFile(Path(output).with_name("events.jsonl")), [notes])
    write_model(base, Path(output), Path(merged), is_adapter=True)
    answer = {
        "batches": notes.batches,
        "refusals": said,
        "loss_by_hand": loss_by_hand(base, [row for row in notes.batches[0] if row[0]]),
        "with_adapter": first_id_with_adapter(base, output, prompt),
        "merged": greedy_ids(Path(merged), prompt, 1),
    }
    print("\n" + json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
