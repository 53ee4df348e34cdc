"""The stage `questions` in a folder of its own, and what it makes of rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from treadle.core.config import validate
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.datagen.questions.entry import QUESTIONS_STAGE
from treadle.datagen.questions.source_rows import with_digests
from treadle.datagen.questions.sources import QuestionsSettings
from treadle.datagen.questions.tables import QUESTIONS

GOOD = {"question": "Which river flows through Vorna?", "answer": ["Ilme", "the Ilme"]}


def write_jsonl(path: Path, rows: Sequence[dict[str, Any] | bytes]) -> Path:
    lines = [row if isinstance(row, bytes) else orjson.dumps(row) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


class Result:
    """Tables and metrics of one executed stage."""

    def __init__(self, run: Run) -> None:
        record = run.record(Address(1, "questions"))
        assert record is not None
        self.metrics = record.metrics
        self.questions = list(run.rows(record.outputs["questions"]).rows(QUESTIONS.schema.names))
        self.quarantine = list(run.rows(record.outputs["quarantine"]).rows())

    @property
    def reasons(self) -> list[tuple[int, str]]:
        return [(row["source_row"], row["reason"]) for row in self.quarantine]


class Bench:
    """A folder with a run in which the stage can be executed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = Run.create(folder / "root", "r", {}, {})
        self.stage = QUESTIONS_STAGE

    def instance(self, *sources: dict[str, Any], **settings: Any) -> Instance:
        settings.setdefault("max_error_rate", 1.0)
        tree = {"sources": list(sources), **settings}
        built = with_digests(validate(QuestionsSettings, tree))
        return Instance(address=Address(1, "questions"), stage=self.stage, settings=built)

    def take(self, *sources: dict[str, Any], **settings: Any) -> Result:
        execute(self.instance(*sources, **settings), self.run)
        return Result(self.run)

    def take_rows(self, rows: Sequence[dict[str, Any] | bytes], **source: Any) -> Result:
        path = write_jsonl(self.folder / "q.jsonl", rows)
        return self.take({"path": path, "dataset": "qa-set", "domain": "qa", **source})
