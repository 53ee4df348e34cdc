"""Train with LLaMA-Factory, and report each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback

from treadle.core.engines.events import EventFile
from treadle.core.engines.trainer.reporter import TrainerReporter


def train(arguments: dict[str, Any], events: EventFile, callbacks: Sequence[TrainerCallback] = ()) -> None:
    """Train with these arguments; the model and its states are written to `output_dir`."""
    from llamafactory.train.tuner import run_exp

    # With this filter, the trainer's default, a NaN would be logged as the mean of earlier losses.
    run_exp({"logging_nan_inf_filter": False, **arguments}, callbacks=[TrainerReporter(events), *callbacks])
