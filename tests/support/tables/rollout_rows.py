"""Rows of `rollouts` that are dialogues of the engine, and the stage `sft_rows` over rollouts and their scores."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.rollouts.dialogues import Guess, Halving, play
from support.tables.pool_tables import ENVIRONMENT
from support.tables.score_tables import new_run, put_rows, question, score

from treadle.agent.contract import EpisodeOptions, Task
from treadle.core.chat import ChatTokenizer
from treadle.core.config import Section
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.datagen.questions.tables import QUESTIONS
from treadle.datagen.sft_rows.entry import SFT_ROWS_STAGE
from treadle.datagen.sft_rows.settings import SftRowsOptions, SftRowsSettings
from treadle.environments.custom.kind import CustomType
from treadle.environments.rollouts.rows import head_of_row, row_of
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.environments.settings import EnvironmentSettings
from treadle.eval.tables import SCORES

GUESS = "support.rollouts.dialogues:Guess"
FIVE_QUESTIONS = [question(f"q{number}", []) | {"split": "train"} for number in range(1, 6)]


class Dialogues:
    """Rollouts of `Guess` in memory, with their settings."""

    def __init__(self, tokenizer: ChatTokenizer, **settings: Any) -> None:
        self.tokenizer = tokenizer
        self.environment: EnvironmentSettings = CustomType(Guess).settings.model_validate({"type": GUESS, **settings})

    def row(self, number: int, *, secret: int, hint: str = "") -> dict[str, Any]:
        """Return the row of a rollout on question `number`."""
        asked = FIVE_QUESTIONS[number - 1] | {"payload": json.dumps({"secret": secret})}
        options = EpisodeOptions(hint=hint)
        made = asyncio.run(play(Guess, Halving(self.tokenizer), self.tokenizer, Task.from_row(asked), options=options))
        head = head_of_row(asked, "base", 0, 0)
        return row_of(head, made, self.environment.digest(), self.tokenizer.digest) | {"job": None}

    def settings(self, **options: Any) -> SftRowsSettings:
        """Return the settings of the stage."""
        return SftRowsSettings(
            environment=self.environment,
            tokenizer=self.tokenizer.folder,
            tokenizer_digest=self.tokenizer.digest,
            options=SftRowsOptions(**options),
        )


def scored(rows: Sequence[dict[str, Any]], *verdicts: bool | None) -> list[dict[str, Any]]:
    """Return the scores of rollouts with these verdicts."""
    return [
        score(row["rollout_key"], row["question_key"], correct) for row, correct in zip(rows, verdicts, strict=True)
    ]


def make_rows(
    tmp_path: Path,
    rollouts: Sequence[dict[str, Any]],
    scores: Sequence[dict[str, Any]],
    settings: Section | None = None,
    questions: Sequence[dict[str, Any]] = FIVE_QUESTIONS,
) -> tuple[Run, StageRecord]:
    """Run the stage over these rollouts and scores; raises what the stage raises."""
    run = new_run(tmp_path)
    inputs = {
        "questions": (put_rows(run, "1/questions", QUESTIONS, questions),),
        "rollouts": (put_rows(run, "1/rollouts@base", ROLLOUTS, rollouts),),
        "scores": (put_rows(run, "1/scores@base", SCORES, scores),),
    }
    chosen = settings or SftRowsSettings(environment=ENVIRONMENT)
    made = Instance(address=Address.parse("1/sft_rows"), stage=SFT_ROWS_STAGE, settings=chosen, inputs=inputs)
    return run, execute(made, run)


def rows_of(run: Run, record: StageRecord, kind: str = "sft_rows") -> dict[str, dict[str, Any]]:
    """Return the rows of an output by the key of their rollout."""
    return {row["rollout_key"]: row for row in run.rows(record.outputs[kind]).rows()}
