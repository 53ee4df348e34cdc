"""Commands of a training with LLaMA-Factory: check and prepare, train, write the model."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from treadle.core.engines.events import EventFile
from treadle.sft.engine.arguments import check_arguments, read_arguments
from treadle.sft.training_engine import SftEngine

_PACKAGES = ("llamafactory", "torch", "transformers", "peft", "accelerate", "datasets", "safetensors", "tokenizers")


def check(engine: SftEngine, job: Mapping[str, Any], events: EventFile) -> None:
    """Check the configuration and the availability of the base model, then save the rows; writes event `prepared`."""
    from treadle.core.engines.export_model import fetch_metadata_files
    from treadle.sft.engine.rows import save_rows

    arguments = _pinned(job)
    check_arguments(arguments)
    base = fetch_metadata_files(arguments["model_name_or_path"], arguments.get("model_revision", "main"))
    save_rows(Path(job["parquet"]), Path(job["rows"]))
    engine.write_prepared(job, events, {name: version(name) for name in _PACKAGES}, base)


def train(job: dict[str, Any], events: EventFile) -> None:
    """Train, resuming from a state if the job names one."""
    from treadle.sft.engine import training

    training.train({**_pinned(job), "resume_from_checkpoint": job["resume"]}, events)


def finish(job: Mapping[str, Any], events: EventFile) -> None:
    """Write the model's folder, then let the model continue the job's prompt; writes events `model` and `greedy`."""
    from treadle.core.engines.export_model import greedy_ids, write_model

    arguments, folder = _pinned(job), Path(job["model"])
    if not folder.is_dir():
        write_model(
            arguments["model_name_or_path"],
            Path(job["output"]),
            folder,
            is_adapter=arguments.get("finetuning_type") == "lora",
            revision=arguments.get("model_revision", "main"),
        )
        events.write("model")
    if job["prompt"]:
        events.write("greedy", **greedy_ids(folder, job["prompt"], job["num_greedy_tokens"]))


def _pinned(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with the hub commit that was fetched first: a newer commit is another model."""
    arguments = read_arguments(Path(job["config"]))
    return {**arguments, "model_revision": job["revision"]} if job["revision"] else arguments
