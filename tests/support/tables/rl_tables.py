"""Rows of `rl_rows`, a small start policy, and the stage `rl` over them with the scripted engine."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.rollouts.scripted_environment import write_python
from support.tables.score_tables import new_run, put_rows, question
from support.training import scripted_rl_engine
from support.training.scripted_rl_engine import SCRIPT

from treadle.core.config import load_config
from treadle.core.engines import training_engine
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Progress
from treadle.datagen.questions.tables import QUESTIONS
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.registry import traits_of
from treadle.rl.config import RlSettings
from treadle.rl.selection.tables import RL_ROWS
from treadle.rl.training.stage import RL_STAGE
from treadle.rl.verl.rows import verl_row

ENVIRONMENT = {"system_prompt": "Answer."}
PLACE = "1/rl@phase-1"
OPTIONS: Mapping[str, Any] = {
    "group_size": 4, "prompts_per_step": 2, "mini_batch_prompts": 2, "max_prompt_tokens": 200, "save_steps": 2,
    "reward": {"sigma_tool": 0.1, "sigma_length": 0.05}, "variant": "cpu", "stall_timeout_s": 60.0,
}  # fmt: skip
"""Six steps of the twelve rows of `example_rows`, a state after every second one."""


def rl_row(key: str, **columns: Any) -> dict[str, Any]:
    """Return a row of `rl_rows` for the question `question <key>?`."""
    asked = question(key, ["Oreb", "oreb"]) | {
        name: columns.pop(name) for name in ("domain", "dataset", "question") if name in columns
    }
    environment = QuestionSettings.model_validate(ENVIRONMENT)
    messages = [{"role": "system", "content": "Answer."}, {"role": "user", "content": asked["question"]}]
    row = verl_row(asked, messages, index=int(key.lstrip("q") or 0), phase=1)
    return {
        **row,
        "question_key": key,
        "dataset": asked["dataset"],
        "domain": asked["domain"],
        "phase": 1,
        "model": "phase-1",
        "parents": [],
        "correctness": [0.0, 1.0],
        "calls": [1, 2],
        "num_unusable": 0,
        "score_tool": 0.5,
        "score_corr": 0.5,
        "method": "pareto",
        "rank": 0,
        "parts": [{"name": "is_boundary", "value": 1.0}],
        "format": asked["format"],
        "scorer": asked["scorer"],
        "environment": "default",
        "environment_digest": environment.digest(),
        **columns,
    }


def example_rows(number: int = 12) -> list[dict[str, Any]]:
    return [rl_row(f"q{index}") for index in range(number)]


def run_with_rows(
    root: Path, rows: Sequence[dict[str, Any]] | None = None, questions: Sequence[dict[str, Any]] = ()
) -> Run:
    """Return a run whose `1/selection@phase-1` holds these rows, and `1/questions` these questions."""
    run = new_run(root)
    put_rows(run, "1/selection@phase-1", RL_ROWS, example_rows() if rows is None else rows)
    if questions:
        put_rows(run, "1/questions", QUESTIONS, questions)
    return run


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, Sequence[int]]]) -> None:
    """Write a file whose tensors, of number types of 16 bits or F32, are all zeros."""
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        begin = end
        size = 4 if dtype == "F32" else 2
        for length in shape:
            size *= length
        end = begin + size
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def write_policy(folder: Path) -> Path:
    """Return a folder that looks like a small model."""
    write_byte_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    write_safetensors(folder / "model.safetensors", {"embed.weight": ("BF16", (2, 3)), "norm.weight": ("BF16", (3,))})
    return folder


@dataclass
class Watched(Progress):
    """A listener that remembers."""

    starts: list[tuple[int, int, str]] = field(default_factory=list)
    done: int = 0
    facts: list[dict[str, str | int | float]] = field(default_factory=list)

    def start(self, total: int, done: int, unit: str) -> None:
        self.starts.append((total, done, unit))
        self.done = done

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        self.done += count
        self.facts.append(facts)


@contextmanager
def scripted(folder: Path, **script: Any) -> Iterator[None]:
    """Replace every engine by the scripted one, with this script, inside the block."""
    path, python = folder / "script.json", folder / "python"
    path.write_text(json.dumps(script))
    write_python(python, scripted_rl_engine)
    real, training_engine.python_of = training_engine.python_of, lambda engine, variant: python
    os.environ[SCRIPT] = str(path)
    try:
        yield
    finally:
        training_engine.python_of = real
        del os.environ[SCRIPT]


def instance(start: Path | str, **options: Any) -> Instance:
    """`1/rl@phase-1` over what `run_with_rows` put there."""
    environment = options.pop("environment", ENVIRONMENT)
    data = {"options": {**OPTIONS, "start": str(start), **options}, "environment": environment, "seed": 3}
    settings = load_config(RlSettings, data=data)
    inputs: dict[str, tuple[Address, ...]] = {"rl_rows": (Address.parse("1/selection@phase-1"),)}
    if settings.options.validation_questions or traits_of(settings.environment).reads_payload:
        inputs["questions"] = (Address.parse("1/questions"),)
    return Instance(address=Address.parse(PLACE), stage=RL_STAGE, settings=settings, inputs=inputs)


def train(
    run: Run, start: Path | str, script: Mapping[str, Any], *, progress: Progress | None = None, **options: Any
) -> StageRecord:
    """Run the stage with the scripted engine."""
    with scripted(Path(start).parent, **script):
        return execute(instance(start, **options), run, progress=progress)


def workspace_of(run: Run) -> Path:
    """Return the folder of the training that an attempt left behind."""
    (folder,) = {path.parent for path in Path(run.storage.root).rglob("job.json")}
    return folder
