"""Read rollouts with the gold answers of their questions, and score them by rule. Input of the stage `scores`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from treadle.agent.contract import Outcome, Task
from treadle.agent.jobs.runner import cause_of
from treadle.core.answers.extraction import extract_prediction
from treadle.core.answers.math_equal import Checker
from treadle.core.answers.score import BY_OUTCOME, GRADED, Score, score_answer
from treadle.core.answers.symbolic import SymbolicChecker
from treadle.core.errors import ArtifactError
from treadle.core.runs.stage import Rows
from treadle.environments.scoring import environment_score, no_verdict, outcome_score
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.stored_rollout import STORED_COLUMNS, StoredRollout
from treadle.eval.config import ScoresOptions
from treadle.eval.lengths import count_agent_ids

ANSWERED = "answered"
FAILED = "failed"

_log = logging.getLogger(__name__)

COPIED_COLUMNS = (
    "rollout_key",
    "question_key",
    "dataset",
    "domain",
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

ENDED = (ANSWERED, "finished")
"""Statuses of rollouts that ended with their task."""

_UNFINISHED = Score(0.0, 0.0, 0.0, 0.0, False, "status")
_BATCH_ROWS = 512
_MAX_SCORED_AT_ONCE = 32
"""Scores of environments that run at once: each may start processes, and its time limit runs while it waits."""
_QUESTION = ("question_key", "dataset", "domain", "question", "choices", "format", "scorer")


class Gold(NamedTuple):
    """Gold answer of one question.

    `rule` is one of `RULES`. `asked` is the user message that the agent got; empty unless it was requested. `task` has
    the payload, for environments that score; None unless it was requested.
    """

    answers: tuple[str, ...]
    choices: tuple[str, ...]
    rule: str
    asked: str = ""
    task: Task | None = None

    @property
    def rule_domain(self) -> str:
        """One of "math", "qa" and "choice", from the rule."""
        return "qa" if self.rule in GRADED else self.rule


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
    def is_answered(self) -> bool:
        """True if the rollout ended with an answer. If not, rules always score it as wrong."""
        return bool(self.row["status"] == ANSWERED)

    @property
    def has_ended(self) -> bool:
        """True if the rollout ended with an answer, or because its environment ended it."""
        return self.row["status"] in ENDED


class GoldAnswers:
    """Gold answers by question key, read from the question tables only as far as needed.

    Rollouts are stored in the order of their questions, so both streams advance together. Questions that were read are
    kept in compact form, because several samples and several rollout tables refer to them.
    """

    def __init__(self, tables: tuple[Rows, ...], *, with_text: bool = False, with_tasks: bool = False) -> None:
        """Prepare to read `tables`; also keep the user message or the whole task of each question if asked to."""
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
            task = question if self._with_tasks else None
            self._known[question.key] = Gold(tuple(row["answers"]), question.choices, question.rule, asked, task)
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


def rule_score(answer: Answer, checker: Checker | None, f1_threshold: float) -> Score:
    """Score an answer by rule. A rollout that did not end with an answer is wrong, unless its outcome decides."""
    if answer.gold.rule in BY_OUTCOME and answer.row["status"] != FAILED:
        outcome = answer.row["outcome"]
        return outcome_score(None if outcome is None else Outcome(**orjson.loads(outcome)), answer.gold.rule)
    if not answer.is_answered:
        return _UNFINISHED
    gold = answer.gold
    return score_answer(
        answer.prediction, gold.answers, gold.choices, gold.rule, checker=checker, f1_threshold=f1_threshold
    )


def environment_scores(batch: Sequence[Answer], environment: EnvironmentSettings) -> list[Score]:
    """Let the environment say how good rollouts are, 32 at once; a rollout that infrastructure lost is wrong."""

    async def all_scores() -> list[Score]:
        places = asyncio.Semaphore(_MAX_SCORED_AT_ONCE)

        async def score(answer: Answer) -> Score:
            async with places:
                return await _environment_score(answer, environment)

        return await asyncio.gather(*map(score, batch))

    return asyncio.run(all_scores())


async def _environment_score(answer: Answer, environment: EnvironmentSettings) -> Score:
    if answer.row["status"] == FAILED or answer.gold.task is None:
        return _UNFINISHED
    rollout = StoredRollout.from_row(answer.row)
    try:
        return await environment_score(environment, answer.gold.task, rollout)
    except Exception as error:  # noqa: BLE001 - any error of a user's scorer leaves the rollout without a verdict
        _log.warning("rollout %s could not be scored", answer.key, exc_info=True)
        return no_verdict(cause_of(error))


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
