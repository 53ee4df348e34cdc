"""Scored dialogues with hidden information, and the stages that make preferences of them, on real artifacts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from support.rollouts.dialogues import Guess, Halving, play
from support.tables.score_tables import new_run, put_rows, question, score

from treadle.agent.contract import Task
from treadle.core.chat import ChatTokenizer
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.core.tables import CHECKPOINTS
from treadle.datagen.questions.tables import QUESTIONS
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.environments.custom.kind import CustomType
from treadle.environments.rollouts.rows import head_of_row, row_of
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.environments.settings import EnvironmentSettings
from treadle.eval.tables import SCORES
from treadle.rl.preferences.entry import PREFERENCES_STAGE
from treadle.rl.preferences.settings import PairKind, PreferencesOptions, PreferencesSettings

CANARY = "the-number-is"
_TOPS = (100, 31, 1000)
"""Largest number that each sample believes in, so that samples differ."""


class Told(Guess):
    """Guess a number; a critic is told which."""

    @classmethod
    def hidden_information(cls, settings: Any, task: Task) -> str | None:
        return f"{CANARY} {task.payload['secret']}."


class Greeting(Told):
    """Begins each episode in other words."""

    number: ClassVar[int] = 0

    async def reset(self, task: Task) -> str:
        type(self).number += 1
        return f"{'Hello! ' * type(self).number}{await super().reset(task)}"


class Desk:
    """A run with tasks, dialogues of several samples each, and their rewards."""

    def __init__(self, folder: Path, environment: type[Guess] = Told) -> None:
        self.tokenizer = ChatTokenizer.load(write_byte_tokenizer(folder / "tokenizer"))
        self.run: Run = new_run(folder / "root")
        self._environment = environment
        self.environment: EnvironmentSettings = CustomType(environment).settings.model_validate(
            {"type": f"{environment.__module__}:{environment.__name__}"}
        )

    def put(self, rewards: Mapping[str, Sequence[float | None]], *, held_out: Sequence[str] = ()) -> None:
        """Store tasks with a rollout for each reward."""
        asked, rollouts, scores = [], [], []
        for number, (key, values) in enumerate(rewards.items()):
            payload = json.dumps({"secret": 3 + 5 * number})
            row = question(key, []) | {"split": "heldout" if key in held_out else "train", "payload": payload}
            asked.append(row)
            for index, reward in enumerate(values):
                rollouts.append(self.rollout(row, index))
                made = score(rollouts[-1]["rollout_key"], key, None if reward is None else reward == 1.0)
                empty = {one.name: None for one in SCORES.schema if one.nullable}
                scores.append(empty | made | {"sample_index": index, "score": reward})
        put_rows(self.run, "1/questions", QUESTIONS, asked)
        put_rows(self.run, "1/rollouts@base", ROLLOUTS, rollouts)
        put_rows(self.run, "1/scores@base", SCORES, scores)

        put_rows(self.run, "1/dpo@critic", CHECKPOINTS, [self._checkpoint()])

    def _checkpoint(self) -> dict[str, Any]:
        empty = {"string": "", "int64": 0, "double": 0.0}
        return {one.name: None if one.nullable else empty[str(one.type)] for one in CHECKPOINTS.schema}

    def rollout(self, asked: Mapping[str, Any], index: int) -> dict[str, Any]:
        """Return the row of a rollout."""
        model = Halving(self.tokenizer, _TOPS[index % len(_TOPS)])
        made = asyncio.run(play(self._environment, model, self.tokenizer, Task.from_row(asked)))
        head = head_of_row(asked, "base", index, index)
        return row_of(head, made, self.environment.digest(), self.tokenizer.digest) | {"job": None}

    def rows(self, address: str, kind: str) -> list[dict[str, Any]]:
        """Return the rows of a result."""
        record = self.run.record(Address.parse(address))
        assert record is not None
        return list(self.run.rows(record.outputs[kind]).rows())

    def pairs(self, kind: PairKind, **options: Any) -> StageRecord:
        """Run the stage `preferences`."""
        settings = PreferencesSettings(
            kind=kind,
            options=PreferencesOptions(**options),
            environment=self.environment,
            tokenizer=self.tokenizer.folder,
            tokenizer_digest=self.tokenizer.digest,
        )
        names = {"rollouts": "1/rollouts@base", "scores": "1/scores@base", "questions": "1/questions"}
        if kind == "turn":
            names = {"candidates": "1/candidates", "advantages": "1/advantages"}
        inputs = {name: (Address.parse(text),) for name, text in names.items()}
        address = Address.parse(f"1/preferences@{kind}")
        return execute(
            Instance(address=address, stage=PREFERENCES_STAGE, settings=settings, inputs=inputs), self.run, force=True
        )
