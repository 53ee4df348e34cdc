"""The stage `scores`: one verdict per rollout, from what is stored; run again at will, at no model's cost."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import orjson

from treadle.core import schemas
from treadle.core.answers.extraction import extract_prediction
from treadle.core.answers.math_equal import Checker
from treadle.core.answers.score import Score, score_answer
from treadle.core.answers.symbolic import SymbolicChecker
from treadle.core.answers.text_match import legacy_match_text, match_text, normalize_math
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ArtifactError, ConfigError, StageFailed
from treadle.core.stage import Rows, Stage, StageContext
from treadle.eval.config import ScoresOptions, ScoresSettings
from treadle.eval.lengths import Encoder, own_ids, own_text, reasoning_tokens

ANSWERED = "answered"

_COPIED = (
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
_NOT_JUDGED: Mapping[str, Any] = {
    "judge_status": None,
    "judges": "{}",
    "votes_yes": None,
    "votes_no": None,
    "votes_abstained": None,
}
_UNFINISHED = Score(0.0, 0.0, 0.0, 0.0, False, "status")
_BATCH_ROWS = 512


class _Gold(NamedTuple):
    answers: tuple[str, ...]
    choices: tuple[str, ...]
    domain: str


class _GoldAnswers:
    """Looks gold answers up while reading the questions only as far as they are needed.

    Rollouts are stored in the order of their questions, so that both streams advance together; what was passed is
    kept, in compact form, because several samples and several rollout tables ask for it.
    """

    def __init__(self, tables: tuple[Rows, ...]) -> None:
        columns = ["question_key", "answers", "choices", "domain", "scorer"]
        self._rows = (row for table in tables for row in table.rows(columns))
        self._known: dict[str, _Gold] = {}

    def __getitem__(self, question_key: str) -> _Gold:
        """Raises ArtifactError if no question has this key."""
        while question_key not in self._known:
            row = next(self._rows, None)
            if row is None:
                raise ArtifactError(
                    f"rollouts answer question {question_key}, which is not among the questions read; "
                    "bind the questions that the rollouts were made from"
                )
            rule = row["scorer"] or row["domain"]
            self._known[row["question_key"]] = _Gold(tuple(row["answers"]), tuple(row["choices"]), rule)
        return self._known[question_key]


def run_scores(context: StageContext) -> Mapping[str, Any]:
    """Score every rollout; returns counts. Raises StageFailed if too many rows are left without a verdict."""
    settings: ScoresSettings = context.settings
    options, encoder = settings.options, _load_tokenizer(settings)
    rollouts = context.inputs["rollouts"]
    gold = _GoldAnswers(context.inputs["questions"])
    counts: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    context.progress.start(sum(table.num_rows for table in rollouts), 0, "rollouts")
    with _open_checker(options) as checker, ThreadPoolExecutor(options.symbolic_workers) as threads:

        def score(row: dict[str, Any]) -> dict[str, Any]:
            return score_rollout(row, gold_of[row["question_key"]], checker, options.f1_threshold, encoder)

        for batch in _batches(rollouts):
            gold_of = {row["question_key"]: gold[row["question_key"]] for row in batch}
            rows = list(threads.map(score, batch)) if options.symbolic_workers > 1 else [score(row) for row in batch]
            context.write(schemas.SCORES.kind, rows)
            _count(rows, counts, errors)
            context.progress.advance(len(rows), correct=counts["num_correct"], unscored=counts["num_scorer_failed"])
    _check_error_rate(counts, errors, options.max_error_rate)
    num_scored = counts["num_rollouts"] - counts["num_scorer_failed"]
    return {**dict(sorted(counts.items())), "accuracy": counts["num_correct"] / num_scored if num_scored else 0.0}


def score_rollout(
    row: Mapping[str, Any], gold: _Gold, checker: Checker | None, f1_threshold: float, encoder: Encoder | None = None
) -> dict[str, Any]:
    """The row of `scores` for one row of `rollouts`, which has `num_own_ids` in place of its ids.

    A rollout that did not end with an answer keeps its prediction for analysis and is never right.
    """
    segments = orjson.loads(row["segments"])
    prediction, text = extract_prediction(segments), own_text(segments)
    answered = row["status"] == ANSWERED
    score = _UNFINISHED
    if answered:
        score = score_answer(
            prediction, gold.answers, gold.choices, gold.domain, checker=checker, f1_threshold=f1_threshold
        )
    return {
        **{name: row[name] for name in _COPIED},
        "prediction": prediction,
        "is_valid_answer": answered and bool(prediction),
        "correct": score.correct,
        "score": score.score,
        "em": score.em,
        "acc": score.acc,
        "f1": score.f1,
        "f1_legacy": _f1_legacy(prediction, gold) if answered else 0.0,
        "scorer": score.scorer,
        "error": score.error,
        "efficiency": None if score.score is None else score.score / max(row["calls_requested"], 1),
        "reasoning_tokens": reasoning_tokens(row, text, encoder),
        "output_chars": len(text),
        **_NOT_JUDGED,
    }


def _f1_legacy(prediction: str, gold: _Gold) -> float:
    """Token F1 as published, for comparison with published tables."""
    if gold.domain == "math":
        return match_text(prediction, gold.answers, normalize_math).f1
    return legacy_match_text(prediction, gold.answers).f1


def _load_tokenizer(settings: ScoresSettings) -> ChatTokenizer | None:
    """The evaluated model's; raises ConfigError for one that cannot be loaded, or that is another one."""
    if settings.tokenizer is None:
        return None
    tokenizer = ChatTokenizer.load(settings.tokenizer)
    if settings.tokenizer_digest not in ("", tokenizer.digest):
        raise ConfigError(
            f"the tokenizer in {settings.tokenizer} is not the one that this run was made with; put that one back"
        )
    return tokenizer


