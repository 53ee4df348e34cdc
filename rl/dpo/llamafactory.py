"""Export pairs of turns and the settings of the policy's training for LLaMA-Factory (0.9.5).

Its preference losses sum log-probabilities over one message per side. So it can train the policy on pairs of turns,
but neither the critic nor a policy on whole dialogues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from treadle.core.errors import ConfigError, DataError
from treadle.core.runs.stage import Rows
from treadle.core.store.exported import new_folder, write_facts
from treadle.rl.dpo.config import DpoOptions

DATASET_NAME = "pairs"
PAIRS_FILE, CONFIG_FILE = "pairs.jsonl", "train.yaml"
_SIDES = {"user": "human", "tool": "human", "assistant": "gpt"}
_INFO = {
    DATASET_NAME: {
        "file_name": PAIRS_FILE,
        "formatting": "sharegpt",
        "ranking": True,
        "columns": {"messages": "conversations", "system": "system", "chosen": "chosen", "rejected": "rejected"},
    }
}
_READ = ("kind", "messages", "chosen_text", "rejected_text")
_CARD = """---
configs:
- config_name: default
  data_files: pairs.jsonl
---

# Pairs of turns

Conversations with a preferred and a rejected next turn, in LLaMA-Factory's format for rankings; `dataset_info.json`
describes it, `train.yaml` trains on it. The texts are tokenised again there: compare its template with that of the
model before training.
"""


def pair_record(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a pair as a record of the data set; None if its conversation cannot be used.

    Human and other messages must alternate, and the first and last ones must be human. LLaMA-Factory would drop any
    other record with nothing but a line in its log.
    """
    messages = orjson.loads(row["messages"])
    system = [message["content"] for message in messages if message["role"] == "system"]
    turns = [
        {"from": _SIDES.get(message["role"], ""), "value": message["content"]}
        for message in messages
        if message["role"] != "system"
    ]
    wanted = ["human" if place % 2 == 0 else "gpt" for place in range(len(turns))]
    if [turn["from"] for turn in turns] != wanted or len(turns) % 2 == 0:
        return None
    sides = {name: {"from": "gpt", "value": row[f"{name}_text"]} for name in ("chosen", "rejected")}
    return {"conversations": turns, "system": "\n\n".join(system), **sides}


def policy_arguments(options: DpoOptions, template: str | None = None) -> dict[str, Any]:
    """Return the keys of LLaMA-Factory for the training of a policy on one device.

    Raises ConfigError if the aggregate is not `sum`, the only one that LLaMA-Factory's losses have.
    """
    if options.aggregate != "sum":
        raise ConfigError(
            f"dpo.aggregate = {options.aggregate}: the losses of LLaMA-Factory sum log-probabilities and have no "
            'normalisation by length together with a reference; train it here, or set aggregate = "sum"'
        )
    is_lora = options.finetuning_type == "lora"
    adapters = {"lora_rank": options.lora_rank, "lora_target": options.lora_target} if is_lora else {}
    per_device = options.per_device_batch_size or 1
    has_floor = options.lr_scheduler_type == "cosine_with_min_lr"
    schedule = {"lr_scheduler_kwargs": {"min_lr_rate": options.min_lr_rate}} if has_floor else {}
    return {
        "model_name_or_path": options.model,
        "stage": "dpo",
        "do_train": True,
        "finetuning_type": options.finetuning_type,
        **adapters,
        "pref_loss": "sigmoid",
        "pref_beta": options.beta,
        "pref_ftx": options.nll_coef,
        "dataset": DATASET_NAME,
        "dataset_dir": ".",
        **({"template": template} if template else {}),
        **({"cutoff_len": options.max_tokens} if options.max_tokens else {}),
        "learning_rate": options.learning_rate,
        "num_train_epochs": options.num_train_epochs,
        "per_device_train_batch_size": per_device,
        "gradient_accumulation_steps": max(1, options.batch_size // per_device),
        "lr_scheduler_type": options.lr_scheduler_type,
        **schedule,
        "warmup_ratio": options.warmup_ratio,
        "weight_decay": options.weight_decay,
        "adam_beta2": options.adam_beta2,
        "max_grad_norm": options.max_grad_norm,
        "bf16": options.precision in ("auto", "bf16"),
        **({"val_size": options.holdout_share} if options.holdout_share else {}),
        "output_dir": "output",
    }


def export_pairs(
    rows: Rows,
    options: DpoOptions,
    target: Path,
    *,
    origin: Mapping[str, str],
    template: str | None = None,
    replace: bool = False,
) -> tuple[int, int]:
    """Write pairs of turns, the description of the data set and the configuration into a new folder.

    Returns the numbers of pairs written and left out. Raises ConfigError for pairs of other kinds, and without PyYAML;
    DataError if no pair can be written.
    """
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigError("this export needs PyYAML: pip install 'treadle[sft]'") from None
    arguments = policy_arguments(options, template)
    counts: Counter[str] = Counter()
    with new_folder(target, replace=replace) as folder:
        with (folder / PAIRS_FILE).open("wb") as file:
            file.writelines(_lines(rows, counts))
        if not counts["written"]:
            raise DataError(f"0 of {counts['left_out']:,} pairs have a conversation that alternates; nothing to write")
        (folder / "dataset_info.json").write_bytes(orjson.dumps(_INFO, option=orjson.OPT_INDENT_2))
        body = yaml.safe_dump(arguments, sort_keys=False, width=1000)
        (folder / CONFIG_FILE).write_text(f"# Written by Treadle for LLaMA-Factory 0.9.5.\n{body}", encoding="utf-8")
        (folder / "README.md").write_text(_CARD, encoding="utf-8")
        facts = {"kind": rows.kind, "format": "llamafactory", "digest": rows.digest, "num_rows": counts["written"]}
        write_facts(folder, {**facts, "left_out": counts["left_out"], **origin})
    return counts["written"], counts["left_out"]


def _lines(rows: Rows, counts: Counter[str]) -> Iterator[bytes]:
    for row in rows.rows(_READ):
        if row["kind"] != "turn":
            raise ConfigError(
                f"these are pairs of the kind {row['kind']}: LLaMA-Factory trains on one message per side, so "
                "only pairs of turns can be exported to it; name 1/preferences@turn"
            )
        record = pair_record(row)
        counts["left_out" if record is None else "written"] += 1
        if record is not None:
            yield orjson.dumps(record) + b"\n"
