"""What judge models are to be asked: which answers and which trajectories, each under a key of its own.

The key is a digest of the judge, its prompts and sampling, and of all that it is shown. So one answer to a question is
judged once, however many rollouts gave it, and what was judged before is recognised.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import orjson

from treadle.agent.judges.base import Case
from treadle.agent.judges.model import MAX_PREDICTION_CHARS, model_judge_digest
from treadle.agent.judges.redundancy import Course, redundancy_judge_digest
from treadle.agent.judges.rules import case_digest
from treadle.agent.protocol import Segment
from treadle.agent.role_settings import RoleSettings
from treadle.agent.rollout import derive_seed
from treadle.core.answers.score import Score
from treadle.core.config import digest_json, semantic_dump
from treadle.core.engines.config import VllmServer
from treadle.core.errors import ConfigError
from treadle.eval.answers import FAILED, Answer
from treadle.eval.config import ScoresSettings

CORRECTNESS: Literal["correctness"] = "correctness"
REDUNDANCY: Literal["redundancy"] = "redundancy"


@dataclass(frozen=True, slots=True)
class Judgement:
    """One thing that one judge is to be asked; `key` is its owner in the journal."""

    key: str
    kind: Literal["correctness", "redundancy"]
    judge: str
    """The model's name in the configuration."""
    answer: Answer


def check_judges(judges: Mapping[str, RoleSettings]) -> None:
    """Raise ConfigError where two names stand for one judge: it would be asked once, and have two votes."""
    names: dict[str, str] = {}
    for name, role in judges.items():
        first = names.setdefault(_identity(role, ""), name)
        if first != name:
            raise ConfigError(
                f"scores.judges.models names {first!r} and {name!r}, which are the same model with the same settings "
                "and so have one opinion; name one of them"
            )


class Docket:
    """Finds what is to be asked about a rollout."""

    def __init__(self, settings: ScoresSettings, trained: Sequence[str] = ()) -> None:
        """`trained`: digests of checkpoints of this run that judge. Raises ConfigError as `check_judges` does."""
        check_judges(settings.judges)
        self._settings = settings
        self._judges = {
            name: _identity(role, model_judge_digest(), trained=trained) for name, role in settings.judges.items()
        }
        votes = settings.options.redundancy.votes
        self._redundancy = _identity(settings.redundancy, redundancy_judge_digest(), votes, trained)

    @property
    def is_empty(self) -> bool:
        """Whether nobody is ever asked."""
        return not self._judges and self._settings.redundancy is None

    def judges_rule(self, answer: Answer) -> bool:
        """Whether answers to this question are judged where the rule does not call them right."""
        return bool(self._judges) and answer.gold.rule in self._settings.options.judges.domains

    def needs_rule(self, answer: Answer) -> bool:
        """Whether the rule decides if a judge is asked, so that what it says has to be remembered."""
        return self.judges_rule(answer) and answer.is_answered and bool(answer.prediction.strip())

    def about_answer(self, answer: Answer, rule: Score) -> list[Judgement]:
        """What to ask about the answer, given what the rule says of it; nothing where that settles it.

        What is longer than any answer stays wrong without being shown to a judge.
        """
        if not self.needs_rule(answer) or rule.correct or rule.scorer == "choice":
            return []
        if len(answer.prediction) > MAX_PREDICTION_CHARS:
            return []
        return [
            Judgement(case_digest(self._case(answer), identity), CORRECTNESS, name, answer)
            for name, identity in self._judges.items()
        ]

    def about_calls(self, answer: Answer) -> list[Judgement]:
        """What to ask about the calls; nothing without any, nor where infrastructure ended the rollout."""
        role = self._settings.redundancy
        if role is None or not answer.row["calls_requested"] or answer.row["status"] == FAILED:
            return []
        gold, shown = answer.gold, [[part["kind"], part["text"]] for part in answer.segments]
        content = orjson.dumps([self._redundancy, gold.asked, gold.answers, shown])
        return [Judgement(hashlib.sha256(content).hexdigest()[:32], REDUNDANCY, role.name, answer)]

    def about(self, answer: Answer, rule: Score | None) -> Iterator[Judgement]:
        """All that is to be asked about a rollout; `rule` is needed where `needs_rule` says so."""
        if rule is not None:
            yield from self.about_answer(answer, rule)
        yield from self.about_calls(answer)

    def case(self, judgement: Judgement, deadline: float) -> Case:
        """An answer as a judge is given it."""
        return self._case(judgement.answer, derive_seed(self._settings.seed, judgement.key), deadline)

    def course(self, judgement: Judgement, deadline: float) -> Course:
        """A trajectory as the judge of its calls is given it."""
        answer = judgement.answer
        return Course(
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
    """Digest of a judge: the model, its sampling, what it is told. Its name and its endpoints do not count.

    A model that the run serves may be one that it trained, and is then another one with each training.
    """
    if role is None:
        return ""
    weights = trained if isinstance(role.model.server, VllmServer) else ()
    model = [semantic_dump(role.model), role.tokenizer_digest, *weights]
    return digest_json([*model, semantic_dump(role.sampling), prompts, votes])
