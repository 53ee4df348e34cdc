"""A run with questions, and its `pools` instance over real HTTP in any number of configurations."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from treadle.core.chat import ChatTokenizer
from treadle.core.config import Section, load_config, merge
from treadle.core.execute import execute
from treadle.core.records import StageRecord
from treadle.core.runs import Run
from treadle.core.schemas import QUESTIONS
from treadle.core.stage import Address, Instance, Stage, StageContext
from treadle.datagen.pools import POOLS_STAGE
from treadle.datagen.pools_settings import PoolsSettings
from treadle.demo.byte_tokenizer import write_byte_tokenizer

TOKENIZER_FOLDER = write_byte_tokenizer(Path(tempfile.mkdtemp(prefix="treadle-test-")))
TOKENIZER = ChatTokenizer.load(TOKENIZER_FOLDER)
FAST = {"retry_limit": 0, "backoff_base_s": 0.0, "outage_wait_s": 0.2, "probe_base_s": 0.05, "connect_timeout_s": 5.0}
ROLES = ("policy", "critic", "refiner", "judge")


class QuestionList(Section):
    """Rows of `questions`; what is missing is filled in."""

    questions: tuple[dict[str, Any], ...]


def _write(context: StageContext) -> Mapping[str, Any]:
    for number, given in enumerate(context.settings.questions):
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
        }
        context.write("questions", [{**row, **given}])
    return {}


GIVEN = Stage(name="questions", version=1, settings=QuestionList, produces=(QUESTIONS,), run=_write)


class PoolsBench:
    """A run with questions."""

    def __init__(self, root: Path, questions: Sequence[Mapping[str, Any]]) -> None:
        self.run = Run.create(root, "r", {}, {})
        settings = QuestionList(questions=tuple(dict(question) for question in questions))
        execute(Instance(address=Address.parse("1/questions"), stage=GIVEN, settings=settings), self.run)

    def instance(self, urls: str | Mapping[str, str | Sequence[str]], **changes: Any) -> Instance:
        """`urls`: of the one server, or role -> its own; `changes` are merged into the settings."""
        by_role = urls if isinstance(urls, Mapping) else dict.fromkeys(ROLES, urls)
        sampling = {"temperature": 1.0, "top_p": 0.95, "repetition_penalty": 1.1, "max_tokens": 512}
        roles = {
            role: {
                "name": role,
                "model": {
                    "model": "scripted",
                    "tokenizer": str(TOKENIZER_FOLDER),
                    "endpoints": [{"url": url} for url in ([at] if isinstance(at, str) else at)],
                    **FAST,
                },
                "sampling": sampling,
            }
            for role, at in by_role.items()
        }
        base = {
            "roles": roles,
            "environment": {"python": {"enabled": False}, "search": {"enabled": False}},
            "options": {"owed_retries": 0, "owed_pause_s": 0.0},
        }
        return Instance(
            address=Address.parse("1/pools"),
            stage=POOLS_STAGE,
            settings=load_config(PoolsSettings, data=merge(base, changes)),
            inputs={"questions": (Address.parse("1/questions"),)},
        )

    async def make(
        self, urls: str | Mapping[str, str | Sequence[str]], *, accept_failures: bool = False, **changes: Any
    ) -> StageRecord:
        """Run the stage."""
        instance = self.instance(urls, **changes)
        return await asyncio.to_thread(execute, instance, self.run, accept_failures=accept_failures)

    def rows(self, record: StageRecord, kind: str = "pools") -> list[dict[str, Any]]:
        """Rows of a table, JSON columns read."""
        rows = list(self.run.rows(record.outputs[kind]).rows())
        for row in rows:
            for column in ("segments", "tool_calls", "judge", "prompts", "models", "usage"):
                if isinstance(row.get(column), str):
                    row[column] = orjson.loads(row[column])
        return rows
