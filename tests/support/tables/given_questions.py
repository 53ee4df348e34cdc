"""Questions that a run is given without reading them in, and the tokenizer of the models that answer them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from treadle.core.chat import ChatTokenizer
from treadle.core.config import Section
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.datagen.questions.tables import QUESTIONS
from treadle.demo.byte_tokenizer import write_byte_tokenizer

GIVEN = Address(1, "questions")
TOKENIZER_FOLDER = write_byte_tokenizer(Path(tempfile.mkdtemp(prefix="treadle-test-")))
TOKENIZER = ChatTokenizer.load(TOKENIZER_FOLDER)


class _Rows(Section):
    rows: tuple[dict[str, Any], ...]


def _write(context: StageContext) -> Mapping[str, Any]:
    for number, given in enumerate(context.settings.rows):
        row = {
            "question_key": f"q{number:02d}",
            "dataset": "test",
            "domain": "qa",
            "question": f"Question {number}?",
            "answers": ["Paris"],
            "choices": [],
            "split": "train",
            "source_file": "f",
            "source_row": number + 1,
            "meta": "{}",
            "format": None,
            "scorer": None,
            "search": None,
            "environment": "default",
            "payload": "{}",
        }
        context.write("questions", [{**row, **given}])
    return {}


def give_questions(run: Run, rows: Sequence[Mapping[str, Any]]) -> Instance:
    """Make the instance `GIVEN` with these rows, and return it; columns that are missing are filled in."""
    stage = Stage(name="questions", version=1, settings=_Rows, produces=(QUESTIONS,), run=_write)
    settings = _Rows(rows=tuple(dict(row) for row in rows))
    given = Instance(address=GIVEN, stage=stage, settings=settings)
    execute(given, run)
    return given
