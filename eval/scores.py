"""Run the stage `scores`: compute one verdict per rollout from stored data. It can run again without new rollouts.

Rules decide. If judges are configured, they decide about answers that the rules do not accept (`eval/judging.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import orjson

from treadle.core.answers.score import Score
from treadle.core.chat import ChatTokenizer
from treadle.core.runs.stage import StageContext
from treadle.core.tables import part_items
from treadle.environments.scorers.base import STATUS, Scorer
from treadle.environments.scorers.scoring import OpenScorers
from treadle.eval.answers import COPIED_COLUMNS, Answer, answers, open_scorers
from treadle.eval.config import ScoresSettings
from treadle.eval.judge_queue import Judgement
from treadle.eval.judging import Judging
from treadle.eval.lengths import agent_text, last_turn, load_tokenizer, reasoning_tokens
from treadle.eval.metrics import efficiency
from treadle.eval.score_counts import ScoreCounts
from treadle.eval.tables import JUDGEMENTS, SCORES
from treadle.eval.verdicts import (
    JudgeVerdict,
    binary_score,
    decide,
)


@dataclass(frozen=True, slots=True)
class JudgeResults:
    """Judge results for a rollout, apart from its score. `votes`: yes, no, abstained; None if no model votes."""

    status: str | None = None
    judge_verdicts: Mapping[str, JudgeVerdict] = field(default_factory=dict)
    votes: tuple[int, int, int] | None = None
    best_of: str | None = None
    """Whether this attempt was picked among those at its question; None if attempts were not compared."""


def run_scores(context: StageContext) -> Mapping[str, Any]:
    """Score every rollout and return counts. Raise StageFailed if too many rows are left without a verdict."""
    return _ScoresRun(context).write()


class _ScoresRun:
    """One run of the stage: rule scores, stored judgements, and output rows."""

    def __init__(self, context: StageContext) -> None:
        self._context = context
        settings: ScoresSettings = context.settings
        self._options = settings.options
        self._encoder = load_tokenizer(settings.tokenizer, settings.tokenizer_digest)
        self._judging = Judging(context)
        self._score_counts = ScoreCounts(tuple(settings.judges))
        self._collector = self._judging.choices.collector(context.inputs["rollouts"])
        self._written: set[str] = set()
        self._picks: dict[str, str] = {}

    def write(self) -> dict[str, Any]:
        """Score every rollout and return the metrics of the stage."""
        options, inputs, is_judged = self._options, self._context.inputs, not self._judging.is_empty
        num_missing = self._judging.check_pending() if is_judged else 0
        self._picks = self._judging.picks()
        self._context.progress.start(sum(table.num_rows for table in inputs["rollouts"]), 0, "rollouts")
        opened = open_scorers(self._context.settings, self._context.store)
        with opened as scorers, ThreadPoolExecutor(options.symbolic_workers) as threads:
            run = threads.map if options.symbolic_workers > 1 else map
            for batch in answers(
                inputs["rollouts"], inputs["questions"], with_text=is_judged, with_tasks=scorers.reads_all
            ):
                self._write(batch, self._rule_scores(batch, scorers, run), scorers)
                self._write_choices(batch)
        self._score_counts.check(options.max_error_rate)
        if not self._context.accept_failures:
            self._score_counts.check_judges()
        return self._score_counts.metrics(num_missing if is_judged else None)

    def _rule_scores(
        self, batch: Sequence[Answer], scorers: OpenScorers, run: Callable[..., Iterable[Score]]
    ) -> list[Score]:
        """Return the scores of a batch without judges; use stored ones, which decided whether a judge was asked."""
        known = {answer.key: score for answer in batch if (score := self._judging.rule_scores.stored(answer))}
        unknown = [answer for answer in batch if answer.key not in known]
        known |= {answer.key: score for answer, score in zip(unknown, scorers.scores(unknown, run), strict=True)}
        return [known[answer.key] for answer in batch]

    def _write(self, batch: Sequence[Answer], rules: Sequence[Score], scorers: OpenScorers) -> None:
        rows, judgements = [], []
        for answer, rule in zip(batch, rules, strict=True):
            answer_judgements = self._judging.judge_queue.judgements(answer, rule)
            call_judgements = self._judging.judge_queue.call_judgements(answer)
            score, judged = self._judge(answer, rule, answer_judgements, call_judgements)
            rows.append(scored_row(answer, score, scorers.scorer_of(answer.task).scorer, judged, self._encoder))
            judgements += self._new_rows([*answer_judgements, *call_judgements])
        self._context.write(SCORES.kind, rows)
        self._context.write(JUDGEMENTS.kind, judgements)
        self._score_counts.count(rows)
        self._context.progress.advance(len(rows), **self._score_counts.progress())

    def _write_choices(self, batch: Sequence[Answer]) -> None:
        """Write the judgements of choices among attempts whose last attempt is in this batch."""
        groups = [group for answer in batch if (group := self._collector.add(answer)) is not None]
        asked = [group.judgement for group in groups if group.judgement is not None]
        self._context.write(JUDGEMENTS.kind, self._new_rows(asked))

    def _judge(
        self, answer: Answer, rule: Score, answer_judgements: Sequence[Judgement], call_judgements: Sequence[Judgement]
    ) -> tuple[Score, JudgeResults]:
        judging, status = self._judging, None
        score = binary_score(rule) if judging.judge_queue.decides(answer) else rule
        judge_verdicts = {judgement.judge: judging.stored.judge_verdict(judgement) for judgement in answer_judgements}
        if judge_verdicts:
            judge = judging.judge_queue.judge
            score, status = decide(rule, list(judge_verdicts.values()), judge.on_failed, judge.is_correct)
        votes = self._votes(answer, call_judgements)
        return score, JudgeResults(status, judge_verdicts, votes, self._picks.get(answer.key))

    def _votes(self, answer: Answer, call_judgements: Sequence[Judgement]) -> tuple[int, int, int] | None:
        if not self._judging.judge_queue.has_votes(answer):
            return None
        if not call_judgements:
            return (0, 0, 0)
        row = self._judging.stored.row(call_judgements[0])
        if row is None:
            return (0, 0, self._options.redundancy.votes)
        return row["votes_yes"], row["votes_no"], row["votes_abstained"]

    def _new_rows(self, judgements: Sequence[Judgement]) -> list[dict[str, Any]]:
        """Return the rows of judgements that have not been written yet."""
        rows = []
        for judgement in judgements:
            if judgement.key not in self._written and (row := self._judging.stored.row(judgement)) is not None:
                self._written.add(judgement.key)
                self._score_counts.count_judgement(row)
                rows.append(row)
        return rows


def scored_row(
    answer: Answer,
    score: Score,
    scorer: Scorer,
    judged: JudgeResults | None = None,
    encoder: ChatTokenizer | None = None,
) -> dict[str, Any]:
    """Return the row of `scores` for a rollout and the verdict of its scorer, or of judges.

    A rollout that did not end with an answer keeps its prediction for analysis and is never right.
    """
    row, judged = answer.row, judged or JudgeResults()
    text = agent_text(answer.segments)
    is_scored = score.scorer != STATUS
    prediction = last_turn(answer.segments) if is_scored and scorer.READS == "rollout" else answer.prediction
    yes, no, abstained = judged.votes or (None, None, None)
    return {
        **{name: row[name] for name in COPIED_COLUMNS},
        "prediction": prediction,
        "is_valid_answer": (answer.has_ended or answer.is_answered) and bool(prediction),
        "correct": score.correct,
        "score": score.score,
        "is_reward": is_scored and scorer.SCALE == "reward",
        "parts": part_items({**_parts_of_episode(answer, scorer), **score.parts}),
        "scorer": score.scorer,
        "error": score.error,
        "detail": score.detail or None,
        "efficiency": None if score.score is None else efficiency(score.score, row["calls_requested"]),
        "reasoning_tokens": reasoning_tokens(row, text, encoder),
        "output_chars": len(text),
        "judge_status": judged.status,
        "judges": orjson.dumps(
            {name: judge_verdict.as_dict() for name, judge_verdict in judged.judge_verdicts.items()}
        ).decode(),
        "votes_yes": yes,
        "votes_no": no,
        "votes_abstained": abstained,
        "best_of": judged.best_of,
    }


def _parts_of_episode(answer: Answer, scorer: Scorer) -> Mapping[str, float]:
    """Return the numbers that the environment reported for an episode, if answers are scored and not the episode."""
    outcome = answer.outcome
    return outcome.parts if outcome is not None and scorer.READS == "answer" else {}
