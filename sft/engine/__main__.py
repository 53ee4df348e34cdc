"""Run a command of the engine: `python -m treadle.sft.engine prepare|train|finish <job.json>`."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from treadle.core.engines.errors import Diverged, NothingLearned, is_out_of_memory
from treadle.core.engines.events import EventFile
from treadle.core.engines.export_model import BaseModelMissing
from treadle.sft.engine.arguments import BadArguments, check_arguments, read_arguments

_PACKAGES = ("llamafactory", "torch", "transformers", "peft", "accelerate", "datasets", "safetensors", "tokenizers")


def prepare(job: dict[str, Any], events: EventFile) -> None:
    """Check the configuration and the availability of the base model, then save the rows; writes event `prepared`."""
    from treadle.core.chat import ChatTokenizer
    from treadle.core.engines.export_model import commit_of, fetch_metadata_files
    from treadle.sft.engine.rows import save_rows

    arguments = _pinned(job)
    check_arguments(arguments)
    base = fetch_metadata_files(arguments["model_name_or_path"], arguments.get("model_revision", "main"))
    num_rows = save_rows(Path(job["parquet"]), Path(job["rows"]))
    events.write(
        "prepared",
        num_rows=num_rows,
        versions={name: version(name) for name in _PACKAGES},
        config_digest=hashlib.sha256(Path(job["config"]).read_bytes()).hexdigest(),
        revision=commit_of(base),
        tokenizer_digest=ChatTokenizer.load(base).digest,
    )


def train(job: dict[str, Any], events: EventFile) -> None:
    """Train, resuming from a state if the job names one."""
    from treadle.sft.engine import training

    training.train({**_pinned(job), "resume_from_checkpoint": job["resume"]}, events)


def finish(job: dict[str, Any], events: EventFile) -> None:
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


def _pinned(job: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the hub commit of the first fetch, because a newer commit is another model."""
    arguments = read_arguments(Path(job["config"]))
    return {**arguments, "model_revision": job["revision"]} if job["revision"] else arguments


_KINDS: dict[type[Exception], str] = {
    BadArguments: "arguments",
    Diverged: "diverged",
    NothingLearned: "nothing_learned",
    BaseModelMissing: "no_model",
}

COMMANDS: dict[str, Callable[[dict[str, Any], EventFile], None]] = {
    "prepare": prepare,
    "train": train,
    "finish": finish,
}


def main(name: str, job_path: str) -> int:
    """Run one command; on failure write an event `error`, and the traceback to the log."""
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    events = EventFile(Path(job["events"]))
    try:
        COMMANDS[name](job, events)
    # Any error ends this process and must be reported with its kind.
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        if os.environ.get("RANK", "0") == "0" or _kind_of(error) == "no_memory":
            events.write("error", kind=_kind_of(error), message=f"{type(error).__name__}: {error}"[:2000])
        return 1
    return 0


def _kind_of(error: Exception) -> str:
    if is_out_of_memory(error):
        return "no_memory"
    return next((kind for known, kind in _KINDS.items() if isinstance(error, known)), "other")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
