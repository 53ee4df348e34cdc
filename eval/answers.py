"""What the stage `scores` reads: rollouts with the questions they answer, and what the rules say of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from treadle.agent.environment import Question
from treadle.core.answers.extraction import extract_prediction
from treadle.core.answers.math_equal import Checker
from treadle.core.answers.score import Score, score_answer
from treadle.core.answers.symbolic import SymbolicChecker
from treadle.core.errors import ArtifactError
from treadle.core.stage import Rows
from treadle.eval.config import ScoresOptions
from treadle.eval.lengths import own_ids

ANSWERED = "answered"
FAILED = "failed"

COPIED = (
    "rollout_key",
    "question_key",
    "dataset",
    "domain",
    "model",
    "sample_index",
    "status",
    "calls_requested",
    "calls_executed",
    "python_calls",
    "search_calls",
    "failed_calls",
    "prompt_tokens",
    "completion_tokens",
)
"""Columns of `rollouts` that `scores` has too."""

_UNFINISHED = Score(0.0, 0.0, 0.0, 0.0, False, "status")
_BATCH_ROWS = 512
_QUESTION = ("question_key", "dataset", "domain", "question", "choices", "format", "scorer")


class Gold(NamedTuple):
    """Of one question; `rule` is math, qa or choice, `asked` what the agent was asked (empty unless it was read)."""

    answers: tuple[str, ...]
    choices: tuple[str, ...]
    rule: str
    asked: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A rollout, as far as it is read, its prediction, and the question's gold answers.

    `row` has the columns `COPIED`, `tokenizer_digest`, and `num_own_ids` in place of its ids.
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
        """Of the rollout."""
        return str(self.row["rollout_key"])

    @property
    def is_answered(self) -> bool:
        """Whether the rollout ended with an answer; if not, nothing it says is right."""
        return bool(self.row["status"] == ANSWERED)


class GoldAnswers:
    """Looks gold answers up while reading the questions only as far as they are needed.

    Rollouts are stored in the order of their questions, so that both streams advance together; what was passed is
    kept, in compact form, because several samples and several rollout tables ask for it.
    """

    def __init__(self, tables: tuple[Rows, ...], *, with_text: bool = False) -> None:
        """`with_text`: keep what was asked as well."""
        self._rows = (row for table in tables for row in table.rows([*_QUESTION, "answers"]))
        self._with_text = with_text
        self._known: dict[str, Gold] = {}

    def __getitem__(self, question_key: str) -> Gold:
        """Raises ArtifactError if no question has this key."""
        while question_key not in self._known:
            row = next(self._rows, None)
            if row is None:
                raise ArtifactError(
                    f"rollouts answer question {question_key}, which is not among the questions read; "
                    "bind the questions that the rollouts were made from"
                )
            question = Question.from_row(row)
            asked = question.user_message if self._with_text else ""
            self._known[question.key] = Gold(tuple(row["answers"]), question.choices, question.rule, asked)
        return self._known[question_key]


def answers(
    rollouts: tuple[Rows, ...], questions: tuple[Rows, ...], *, with_text: bool = False
) -> Iterator[list[Answer]]:
    """All rollouts in their order, in batches; raises ArtifactError for one whose question is not there."""
    gold = GoldAnswers(questions, with_text=with_text)
    batch: list[Answer] = []
    for row in (row for table in rollouts for row in _rows(table)):
        batch.append(Answer.of(row, gold[row["question_key"]]))
        if len(batch) == _BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _rows(table: Rows) -> Iterator[dict[str, Any]]:
    """What is read of rollouts; their ids are counted without making a list of each."""
    for batch in table.batches([*COPIED, "segments", "tokenizer_digest", "token_origin"]):
        counts = own_ids(batch.column("token_origin"))
        for row, num_own_ids in zip(batch.drop_columns(["token_origin"]).to_pylist(), counts, strict=True):
            yield {**row, "num_own_ids": num_own_ids}


def rule_score(answer: Answer, checker: Checker | None, f1_threshold: float) -> Score:
    """What the rules say; a rollout that did not end with an answer is wrong."""
    if not answer.is_answered:
        return _UNFINISHED
    gold = answer.gold
    return score_answer(
        answer.prediction, gold.answers, gold.choices, gold.rule, checker=checker, f1_threshold=f1_threshold
    )


@contextlib.contextmanager
def open_checker(options: ScoresOptions) -> Iterator[SymbolicChecker | None]:
    """Computer algebra, where it is wanted."""
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
