"""List the judgements that judge models have to make: which answers and which trajectories, each under its own key.

The key is a digest of the judge (with prompts and sampling) and of everything it is shown. An answer to a question is
therefore judged once even if many rollouts gave it, and earlier judgements are recognised.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import orjson

from treadle.agent.dialects.base import Segment
from treadle.agent.judges.base import Judge
from treadle.agent.judges.cases import Case
from treadle.agent.judges.redundancy import VoteCase, redundancy_judge_digest
from treadle.agent.judges.rules import case_digest
from treadle.agent.judges.views import MAX_PREDICTION_CHARS
from treadle.core.answers.score import Score
from treadle.core.errors import StageFailed
from treadle.core.seeds import derive_seed
from treadle.environments.scorers.registry import SCORERS, scorer_named
from treadle.environments.scorers.scoring import FAILED
from treadle.eval.answers import Answer
from treadle.eval.config import ScoresSettings
from treadle.eval.judge_identity import REDUNDANCY, check_judges, judge_identity
from treadle.eval.lengths import last_turn


@dataclass(frozen=True, slots=True)
class Judgement:
    """One request to one judge; the journal stores its replies and result under `key`."""

    key: str
    kind: str
    judge: str
    """Name of the model in the configuration."""
    answer: Answer
    attempts: tuple[Answer, ...] = ()
    """Attempts to choose from, `answer` being the first one; empty for other judgements."""

    @property
    def is_vote(self) -> bool:
        """True if it is a vote on calls."""
        return self.kind == REDUNDANCY


class JudgeQueue:
    """Judgements to request for each rollout."""

    def __init__(self, settings: ScoresSettings, trained: Sequence[str] = ()) -> None:
        """Check the settings of the judges; raise as `check_judges` does.

        `trained`: digests of the checkpoints of this run that serve as judges.
        """
        check_judges(settings.judges, settings.options.judges)
        self._settings = settings
        self.judge: Judge = settings.options.judges
        digest = self.judge.digest() if settings.judges else ""
        self._judges = {name: judge_identity(role, digest, trained=trained) for name, role in settings.judges.items()}
        votes = settings.options.redundancy.votes
        self._redundancy = judge_identity(settings.redundancy, redundancy_judge_digest(), votes, trained)

    @property
    def is_empty(self) -> bool:
        """True if no judge is configured."""
        return not self._judges and self._settings.redundancy is None

    def decides(self, answer: Answer) -> bool:
        """Return whether judges decide about answers to this question if the rule does not accept them."""
        return self.judge.NEEDS_ANSWERS and not self._is_of_environment(answer) and self._is_judged(answer)

    def needs_rule_score(self, answer: Answer) -> bool:
        """Return whether the rule score decides if a judge is asked, so that it has to be stored in the journal."""
        return (
            self.decides(answer)
            and answer.is_answered
            and bool(answer.gold.answers)
            and bool(answer.prediction.strip())
        )

    def judgements(self, answer: Answer, rule: Score | None) -> list[Judgement]:
        """Return the judgements to request for an answer or its trajectory.

        They are empty if the rule score is final, if the judge's `domains` leave the question out, or if there is
        nothing to judge. `rule` is the rule score of the answer, required if `needs_rule_score` returns True. A
        prediction longer than `MAX_PREDICTION_CHARS` stays wrong, and no judge compares it with gold answers.
        """
        if self.judge.NEEDS_ANSWERS:
            if not self.needs_rule_score(answer) or rule is None or rule.correct or rule.scorer == "choice":
                return []
            if len(answer.prediction) > MAX_PREDICTION_CHARS:
                return []
        elif not self._is_judged(answer) or not self._has_subject(answer):
            return []
        case = self._case(answer)
        return [
            Judgement(case_digest(case, identity), self.judge.kind, name, answer)
            for name, identity in self._judges.items()
        ]

    def prediction(self, answer: Answer) -> str:
        """Return the answer that is judged: the extracted one, or the last turn if an environment scores."""
        return last_turn(answer.segments) if self._is_of_environment(answer) else answer.prediction

    def _is_of_environment(self, answer: Answer) -> bool:
        """Return whether a rollout is scored by the environment of its task."""
        return answer.gold.task.environment in self._settings.environments

    def _is_judged(self, answer: Answer) -> bool:
        domains = self.judge.domains
        return bool(self._judges) and (not domains or bool(self._kinds(answer) & {*domains}))

    def _kinds(self, answer: Answer) -> set[str]:
        """Return the names under which the judge's `domains` may list a question: its scorer, and the scorer's kind."""
        rule = answer.gold.rule
        if self._is_of_environment(answer):
            return {rule}
        return {rule, scorer_named(rule, self._settings.scorers).JUDGED_AS}

    def _has_subject(self, answer: Answer) -> bool:
        """Return whether there is an answer or a trajectory to judge.

        If an environment scores the task, a trajectory is judged even if its episode is unfinished, unless
        infrastructure ended it.
        """
        of_environment = self._is_of_environment(answer)
        if self.judge.subject == "trajectory":
            return answer.row["status"] != FAILED if of_environment else answer.is_answered
        has_ended = answer.has_ended if of_environment else answer.is_answered
        return has_ended and bool(self.prediction(answer).strip())

    def has_votes(self, answer: Answer) -> bool:
        """Return whether there are votes on redundant calls of a rollout.

        There are none without a voting model, if infrastructure ended the rollout, or if an environment scores its
        task: the voter needs gold answers.
        """
        is_lost = answer.row["status"] == FAILED
        return self._settings.redundancy is not None and not is_lost and not self._is_of_environment(answer)

    def call_judgements(self, answer: Answer) -> list[Judgement]:
        """Return the judgements on redundant calls; empty without calls, and if there are no votes on the rollout."""
        role = self._settings.redundancy
        if role is None or not self.has_votes(answer) or not answer.row["calls_requested"]:
            return []
        gold, shown = answer.gold, [[part["kind"], part["text"]] for part in answer.segments]
        content = orjson.dumps([self._redundancy, gold.asked, gold.answers, shown])
        return [Judgement(hashlib.sha256(content).hexdigest()[:32], REDUNDANCY, role.name, answer)]

    def about(self, answer: Answer, rule: Score | None) -> Iterator[Judgement]:
        """Yield all judgements to request for a rollout. `rule` is required if `needs_rule_score` returns True."""
        yield from self.judgements(answer, rule)
        yield from self.call_judgements(answer)

    def case(self, judgement: Judgement, deadline: float) -> Case:
        """Return the judge's input for an answer or a trajectory."""
        return self._case(judgement.answer, derive_seed(self._settings.seed, judgement.key), deadline)

    def vote_case(self, judgement: Judgement, deadline: float) -> VoteCase:
        """Return the input for a vote on the calls of a trajectory."""
        answer = judgement.answer
        return VoteCase(
            question=answer.gold.asked,
            answers=answer.gold.answers,
            segments=_segments(answer),
            seed=derive_seed(self._settings.seed, judgement.key),
            session=answer.row["question_key"],
            deadline=deadline,
        )

    def _case(self, answer: Answer, seed: int = 0, deadline: float = 0.0) -> Case:
        gold, of_answer = answer.gold, self.judge.subject == "answer"
        return Case(
            question=gold.asked,
            answers=gold.answers if self.judge.NEEDS_ANSWERS else (),
            choices=gold.choices,
            domain=gold.rule,
            prediction=self.prediction(answer) if of_answer else "",
            answered=True,
            seed=seed,
            session=answer.row["question_key"],
            deadline=deadline,
            segments=() if of_answer else _segments(answer),
        )


def check_domains(judge: Judge, rules: Collection[str]) -> None:
    """Raise StageFailed if the judge's `domains` name a rule that is no known scorer and is not used by a question."""
    if unknown := sorted(set(judge.domains) - {*rules, *SCORERS.known()}):
        raise StageFailed(
            f"scores.judges.domains names {unknown[0]!r}, but the rules of the questions are {', '.join(sorted(rules))}"
        )


def _segments(answer: Answer) -> list[Segment]:
    return [Segment(part["kind"], part["text"], 0, 0) for part in answer.segments]
