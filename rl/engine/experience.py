"""Use the pool of experience in a training: hints for the rollouts of a step, and updates from its rollouts.

The pool at a step has the records of the stage `experience`, and those that updates after earlier steps added.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from treadle.agent.contract import Task
from treadle.core.chat import ChatTokenizer
from treadle.environments.mixture import Environments
from treadle.rl.engine.experience_updates import ExperienceUpdates
from treadle.rl.engine.group_source import ScoredGroup
from treadle.rl.experience.files import ExperienceFiles
from treadle.rl.experience.hints import Fits, HintedRuntime, Hints, prompt_fits
from treadle.rl.experience.modes import kept_tasks
from treadle.rl.experience.pool import ExperiencePool
from treadle.rl.experience.settings import ExperienceUse
from treadle.rl.groups.rollout import MixedRollouts
from treadle.rl.training.plan import RlPlan

_WAIT_S = 1.0


class TrainingExperience:
    """Pool of a training with its hints and updates; use it on one thread."""

    def __init__(self, use: ExperienceUse, files: ExperienceFiles, kept: frozenset[str], fits: Fits) -> None:
        self._use = use
        self._files = files
        self._kept = kept
        self._fits = fits
        self._pool = files.pool(())
        self._num_read = -1
        self._updates: ExperienceUpdates | None = None
        self._running: concurrent.futures.Future[None] | None = None

    def pool_at(self, step: int) -> ExperiencePool:
        """Return the pool that the rollouts of a step see."""
        records = self._files.records(before_step=step)
        if len(records) != self._num_read:
            self._pool = self._files.pool(records)
            self._num_read = len(records)
        return self._pool

    def hinted(self, rollouts: MixedRollouts, step: int) -> MixedRollouts:
        """Return the runner of the groups of a step, some of whose rollouts get hints."""
        if not self._use.shows:
            return rollouts
        hints = Hints(self._use, self.pool_at(step), self._kept, self._fits)
        by_environment = rollouts.by_environment
        return MixedRollouts(
            {name: replace(one, runtime=HintedRuntime(one.runtime, hints)) for name, one in by_environment.items()}
        )

    def figures(self, step: int, made: Sequence[ScoredGroup]) -> dict[str, float]:
        """Return the size of the pool, and the shares of rollouts that saw a hint and whose hint was cut."""
        played = [one for scored in made for one in scored.group.trajectories if not one.lost_to]
        number = max(len(played), 1)
        return {
            "num_experiences": len(self.pool_at(step)),
            "hinted": sum(bool(one.hint) for one in played) / number,
            "hint_cut": sum(one.hint_cut for one in played) / number,
        }

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        """Keep the models that write and check experience open during the block, if the pool is updated.

        Raises ConfigError and EndpointUnavailable.
        """
        if not self._use.update_steps:
            yield
            return
        with ExperienceUpdates(self._files) as updates:
            self._updates = updates
            yield

    def is_due(self, step: int) -> bool:
        """Return whether the rollouts of a step become experience."""
        return self._use.update_steps > 0 and step % self._use.update_steps == 0

    def begin_update(self, step: int, made: Sequence[ScoredGroup]) -> None:
        """Start to make experience from the rollouts of a step, if it is due and no earlier attempt stored it."""
        if self._updates is not None and self.is_due(step) and self._files.store.batch("step", step) is None:
            self._running = self._updates.begin(step, made, self.pool_at(step))

    def finish_update(self, heartbeat: Callable[[], None]) -> None:
        """Wait until the started update, if any, is stored; raise its error, such as EndpointUnavailable.

        `heartbeat` is called about once a second.
        """
        if self._running is None:
            return
        while not concurrent.futures.wait([self._running], timeout=_WAIT_S).done:
            heartbeat()
        self._running.result()
        self._running = None


@contextlib.contextmanager
def open_experience(
    plan: RlPlan,
    job: Mapping[str, Any],
    rows: Sequence[Task],
    environments: Environments,
    codec: ChatTokenizer,
    *,
    is_first: bool,
) -> Iterator[TrainingExperience | None]:
    """Yield the experience of a training on these rows, with open models if it is updated; None without a pool.

    Only the first of several processes updates it. Raises ConfigError and EndpointUnavailable.
    """
    files, use = ExperienceFiles.of_job(job), plan.options.experience
    if files is None:
        yield None
        return
    kept = kept_tasks((row.key for row in rows), use.keep_ratio, plan.seed)
    made = TrainingExperience(use, files, kept, prompt_fits(environments, codec, plan.options.max_prompt_tokens))
    with made.updating() if is_first else contextlib.nullcontext():
        yield made
