"""Get the verdicts on the rollouts of a group, by the scorers of the stage `scores`."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from treadle.agent.contract import Outcome, Task
from treadle.agent.jobs.runner import cause_of
from treadle.core.answers.extraction import extract_prediction
from treadle.core.answers.score import Score
from treadle.core.errors import EngineError, ToolError
from treadle.environments.scorers.answer import AnswerScorer
from treadle.environments.scorers.base import no_verdict
from treadle.environments.scorers.environment import ENVIRONMENT
from treadle.environments.scorers.scoring import OpenScorers
from treadle.environments.stored_rollout import StoredRollout
from treadle.rl.groups.group import Group, GroupTrajectory
from treadle.rl.rewards.base import FAILED, GroupItem

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts on the items of a group, in their order.

    Attributes:
        predictions: Extracted answer of each item; empty if there is none, or if answers are not compared.
        scores: Verdict on each item.
        has_answers: True if the verdicts compare answers with gold answers.
    """

    predictions: list[str]
    scores: list[Score]
    has_answers: bool


def verdicts_of(group: Group, task: Task, scorers: OpenScorers, environment_type: str) -> Verdicts:
    """Return the verdicts on a group; `environment_type` is the type of the task's environment, for messages.

    Raises EngineError if an answer could not be compared with the gold answers (for example, computer algebra failed),
    or if the environment's own scoring raises anything but ToolError, which leaves one rollout without a verdict.
    """
    scorer = scorers.scorer_of(task)
    rollouts = [_Rollout(task, item, made) for item, made in zip(group.items, group.trajectories, strict=True)]
    played = [rollout for rollout in rollouts if rollout.item.was_played]
    if scorer.name == ENVIRONMENT:
        known = [_own_score(task, result, environment_type) for result in scorers.results(played)]
    else:
        known = scorers.scores(played)
    has_answers = isinstance(scorer.scorer, AnswerScorer)
    if has_answers and (failed := [score for score in known if score.score is None]):
        raise EngineError(f"an answer of a rollout could not be compared with the gold answers: {failed[0].error}")
    left = iter(known)
    scores = [
        next(left) if rollout.item.was_played else no_verdict("it was not played", scorer.name) for rollout in rollouts
    ]
    predictions = [rollout.prediction if has_answers and rollout.status != FAILED else "" for rollout in rollouts]
    return Verdicts(predictions, scores, has_answers)


def _own_score(task: Task, result: Score | Exception, environment_type: str) -> Score:
    """Return the verdict of the environment's own scoring."""
    if isinstance(result, ToolError):
        # One rollout without a verdict must not end a training.
        _log.warning("a rollout of task %s has no reward: %s", task.key, result)
        return no_verdict(str(result), ENVIRONMENT)
    if isinstance(result, Exception):
        raise EngineError(
            f"the rollouts of task {task.key} could not be scored: {environment_type}.score raised {cause_of(result)}"
        ) from result
    return result


@dataclass(frozen=True, slots=True)
class _Rollout:
    """Rollout of a group, with the properties that scorers read."""

    task: Task
    item: GroupItem
    made: GroupTrajectory

    @property
    def status(self) -> str:
        """Status with which the rollout ended."""
        return self.item.status

    @property
    def prediction(self) -> str:
        """Answer of the rollout, as the stage `scores` extracts it."""
        return extract_prediction({"kind": part.kind, "text": part.text} for part in self.item.segments)

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of the episode, as the tools reported it."""
        return self.made.trajectory.outcome

    def stored(self) -> StoredRollout:
        """Return the complete rollout, made from its trajectory."""
        return StoredRollout.of(self.made.trajectory)
