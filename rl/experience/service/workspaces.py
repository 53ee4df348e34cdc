"""Hold the pools of all workspaces of the experience service, and add experience from trajectories to them."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.agent.jobs.keys import job_key
from treadle.agent.role_settings import RoleSettings
from treadle.core.errors import DeadlineExceeded
from treadle.core.store.storage import LocalStorage
from treadle.rl.experience.author import Author
from treadle.rl.experience.finders import open_finder
from treadle.rl.experience.jobs import author_digest
from treadle.rl.experience.pool import ExperiencePool
from treadle.rl.experience.prompts import PlayedRollout, task_of
from treadle.rl.experience.record import Experience, read_records
from treadle.rl.experience.service.config import ExperienceServiceConfig
from treadle.rl.experience.store import ExperienceStore

_log = logging.getLogger(__name__)


class Workspaces:
    """Pools by workspace, kept below the service's folder; use it on one event loop."""

    def __init__(self, config: ExperienceServiceConfig, roles: Sequence[RoleSettings] = ()) -> None:
        """Read the files of `experience.pool`; raise DataError if that fails.

        `roles` are the settings of summariser and validator; empty if the service only retrieves experience.
        """
        self._options = config.experience
        self._author = author_digest(roles, config.experience, config.seed)
        self._storage = LocalStorage(config.service.folder)
        self._given = list(read_records(config.experience.pool))
        self._finder = open_finder(config.experience.encoder)
        self._pools: dict[str, ExperiencePool] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def _store(self, workspace: str) -> ExperienceStore:
        return ExperienceStore(self._storage, "workspaces", workspace)

    def pool(self, workspace: str) -> ExperiencePool:
        """Return the pool of a workspace; empty if nothing was stored in it."""
        if workspace not in self._pools:
            records = [*self._given, *self._store(workspace).records()]
            self._pools[workspace] = ExperiencePool(workspace, self._options.similarity, records, self._finder)
        return self._pools[workspace]

    async def add(self, workspace: str, played: Sequence[PlayedRollout], author: Author) -> list[Experience]:
        """Make experience from trajectories, add it to a workspace and return the added records.

        The same trajectories are summarised once; a repeated request gets the same answer. Raises ModelErrors if a
        model cannot be reached or is too slow; replies before such an error are stored, and the next request uses them.
        """
        name = job_key("trajectories", [[one.messages, one.score] for one in played])
        store = self._store(workspace)
        async with self._locks.setdefault(workspace, asyncio.Lock()):
            if (known := store.batch(name)) is not None:
                return known
            batches = _by_task(played, self._options.batch_size)
            found = [await self._write(workspace, batch, author) for batch in batches]
            pool = self.pool(workspace)
            grown = ExperiencePool(workspace, self._options.similarity, pool.records)
            new = store.add_batch((one for records in found for one in records if grown.add(one)), name)
            for record in new:
                pool.add(record)
            return new

    async def _write(self, workspace: str, batch: Sequence[PlayedRollout], author: Author) -> list[Experience]:
        def head(item: Mapping[str, Any]) -> Experience:
            return Experience.from_json({**item, "workspace": workspace, "question_keys": [], "step": 0})

        owner = job_key("batch", self._author, [[one.messages, one.score] for one in batch])
        written = await author.write(batch, head, cache=self._store(workspace).cache(owner))
        if written.problem == "timeout":
            # An answer is kept for ever, and this one would say that there is nothing to learn.
            limit_s = self._options.request_time_s
            raise DeadlineExceeded(f"no summary within experience.request_time_s = {limit_s:g} s; send them again")
        if written.problem:
            _log.warning("workspace %s: a summary of %d trajectories is %s", workspace, len(batch), written.problem)
        return written.valid


def _by_task(played: Sequence[PlayedRollout], size: int) -> list[list[PlayedRollout]]:
    """Return the trajectories of each task in batches of at most `size`, in the order of their tasks' texts."""
    batches = []
    for _, own in itertools.groupby(sorted(played, key=_task), _task):
        rollouts = list(own)
        batches += [rollouts[start : start + size] for start in range(0, len(rollouts), size)]
    return batches


def _task(played: PlayedRollout) -> str:
    return task_of(played.messages)
