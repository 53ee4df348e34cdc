"""List the choices among attempts that a judge model has to make: for each question one among its first attempts.

The model does not see gold answers. No model is asked if at most one attempt may be right, or if verdicts depend only
on the answers and all of these are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from treadle.agent.dialects.base import Segment
from treadle.agent.judges.best_of import ChoiceCase, choice_judge_digest
from treadle.agent.judges.views import Attempt
from treadle.core.runs.stage import Rows
from treadle.core.seeds import derive_seed
from treadle.environments.scorers.registry import scorer_named
from treadle.environments.scorers.scoring import FAILED
from treadle.eval.answers import Answer
from treadle.eval.config import ScoresSettings
from treadle.eval.figures.attempts import PICKED, UNDECIDED
from treadle.eval.judge_identity import BEST_OF, judge_identity
from treadle.eval.judge_queue import Judgement
from treadle.eval.lengths import last_turn

PASSED_OVER = "passed_over"
"""Value of the column `best_of` for attempts that were not picked."""


@dataclass(frozen=True, slots=True)
class AttemptGroup:
    """Attempts at one question, of which at most one is picked.

    Attributes:
        attempts: The first attempts, in the order of their numbers.
        judgement: Request for a choice among the attempts that may be right; None if no model is needed.
        settled: Place of the attempt that is picked without a model; None if `judgement` is set.
    """

    attempts: tuple[Answer, ...]
    judgement: Judgement | None
    settled: int | None

    def states(self, picked: int | None) -> dict[str, str]:
        """Return rollout key -> value of the column `best_of`.

        `picked`: place among the attempts of the judgement; None if the model made no choice.
        """
        chosen = None
        if self.settled is not None:
            chosen = self.attempts[self.settled].key
        elif self.judgement is not None and picked is not None:
            chosen = self.judgement.attempts[picked].key
        if chosen is None:
            return {one.key: UNDECIDED for one in self.attempts}
        return {one.key: PICKED if one.key == chosen else PASSED_OVER for one in self.attempts}


class AttemptChoices:
    """Factory of the choices of a stage instance; without a configured model, there are no choices."""

    def __init__(self, settings: ScoresSettings, trained: Sequence[str] = ()) -> None:
        self._settings = settings
        self.role = settings.best_of
        self._identity = judge_identity(self.role, choice_judge_digest(), trained=trained)

    def collector(self, rollouts: Iterable[Rows]) -> AttemptCollector:
        """Return a collector of the first attempts at each question, given the tables of all rollouts."""
        return AttemptCollector(self, rollouts, self._settings.options.best_of.attempts)

    def group(self, attempts: Sequence[Answer]) -> AttemptGroup:
        """Return the group of at least two attempts at a question."""
        given = tuple(attempts)
        places = [place for place, one in enumerate(given) if self._is_candidate(one)]
        shown = tuple(given[place] for place in places)
        if len(shown) < 2:
            return AttemptGroup(given, None, places[0] if places else 0)
        if self._compares_answers(shown[0]) and len({one.prediction for one in shown}) == 1:
            return AttemptGroup(given, None, places[0])
        texts = [([(part["kind"], part["text"]) for part in one.segments], self._answer(one)) for one in shown]
        content = self._identity, shown[0].gold.asked, texts
        # Model output may contain lone surrogates.
        key = hashlib.sha256(repr(content).encode("utf-8", "surrogatepass")).hexdigest()[:32]
        assert self.role is not None, "there are no choices without a model"
        return AttemptGroup(given, Judgement(key, BEST_OF, self.role.name, shown[0], shown), None)

    def case(self, judgement: Judgement, deadline: float) -> ChoiceCase:
        """Return the judge's input for a choice."""
        return ChoiceCase(
            question=judgement.answer.gold.asked,
            attempts=[Attempt(_segments(one), self._answer(one)) for one in judgement.attempts],
            seed=derive_seed(self._settings.seed, judgement.key),
            session=judgement.answer.row["question_key"],
            deadline=deadline,
        )

    def _compares_answers(self, answer: Answer) -> bool:
        """Return whether the verdict depends on the extracted answer alone."""
        task = answer.gold.task
        if task.environment in self._settings.environments:
            return False
        return str(scorer_named(task.rule, self._settings.scorers).READS) == "answer"

    def _is_candidate(self, answer: Answer) -> bool:
        """Return whether an attempt may be right; the judge sees only such attempts."""
        if self._compares_answers(answer):
            return answer.is_answered and bool(answer.prediction.strip())
        return answer.status != FAILED

    def _answer(self, answer: Answer) -> str:
        return answer.prediction if self._compares_answers(answer) else last_turn(answer.segments)


class AttemptCollector:
    """Collector of the first attempts at each question from a stream of rollouts.

    Attempts are kept until the last one of their question has come; usually they follow each other.
    """

    def __init__(self, choices: AttemptChoices, rollouts: Iterable[Rows], num_attempts: int) -> None:
        self._choices = choices
        numbered: dict[str, list[tuple[int, str]]] = {}
        if choices.role is not None:
            for row in (row for table in rollouts for row in table.rows(_NUMBERED)):
                numbered.setdefault(row["question_key"], []).append((row["sample_index"], row["rollout_key"]))
        self._wanted: Mapping[str, list[str]] = {
            question: [key for _, key in sorted(attempts)[:num_attempts]]
            for question, attempts in numbered.items()
            if len(attempts) >= num_attempts
        }
        self._held: dict[str, dict[str, Answer]] = {}

    @property
    def num_questions(self) -> int:
        """Number of questions with enough attempts."""
        return len(self._wanted)

    def add(self, answer: Answer) -> AttemptGroup | None:
        """Take the next rollout; return the group of its question if this rollout completes it, else None."""
        question = str(answer.row["question_key"])
        wanted = self._wanted.get(question, [])
        if answer.key not in wanted:
            return None
        held = self._held.setdefault(question, {})
        held[answer.key] = answer
        if len(held) < len(wanted):
            return None
        del self._held[question]
        return self._choices.group([held[key] for key in wanted])


_NUMBERED = ("question_key", "sample_index", "rollout_key")


def _segments(answer: Answer) -> list[Segment]:
    return [Segment(part["kind"], part["text"], 0, 0) for part in answer.segments]
