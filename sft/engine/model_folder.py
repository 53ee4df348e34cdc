"""After training: the model's folder from what LLaMA-Factory wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treadle.core.engines import hand_over


def write_model(arguments: dict[str, Any], output: Path, folder: Path) -> None:
    """Make `folder` the trained model in Hugging Face format; see `treadle.core.engines.hand_over.write_model`."""
    hand_over.write_model(
        arguments["model_name_or_path"],
        output,
        folder,
        is_adapter=arguments.get("finetuning_type") == "lora",
        revision=arguments.get("model_revision", "main"),
    )
