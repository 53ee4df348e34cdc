"""Judge the answer of a trajectory in a pool; if the judge fails and no time is left, the verdict is unknown."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.agent.call_cache import CallCache
from treadle.agent.contract import Task
from treadle.agent.judges.cases import Case, Verdict, Verifier
from treadle.agent.trajectory import Trajectory
from treadle.core.answers.extraction import extract_prediction
from treadle.core.errors import DeadlineExceeded, ModelError
from treadle.environments.scorers.scoring import has_given


def prediction_of(trajectory: Trajectory) -> str:
    """Return the answer of a trajectory; empty without one."""
    return extract_prediction([{"kind": one.kind, "text": one.text} for one in trajectory.segments])


def has_answered(trajectory: Trajectory) -> bool:
    """Return whether a trajectory ended with an answer, or gave a candidate answer that counts as one."""
    return has_given(trajectory.status, trajectory.outcome)


def case_of(task: Task, answers: Sequence[str], prediction: str, *, answered: bool, seed: int, deadline: float) -> Case:
    """Return the judge's input about an answer to a task with these gold answers.

    `deadline` is a time of the work clock (`treadle.core.work_clock`).
    """
    return Case(
        question=task.user_message,
        answers=tuple(answers),
        choices=task.choices,
        domain=task.rule,
        prediction=prediction,
        answered=answered,
        seed=seed,
        session=task.key,
        deadline=deadline,
    )


async def verdict_on(judge: Verifier, case: Case, cache: CallCache, *, has_time: bool) -> Verdict:
    """Return the verdict on a case.

    Raises ModelError if the judge's model fails while there is time to ask it again; otherwise the verdict is unknown.
    """
    try:
        return await judge.verdict(case, cache)
    except ModelError as error:
        if has_time and not isinstance(error, DeadlineExceeded):
            raise
        return Verdict(None, None, "model", error=str(error))
