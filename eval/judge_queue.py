"""List the judgements that judge models have to make: which answers and which trajectories, each under its own key.

The key is a digest of the judge (with prompts and sampling) and of everything it is shown. An answer to a question is
therefore judged once even if many rollouts gave it, and earlier judgements are recognised.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import orjson

from treadle.agent.dialects.base import Segment
from treadle.agent.judges.base import Case
from treadle.agent.judges.model import MAX_PREDICTION_CHARS, model_judge_digest
from treadle.agent.judges.redundancy import VoteCase, redundancy_judge_digest
from treadle.agent.judges.rules import case_digest
from treadle.agent.role_settings import RoleSettings
from treadle.core.answers.score import Score
from treadle.core.config import digest_json, semantic_dump
from treadle.core.engines.config import VllmServer
from treadle.core.errors import ConfigError
from treadle.core.seeds import derive_seed
from treadle.environments.scorers.registry import scorer_named
from treadle.environments.scorers.scoring import FAILED
from treadle.eval.answers import Answer
from treadle.eval.config import ScoresSettings

CORRECTNESS: Literal["correctness"] = "correctness"
REDUNDANCY: Literal["redundancy"] = "redundancy"


@dataclass(frozen=True, slots=True)
class Judgement:
    """One request to one judge. `key` is its owner in the journal."""

    key: str
    kind: Literal["correctness", "redundancy"]
    judge: str
    """Name of the model in the configuration."""
    answer: Answer


def check_judges(judges: Mapping[str, RoleSettings]) -> None:
    """Raise ConfigError if two names refer to the same judge: it would be asked once and counted twice."""
    names: dict[str, str] = {}
    for name, role in judges.items():
        first = names.setdefault(_identity(role, ""), name)
        if first != name:
            raise ConfigError(
                f"scores.judges.models names {first!r} and {name!r}, which are the same model with the same "
                "settings; list only one of them"
            )


class JudgeQueue:
    """Judgements to request for each rollout."""

    def __init__(self, settings: ScoresSettings, trained: Sequence[str] = ()) -> None:
        """Check the judges. `trained`: digests of this run's checkpoints that judge. Raise as `check_judges` does."""
        check_judges(settings.judges)
        self._settings = settings
        self._judges = {
            name: _identity(role, model_judge_digest(), trained=trained) for name, role in settings.judges.items()
        }
        votes = settings.options.redundancy.votes
        self._redundancy = _identity(settings.redundancy, redundancy_judge_digest(), votes, trained)

    @property
    def is_empty(self) -> bool:
        """True if no judge is configured."""
        return not self._judges and self._settings.redundancy is None

    def uses_judges(self, answer: Answer) -> bool:
        """Return whether answers to this question are judged if the rule does not accept them."""
        if not self._judges:
            return False
        scorer = scorer_named(answer.gold.rule, self._settings.scorers)
        return scorer.JUDGED_AS in self._settings.options.judges.domains

    def needs_rule_score(self, answer: Answer) -> bool:
        """Return whether the rule score decides if a judge is asked, so that it has to be stored in the journal."""
        return self.uses_judges(answer) and answer.is_answered and bool(answer.prediction.strip())

    def answer_judgements(self, answer: Answer, rule: Score) -> list[Judgement]:
        """Return the judgements to request for an answer, given its rule score; empty if the rule settles it.

        A prediction longer than `MAX_PREDICTION_CHARS` stays wrong and is not shown to a judge.
        """
        if not self.needs_rule_score(answer) or rule.correct or rule.scorer == "choice":
            return []
        if len(answer.prediction) > MAX_PREDICTION_CHARS:
            return []
        return [
            Judgement(case_digest(self._case(answer), identity), CORRECTNESS, name, answer)
            for name, identity in self._judges.items()
        ]

    def call_judgements(self, answer: Answer) -> list[Judgement]:
        """Return the judgements on redundant calls; empty without calls or if infrastructure ended the rollout."""
        role = self._settings.redundancy
        if role is None or not answer.row["calls_requested"] or answer.row["status"] == FAILED:
            return []
        gold, shown = answer.gold, [[part["kind"], part["text"]] for part in answer.segments]
        content = orjson.dumps([self._redundancy, gold.asked, gold.answers, shown])
        return [Judgement(hashlib.sha256(content).hexdigest()[:32], REDUNDANCY, role.name, answer)]

    def about(self, answer: Answer, rule: Score | None) -> Iterator[Judgement]:
        """Yield all judgements to request for a rollout. `rule` is required if `needs_rule_score` returns True."""
        if rule is not None:
            yield from self.answer_judgements(answer, rule)
        yield from self.call_judgements(answer)

    def case(self, judgement: Judgement, deadline: float) -> Case:
        """Return the judge's input for an answer."""
        return self._case(judgement.answer, derive_seed(self._settings.seed, judgement.key), deadline)

    def vote_case(self, judgement: Judgement, deadline: float) -> VoteCase:
        """Return the input for a vote on the calls of a trajectory."""
        answer = judgement.answer
        return VoteCase(
            question=answer.gold.asked,
            answers=answer.gold.answers,
            segments=[Segment(part["kind"], part["text"], 0, 0) for part in answer.segments],
            seed=derive_seed(self._settings.seed, judgement.key),
            session=answer.row["question_key"],
            deadline=deadline,
        )

    def _case(self, answer: Answer, seed: int = 0, deadline: float = 0.0) -> Case:
        return Case(
            question=answer.gold.asked,
            answers=answer.gold.answers,
            choices=answer.gold.choices,
            domain=answer.gold.rule,
            prediction=answer.prediction,
            answered=answer.is_answered,
            seed=seed,
            session=answer.row["question_key"],
            deadline=deadline,
        )


def _identity(role: RoleSettings | None, prompts: str, votes: int = 1, trained: Sequence[str] = ()) -> str:
    """Return the digest of a judge: model, sampling, prompts. Its name and endpoints do not count.

    A model that the run itself serves may be one that it trained, so its identity includes the checkpoint digests.
    """
    if role is None:
        return ""
    # Only models that the run serves itself can be checkpoints of this run.
    weights = trained if isinstance(role.model.server, VllmServer) else ()
    model = [semantic_dump(role.model), role.tokenizer_digest, *weights]
    return digest_json([*model, semantic_dump(role.sampling), prompts, votes])
