"""Make experience from the rollouts of a training step, in a thread, while the policy is trained on them.

An update is stored once, and each reply before it is used. A step that is repeated after a kill therefore gets the same
pool, and pays for no stored reply again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from treadle.agent.contract import Task
from treadle.agent.jobs.keys import job_key
from treadle.agent.metering import TokenBudget
from treadle.agent.model_sessions import ModelSessions
from treadle.core.errors import ModelError
from treadle.core.gather import gather_all
from treadle.core.steady_loop import SteadyLoop
from treadle.rl.engine.group_source import ScoredGroup
from treadle.rl.experience.author import Author
from treadle.rl.experience.files import ExperienceFiles
from treadle.rl.experience.pool import ExperiencePool
from treadle.rl.experience.prompts import PlayedRollout
from treadle.rl.experience.record import Experience
from treadle.rl.experience.roles import open_author
from treadle.rl.preferences.conversations import conversation_before

_log = logging.getLogger(__name__)


class ExperienceUpdates:
    """Updates of the pool by models that are open on an event loop in a separate thread, for the whole training."""

    _author: Author

    def __init__(self, files: ExperienceFiles) -> None:
        self._files = files
        self._loop = SteadyLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="experience", daemon=True)
        self._sessions = ModelSessions(TokenBudget(None))

    def __enter__(self) -> ExperienceUpdates:
        self._thread.start()
        try:
            self._author: Author = self._submit(self._open()).result()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._submit(self._sessions.__aexit__(None, None, None)).result()
        finally:
            self._stop()

    async def _open(self) -> Author:
        settings = self._files.settings
        assert settings.summariser is not None and settings.validator is not None
        await self._sessions.__aenter__()
        try:
            roles = (settings.summariser, settings.validator)
            return await open_author(self._sessions, roles, settings.options, settings.seed)
        except BaseException:
            await self._sessions.__aexit__(None, None, None)
            raise

    def _submit(self, work: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def begin(self, step: int, made: Sequence[ScoredGroup], pool: ExperiencePool) -> concurrent.futures.Future[None]:
        """Start the update of a step; `pool` is the pool that the rollouts of the step saw."""
        batches = list(_batches(made, self._files.settings.options.batch_size))
        return self._submit(self._update(step, batches, pool))

    async def _update(
        self, step: int, batches: Sequence[tuple[Task, Sequence[PlayedRollout]]], pool: ExperiencePool
    ) -> None:
        limit = asyncio.Semaphore(self._files.settings.options.max_concurrent)

        async def write(owner: str, task: Task, played: Sequence[PlayedRollout]) -> list[Experience]:
            async with limit:
                return await self._write(step, owner, task, played)

        # Rollouts that are all alike make equal batches, each of which would be paid for.
        by_owner = {_owner(*batch): batch for batch in batches}
        found = await gather_all([write(owner, *batch) for owner, batch in by_owner.items()])
        grown = self._files.pool(pool.records)
        new = [record for records in found for record in records if grown.add(record)]
        self._files.store.add_batch(new, "step", step)

    async def _write(self, step: int, owner: str, task: Task, played: Sequence[PlayedRollout]) -> list[Experience]:
        def head(item: Mapping[str, Any]) -> Experience:
            facts = {"workspace": self._files.workspace, "question_keys": [task.key], "step": step}
            return Experience.from_json({**item, **facts})

        try:
            written = await self._author.write(played, head, cache=self._files.store.cache(owner))
        except ModelError as error:
            if error.retryable:
                raise
            # A service that refuses one text, such as by its content policy, must not end the training.
            _log.warning("step %d: no experience was made of rollouts of task %s: %s", step, task.key, error)
            return []
        if written.problem:
            _log.warning("step %d: the summary of rollouts of task %s is %s", step, task.key, written.problem)
        return written.valid


def _owner(task: Task, played: Sequence[PlayedRollout]) -> str:
    """Return a digest of a batch (its task, conversations and scores), under which the replies about it are stored.

    Models and options are not part of it, because the store belongs to one training.
    """
    return job_key("update", task.key, [[one.messages, one.score] for one in played])


def _batches(made: Sequence[ScoredGroup], size: int) -> Iterator[tuple[Task, Sequence[PlayedRollout]]]:
    """Yield the scored rollouts of each group in batches of at most `size`."""
    for one in made:
        played = []
        for trajectory, reward in zip(one.group.trajectories, one.rewards, strict=True):
            if reward.scored:
                segments = [asdict(segment) for segment in trajectory.trajectory.segments]
                messages = conversation_before(trajectory.trajectory.first_messages, segments, sys.maxsize)
                played.append(PlayedRollout(messages, reward.reward if reward.score is None else reward.score))
        for start in range(0, len(played), size):
            yield one.group.question, played[start : start + size]
