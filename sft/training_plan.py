"""Define the plan of a fine-tuning: the configuration of its engine, made from the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from treadle.core.engines.config import Machine
from treadle.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """The paths of a training's inputs and outputs."""

    model: str
    """Folder of the base model, or a hub id."""
    rows: Path
    """Folder of tokenised rows, as `datasets` saves them; used only by engines that read this format."""
    output: Path
    """Folder for the model, the states and the logs."""
    deepspeed: Path
    """File for DeepSpeed's JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """The arguments for an engine, and notes on settings without effect on this machine."""

    arguments: dict[str, Any]
    """Keys of the engine, in the order of the YAML; `model_name_or_path` is the base model."""
    notes: tuple[str, ...]
    """Notes on the settings without effect on this machine, one sentence each."""
    machine: Machine
    engine: str = "LLaMA-Factory 0.9.5"
    """Engine that reads the YAML, as its first line names it."""
    torchrun: tuple[str, ...] | None = None
    """Arguments of `python -m torch.distributed.run` for a distributed training; None for any other training."""
    files: Mapping[Path, bytes] = field(default_factory=dict)
    """Further files that the engine reads."""

    def yaml(self) -> str:
        """Return the configuration file; raise ConfigError without PyYAML."""
        try:
            import yaml
        except ModuleNotFoundError:
            raise ConfigError("fine-tuning needs PyYAML: pip install 'treadle[sft]'") from None

        body: str = yaml.safe_dump(self.arguments, sort_keys=False, allow_unicode=False, width=1000)
        return f"# Written by Treadle for {self.engine}.\n" + "".join(f"# {note}\n" for note in self.notes) + body
