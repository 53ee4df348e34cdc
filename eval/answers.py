"""Read rollouts with the gold answers of their questions, and score them by rule. Input of the stage `scores`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import orjson

from treadle.agent.contract import Outcome, Task
from treadle.core.answers.extraction import extract_prediction
from treadle.core.answers.symbolic import SymbolicChecker
from treadle.core.errors import ArtifactError
from treadle.core.runs.stage import Rows
from treadle.environments.diagnosis.facts import ENDED
from treadle.environments.scorers.answer import AnswerTools
from treadle.environments.scorers.base import Stores
from treadle.environments.scorers.scoring import ANSWERED, OpenScorers, has_given
from treadle.environments.stored_rollout import STORED_COLUMNS, StoredRollout
from treadle.eval.config import ScoresOptions, ScoresSettings
from treadle.eval.lengths import count_agent_ids

COPIED_COLUMNS = (
    "rollout_key",
    "question_key",
    "dataset",
    "domain",
    "environment",
    "model",
    "sample_index",
    "status",
    "truncated",
    "num_turns",
    "calls_requested",
    "calls_executed",
    "tools",
    "failed_calls",
    "prompt_tokens",
    "completion_tokens",
)
"""Columns that `scores` copies from `rollouts`."""

_BATCH_ROWS = 512
_QUESTION = ("question_key", "dataset", "domain", "question", "choices", "format", "scorer", "environment")


class Gold(NamedTuple):
    """Gold answer of one question.

    `asked` is the user message that the agent got; empty unless it was read `with_text`. Text and payload of `task` are
    empty unless it was read `with_tasks`; see `GoldAnswers`.
    """

    task: Task
    asked: str = ""

    @property
    def answers(self) -> tuple[str, ...]:
        """The accepted gold answers."""
        return self.task.answers

    @property
    def choices(self) -> tuple[str, ...]:
        """The options of a multiple-choice question; empty for other questions."""
        return self.task.choices

    @property
    def rule(self) -> str:
        """Name of the scorer that the task or its domain names."""
        return self.task.rule


@dataclass(frozen=True, slots=True)
class Answer:
    """A rollout with its prediction and the gold answers of its question.

    `row` has the columns `COPIED_COLUMNS`, `outcome`, `tokenizer_digest`, and `num_agent_ids` instead of the token ids.
    """

    row: Mapping[str, Any]
    segments: Sequence[Mapping[str, Any]]
    prediction: str
    gold: Gold

    @classmethod
    def of(cls, row: Mapping[str, Any], gold: Gold) -> Answer:
        """Parse a row of `rollouts`."""
        segments = orjson.loads(row["segments"])
        return cls(row, segments, extract_prediction(segments), gold)

    @property
    def key(self) -> str:
        """Key of the rollout."""
        return str(self.row["rollout_key"])

    @property
    def task(self) -> Task:
        """The task of the rollout."""
        return self.gold.task

    @property
    def status(self) -> str:
        """How the rollout ended."""
        return str(self.row["status"])

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of the episode, as the tools reported it."""
        outcome = self.row["outcome"]
        return None if outcome is None else Outcome(**orjson.loads(outcome))

    def stored(self) -> StoredRollout:
        """Return the whole rollout; its row must have `STORED_COLUMNS`."""
        return StoredRollout.from_row(self.row)

    @property
    def is_answered(self) -> bool:
        """True if the rollout ended with an answer, or if a candidate answer is used; else it is scored as wrong."""
        # The outcome is parsed only if it can matter.
        return self.status == ANSWERED or has_given(self.status, self.outcome)

    @property
    def has_ended(self) -> bool:
        """True if the rollout ended with an answer, or if its environment ended it."""
        return self.row["status"] in ENDED


class GoldAnswers:
    """Gold answers by question key, read from the question tables only as far as needed.

    Rollouts are stored in the order of their questions, so both streams advance together. Questions that were read are
    kept in compact form, because several samples and several rollout tables refer to them.
    """

    def __init__(self, tables: tuple[Rows, ...], *, with_text: bool = False, with_tasks: bool = False) -> None:
        """Prepare to read `tables`; keep also the user messages (`with_text`) or whole tasks (`with_tasks`)."""
        columns = [*_QUESTION, "answers", *(["payload"] if with_tasks else [])]
        self._rows = (row for table in tables for row in table.rows(columns))
        self._with_text = with_text
        self._with_tasks = with_tasks
        self._known: dict[str, Gold] = {}

    def __getitem__(self, question_key: str) -> Gold:
        """Return the gold answer of a question. Raise ArtifactError if no question has this key."""
        while question_key not in self._known:
            row = next(self._rows, None)
            if row is None:
                raise ArtifactError(
                    f"question {question_key} of the rollouts is not among the bound questions; "
                    "bind the questions that the rollouts were made from"
                )
            question = Task.from_row(row)
            asked = question.user_message if self._with_text else ""
            task = question if self._with_tasks else replace(question, text="")
            self._known[question.key] = Gold(task, asked)
        return self._known[question_key]


def answers(
    rollouts: tuple[Rows, ...], questions: tuple[Rows, ...], *, with_text: bool = False, with_tasks: bool = False
) -> Iterator[list[Answer]]:
    """Yield all rollouts in order, in batches. Raise ArtifactError if a rollout's question is missing.

    With `with_tasks`, rows have `STORED_COLUMNS` too.
    """
    gold = GoldAnswers(questions, with_text=with_text, with_tasks=with_tasks)
    columns = dict.fromkeys([*COPIED_COLUMNS, "segments", "outcome", *(STORED_COLUMNS if with_tasks else ())])
    batch: list[Answer] = []
    for row in (row for table in rollouts for row in _rows(table, list(columns))):
        batch.append(Answer.of(row, gold[row["question_key"]]))
        if len(batch) == _BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _rows(table: Rows, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rollout columns that scoring reads. Token ids are counted without building a list per rollout."""
    for batch in table.batches([*columns, "tokenizer_digest", "samples"]):
        counts = count_agent_ids(batch.column("samples"))
        for row, num_agent_ids in zip(batch.drop_columns(["samples"]).to_pylist(), counts, strict=True):
            yield {**row, "num_agent_ids": num_agent_ids}


@contextlib.contextmanager
def open_checker(options: ScoresOptions) -> Iterator[SymbolicChecker | None]:
    """Yield a running symbolic checker, or None if `symbolic` is off."""
    if not options.symbolic:
        yield None
        return
    checker = SymbolicChecker(
        workers=options.symbolic_workers,
        limit_s=options.symbolic_limit_s,
        memory_mib=options.symbolic_memory_mib,
    )
    with checker:
        yield checker


@contextlib.contextmanager
def open_scorers(settings: ScoresSettings, store: Stores | None = None) -> Iterator[OpenScorers]:
    """Yield the scorers of the stage; `store` returns a store of the run by its name."""
    options = settings.options
    with (
        open_checker(options) as checker,
        OpenScorers(
            settings.scorers, settings.environments, AnswerTools(checker, options.f1_threshold), store
        ) as scorers,
    ):
        yield scorers
