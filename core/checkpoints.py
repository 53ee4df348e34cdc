"""Table of trained models, which every training stage produces."""

from __future__ import annotations

import pyarrow as pa

from treadle.core.tables import Table, column

CHECKPOINTS = Table(
    "checkpoint",
    2,
    ("name",),
    pa.schema(
        [
            column("name", pa.string(), "address of the instance that made it, such as 1/sft"),
            column("base_model", pa.string(), "model that training began with: `embedded`, folder, hub id or address"),
            column(
                "base_digest",
                pa.string(),
                "hex digest of that model's files; of a hub id its commit in `sft`, else empty",
            ),
            column("finetuning_type", pa.string(), "full, or lora merged into the base"),
            column("num_steps", pa.int64(), "steps of the training: optimizer steps, or batches of rollouts in `rl`"),
            column("num_epochs", pa.float64(), "passes over the rows"),
            column("num_rows", pa.int64(), "rows trained on"),
            column(
                "num_target_tokens",
                pa.int64(),
                "tokens of one epoch that count in the loss; null in `rl`, which samples its own",
                nullable=True,
            ),
            column("first_loss", pa.float64(), "loss at the first logged step; null if none is logged", nullable=True),
            column("last_loss", pa.float64(), "loss at the last logged step; null if none is logged", nullable=True),
            column("tokenizer_digest", pa.string(), "tokenizer and chat template, as in the rows"),
            column("seed", pa.int64(), "of training"),
            column("engine", pa.string(), "engine that trained it"),
            column("versions", pa.string(), "JSON object: package -> version in the engine's environment"),
            column("chosen_step", pa.int64(), "step of the exported state; null in `sft`", nullable=True),
            column("first_reward", pa.float64(), "mean reward at the first step; null in `sft`", nullable=True),
            column("last_reward", pa.float64(), "mean reward at the last step; null in `sft`", nullable=True),
            column(
                "validation_correctness",
                pa.float64(),
                "mean correctness on held-out questions at the chosen step; null without validation",
                nullable=True,
            ),
        ]
    ),
    "A trained model; its files are in the folder `model` next to this table.",
)


MODEL_FOLDER = "model"
"""Folder of a checkpoint's artifact that holds the model in Hugging Face format."""
