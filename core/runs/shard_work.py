"""Work on the shards of a stage instance: claim one after the other, and run the stage's `work` on its jobs."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from treadle.core.errors import RunError
from treadle.core.journal.upload import last_token, open_journal
from treadle.core.runs.shards import POLL_S, ShardPlan, Shards
from treadle.core.runs.stage import JournalView, Progress, StageContext, WorkResult
from treadle.core.store.leases import LeaseWatch, hold_key, watch_leases
from treadle.core.untrusted.concealment import exits_as_errors

_log = logging.getLogger(__name__)

Work = Callable[[StageContext], WorkResult]


def work_on_shards(
    shards: Shards,
    work: Work,
    context_of: Callable[[JournalView], StageContext],
    *,
    progress: Progress,
    wait: bool,
    growing: Sequence[str] = (),
    watch: LeaseWatch | None = None,
) -> int:
    """Work on open shards, one after the other, while there are any; return the number finished by this process.

    `context_of` makes a context for all jobs from the journal of a shard; each such context is then limited to the jobs
    of the shard. If living processes hold all remaining shards, the call returns. With `wait` it waits instead,
    continues the shards of processes that have ended, and returns when all shards are finished. For `growing` see
    `open_journal`. `watch` is a watch that has already observed the leases of these shards.
    """
    watch = watch or watch_leases(shards.storage)
    return _ShardWorker(shards, work, context_of, growing, watch).run(wait, progress)


class _ShardWorker:
    """One process that works on the shards of an instance."""

    def __init__(
        self,
        shards: Shards,
        work: Work,
        context_of: Callable[[JournalView], StageContext],
        growing: Sequence[str],
        watch: LeaseWatch,
    ) -> None:
        self._shards, self._work, self._context_of = shards, work, context_of
        self._growing, self._watch = growing, watch
        self._through: set[int] = set()
        self._plan: ShardPlan | None = None
        self._num_done = 0

    def run(self, wait: bool, progress: Progress) -> int:
        told = -1
        while (plan := self._shards.plan()) is not None:
            if plan != self._plan:
                self._plan, self._through = plan, set()
            left = self._open(plan)
            if not left:
                break
            looks = {index: self._watch.look(self._shards.lock_key(index)) for index in left}
            free = next((index for index in left if looks[index] == "free"), None)
            if free is not None:
                self._num_done += self._claim(plan, free, progress)
            elif wait or "unknown" in looks.values():
                if told != (told := len(self._through)):
                    progress.start(plan.num_shards, told, "shards")
                time.sleep(POLL_S)
            else:
                break
        return self._num_done

    def _open(self, plan: ShardPlan) -> list[int]:
        """Return the unfinished shards; each process starts with another one, so that few try the same."""
        for index in range(plan.num_shards):
            if index not in self._through and self._shards.result(plan, index) is not None:
                self._through.add(index)
        first = os.getpid() % plan.num_shards
        order = [*range(first, plan.num_shards), *range(first)]
        return [index for index in order if index not in self._through]

    def _claim(self, plan: ShardPlan, index: int, progress: Progress) -> bool:
        """Work on a shard if its lease is available; return whether this process finished it."""
        shards, storage, key = self._shards, self._shards.storage, self._shards.shard_key(plan, index)
        what, lock = shards.describe(plan, index), shards.lock_key(index)
        with contextlib.ExitStack() as stack:
            try:
                held = hold_key(storage, lock, what, above=last_token(storage, key), seen=self._watch.seen(lock))
                lease = stack.enter_context(held)
            except RunError:
                return False  # Another process was faster.
            # Another process may have changed the plan, or finished the shard, before the lease was taken.
            if shards.plan() != plan or shards.result(plan, index) is not None:
                return False
            _log.info("working at %s", what)
            with open_journal(storage, key, lease, growing=self._growing) as journal:
                shown = _ShardProgress(progress, f"{index + 1} of {plan.num_shards}")
                context = replace(self._context_of(journal), shard=index, num_shards=plan.num_shards, progress=shown)
                with exits_as_errors():
                    worked = self._work(context)
            # Written after the journal is closed, so that other processes find all of its records.
            shards.write_result(plan, index, worked, lease)
            _log.info("finished %s%s", what, f"; first cause of failure: {worked.first}" * bool(worked.first))
            return True


@dataclass(frozen=True, slots=True)
class _ShardProgress(Progress):
    """A progress listener that shows the jobs of one shard and its number."""

    progress: Progress
    name: str

    def start(self, total: int, done: int, unit: str) -> None:
        """Show the start with the shard's number; see `Progress.start`."""
        self.progress.start(total, done, unit)
        self.progress.advance(0, shard=self.name)

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        """Forward the advance; see `Progress.advance`."""
        self.progress.advance(count, **facts)
