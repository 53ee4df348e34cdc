"""Judge rollouts of the stage `exploration`: by the grader of the new tasks, and by the environment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from treadle.agent.call_cache import CallCache
from treadle.agent.contract import Outcome, Task
from treadle.agent.role import RoleModel
from treadle.agent.trajectory import Trajectory
from treadle.core.answers.extraction import extract_prediction
from treadle.core.answers.score import Score
from treadle.core.errors import ContextTooLong, DeadlineExceeded
from treadle.core.seeds import derive_seed
from treadle.core.work_clock import timed_work
from treadle.datagen.exploration.settings import ExplorationSettings
from treadle.environments.registry import traits_of
from treadle.environments.scorers.base import Scorer, Stores
from treadle.environments.scorers.graders.grader import Grader, Messages
from treadle.environments.scorers.scoring import OpenScorers
from treadle.environments.stored_rollout import StoredRollout


@dataclass(frozen=True, slots=True)
class PlayedRollout:
    """A rollout with its task; see `treadle.environments.scorers.scoring.FinishedRollout`."""

    task: Task
    trajectory: Trajectory

    @property
    def status(self) -> str:
        """How it ended."""
        return self.trajectory.status

    @property
    def prediction(self) -> str:
        """Its answer; empty if there is none."""
        return extract_prediction({"kind": part.kind, "text": part.text} for part in self.trajectory.segments)

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of the episode by its environment."""
        return self.trajectory.outcome

    def stored(self) -> StoredRollout:
        """Return the rollout in the form that graders read."""
        return StoredRollout.of(self.trajectory)


@contextlib.contextmanager
def open_verdicts(settings: ExplorationSettings, model: RoleModel | None, store: Stores) -> Iterator[ExplorationJudges]:
    """Open the scorers of seed tasks and the grader; `model` is the grader's model, None if it asks none.

    `store` returns a store of the run by its name; scorers of seed tasks use one to keep answers that cost money.
    """
    own = {name: one for name, one in settings.named_environments().items() if not traits_of(one).has_answers}
    name, grader = settings.options.grader, settings.grader
    entries = settings.scorers if grader is None else {**settings.scorers, name: grader}
    with OpenScorers(entries, own, store=store) as scorers:
        yield ExplorationJudges(scorers, grader, name, model, settings.seed)


@dataclass(frozen=True, slots=True)
class ExplorationJudges:
    """The open scorers of the stage, and the model of its grader.

    Attributes:
        grader: Grader of the new tasks; None if their environment scores them.
        name: Name of the grader in the configuration.
        model: Model that it asks, if it asks one: its replies are journaled with the job.
    """

    scorers: OpenScorers
    grader: Scorer | None
    name: str
    model: RoleModel | None
    seed: int

    async def by_task(self, rollout: PlayedRollout) -> Score:
        """Return the verdict of the scorer that the task names, or of its environment. Raises EndpointUnavailable."""
        (score,) = await asyncio.to_thread(self.scorers.scores, [rollout])
        return score

    async def by_grader(self, rollout: PlayedRollout, cache: CallCache) -> Score:
        """Return the grader's verdict on a rollout, whichever scorer its task names.

        Raises ModelError if the grader's model cannot be asked.
        """
        if self.grader is None:
            return await self.by_task(rollout)
        if not isinstance(self.grader, Grader) or self.model is None:
            return await self.by_task(replace(rollout, task=replace(rollout.task, scorer=self.name)))
        model, session = self.model, rollout.task.key
        request_time_s = self.grader.request_time_s

        async def ask(messages: Messages, number: int) -> str | None:
            with timed_work() as clock:
                try:
                    reply = await model.ask(
                        messages,
                        cache=cache,
                        unit=str(number),
                        seed=derive_seed(self.seed, "grade", session, number),
                        session=session,
                        deadline=clock.time() + request_time_s,
                    )
                except (ContextTooLong, DeadlineExceeded):
                    return None
            return reply.text

        return await self.grader.grade(rollout.task, rollout.stored(), ask)
