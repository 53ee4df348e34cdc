"""Make runs with any number of questions, and the stage `rollouts` over them, for memory and resume benchmarks."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from treadle.core.config import Section, load_config
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.datagen.questions.tables import QUESTIONS
from treadle.demo.world_files import write_world
from treadle.environments.rollouts.settings import RolloutsSettings
from treadle.environments.rollouts.stage import ROLLOUTS_STAGE

SAMPLES = 8
ROLLOUTS_ADDRESS = Address(1, "rollouts", "base")
QUESTIONS_ADDRESS = Address(1, "questions")


class QuestionTexts(Section):
    """Settings of the stage that writes questions."""

    texts: tuple[str, ...]
    """Question texts, used in turn."""
    number: int
    """Number of rows."""


def _write_questions(context: StageContext) -> dict[str, Any]:
    given: QuestionTexts = context.settings
    blank = {
        "dataset": "stub",
        "domain": "qa",
        "answers": ["1"],
        "choices": [],
        "split": "heldout",
        "format": None,
        "scorer": None,
        "search": None,
        "environment": "default",
        "payload": "{}",
    }
    for first in range(0, given.number, 1000):
        rows = [
            {**blank, "question_key": f"{number:016x}", "question": _text(given.texts, number),
             "source_file": "f", "source_row": number + 1, "meta": "{}"}
            for number in range(first, min(first + 1000, given.number))
        ]  # fmt: skip
        context.write("questions", rows)
    return {}


def _text(texts: Sequence[str], number: int) -> str:
    """Return one of the texts, made unique by white space, because equal questions are deduplicated."""
    repeat, place = divmod(number, len(texts))
    return texts[place] + f"{repeat:b}".replace("0", " ").replace("1", "\t") * bool(repeat)


def make_run(folder: Path, texts: Sequence[str], number: int) -> Run:
    """Create a run with this many questions."""
    run = Run.create(folder, "r", {}, {})
    stage = Stage(name="questions", version=1, settings=QuestionTexts, produces=(QUESTIONS,), run=_write_questions)
    execute(
        Instance(address=QUESTIONS_ADDRESS, stage=stage, settings=QuestionTexts(texts=tuple(texts), number=number)), run
    )
    return run


def rollouts_instance(tokenizer: Path, url: str, model: str, environment: dict[str, Any], **options: Any) -> Instance:
    """Return the instance of the stage under test."""
    data = {
        "model_name": "base",
        "model": {
            "model": model,
            "tokenizer": str(tokenizer),
            "endpoints": [{"url": url}],
            "max_in_flight": 100_000,
        },
        "environment": environment,
        "options": options,
    }
    settings = load_config(RolloutsSettings, data=data)
    return Instance(
        address=ROLLOUTS_ADDRESS, stage=ROLLOUTS_STAGE, settings=settings, inputs={"questions": (QUESTIONS_ADDRESS,)}
    )


def world_of(folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Return questions of the sample world that take one search, and an environment with only that search."""
    world = write_world(folder / "world", questions=800)
    lines = map(orjson.loads, world.questions.read_text().splitlines())
    search = {"corpus": [str(world.corpus)], "cache_folder": str(folder), "top_n": 1, "document_chars": 200}
    environment = {"python": {"enabled": False}, "search": search}
    return [row["question"] for row in lines if row["source"] == "world-lookup"], environment


@contextlib.contextmanager
def tutor(tokenizer: Path) -> Iterator[str]:
    """Run a tutor in a process of its own and yield its URL."""
    command = [sys.executable, "-m", "treadle.demo.tutor", "--tokenizer", str(tokenizer)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield json.loads(child.stdout.readline())["url"]
        finally:
            child.terminate()