@contextlib.contextmanager
def _open_checker(settings: ScoresOptions) -> Iterator[SymbolicChecker | None]:
    if not settings.symbolic:
        yield None
        return
    checker = SymbolicChecker(
        workers=settings.symbolic_workers,
        limit_s=settings.symbolic_limit_s,
        memory_mib=settings.symbolic_memory_mib,
    )
    with checker:
        yield checker


def _batches(tables: tuple[Rows, ...]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for row in (row for table in tables for row in _rows(table)):
        batch.append(row)
        if len(batch) == _BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _rows(table: Rows) -> Iterator[dict[str, Any]]:
    """What is read of rollouts; their ids are counted without making a list of each."""
    for batch in table.batches([*_COPIED, "segments", "tokenizer_digest", "token_origin"]):
        counts = own_ids(batch.column("token_origin"))
        for row, num_own_ids in zip(batch.drop_columns(["token_origin"]).to_pylist(), counts, strict=True):
            yield {**row, "num_own_ids": num_own_ids}


def _count(rows: list[dict[str, Any]], counts: Counter[str], errors: Counter[str]) -> None:
    for row in rows:
        counts["num_rollouts"] += 1
        counts["num_correct"] += row["correct"] is True
        counts["num_scorer_failed"] += row["error"] is not None
        counts[f"status_{row['status']}"] += 1
        counts[f"scorer_{row['scorer']}"] += 1
        if row["error"] is not None:
            errors[row["error"]] += 1


def _check_error_rate(counts: Counter[str], errors: Counter[str], max_error_rate: float) -> None:
    failed, total = counts["num_scorer_failed"], counts["num_rollouts"]
    if failed > max_error_rate * total:
        cause, times = errors.most_common(1)[0]
        raise StageFailed(
            f"{failed} of {total} rollouts have no verdict, more than scores.max_error_rate = {max_error_rate:g} "
            f"allows; most often ({times} times): {cause}"
        )


SCORES = Stage(
    name="scores",
    version=2,
    settings=ScoresSettings,
    consumes={"rollouts": "rollouts", "questions": "questions"},
    produces=(schemas.SCORES,),
    run=run_scores,
)
