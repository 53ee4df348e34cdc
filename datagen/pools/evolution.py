"""Evolve the pool of one question: initial rollouts, then rounds in which operators edit the best trajectory.

Every model completion and tool outcome is stored before it is used, so an interrupted question is replayed and then
continues. An operator that fails affects only its own result. An infrastructure error leaves the question pending.
Method: arXiv 2601.06860; docs/behaviour/flywheel.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from treadle.agent.call_cache import CallCache, ScopedCache
from treadle.agent.contract import EpisodeOptions, Task
from treadle.agent.judges.cases import Verdict
from treadle.agent.prefix import Prefix
from treadle.agent.trajectory import Trajectory
from treadle.core.seeds import derive_seed
from treadle.core.work_clock import timed_work, work_clock
from treadle.datagen.operators.base import Edit, Operator, edit_of
from treadle.datagen.operators.context import OperatorContext
from treadle.datagen.operators.parent import Parent
from treadle.datagen.pools.context import PoolContext
from treadle.datagen.pools.events import INITIAL, PoolEvent, raise_if_fatal
from treadle.datagen.pools.pool import (
    PoolEntry,
    best_unexpanded,
    entry_key,
    is_near_duplicate,
    ranked,
)
from treadle.datagen.pools.role_usage import RoleUsage, TrackedCache, count_rollout
from treadle.datagen.pools.verdicts import case_of, has_answered, prediction_of, verdict_on

T = TypeVar("T")

_log = logging.getLogger(__name__)

_GRACE_S = 1.0
"""Seconds by which the deadlines of a question's rollouts and requests are later than the question's own deadline,
which cancels all of them."""
_CANCEL_TIMEOUT_S = 5.0
"""Seconds that cancelled tasks get to end; after that they are abandoned."""


@dataclass(slots=True)
class _OperatorRun:
    """An operator's work on one parent; `result` is None before it ends, and if it ran out of time."""

    operator: Operator
    context: OperatorContext
    result: Edit | BaseException | None = None


class Evolution:
    """Evolution of one question's pool.

    Attributes:
        pool: Trajectories in the order in which they were added.
        events: Outcomes of operators, in the order of rounds, parents and operators.
        status: ok, partial (an operator failed), timeout, or failed (no trajectory at all).
        error: The first cause, if the status is not ok.
        num_rounds: Number of finished rounds.
    """

    def __init__(self, pool_context: PoolContext, row: Mapping[str, Any], cache: CallCache) -> None:
        self._pool_context = pool_context
        self._row = row
        self._question = Task.from_row(row)
        self._cache = cache
        self._expanded: set[int] = set()
        self._deadline = 0.0
        self.pool: list[PoolEntry] = []
        self.events: list[PoolEvent] = []
        self.status = "ok"
        self.error: str | None = None
        self.num_rounds = 0

    async def run(self) -> None:
        """Make the pool; raise errors that leave the question pending (ModelError, ToolError) or stop the stage."""
        # The question and all its rollouts share one clock: a hold in one rollout also stops the question's time.
        with timed_work() as clock:
            self._deadline = clock.time() + self._pool_context.options.question_time_s
            await self._run_initial_rollouts()
            for number in range(1, self._pool_context.options.rounds + 1):
                if self.status == "timeout" or self._is_enough() or not await self._round(number):
                    break

    def _is_enough(self) -> bool:
        enough = self._pool_context.options.enough_correct
        return not self.pool or (enough is not None and sum(entry.correct for entry in self.pool) >= enough)

    async def _run_initial_rollouts(self) -> None:
        number = self._pool_context.options.initial_rollouts
        caches = [TrackedCache(ScopedCache(self._cache, f"0-{INITIAL}-{index}")) for index in range(number)]
        jobs = [self._run_rollout(None, self._seed(INITIAL, 0, index), caches[index]) for index in range(number)]
        for index, result in enumerate(await self._run_concurrently(jobs)):
            await self._record_initial_rollout(index, result, caches[index])
        if not self.pool and self.status != "timeout":
            self.status = "failed"

    async def _record_initial_rollout(
        self, index: int, result: Trajectory | BaseException | None, cache: TrackedCache
    ) -> None:
        """Add an initial rollout to the pool, or record an event if it gave no trajectory.

        A rollout with empty text is added too, because it can be repaired.
        """
        event = PoolEvent(0, INITIAL, None, "failed")
        if isinstance(result, Trajectory):
            count_rollout(event.usage, result)
            if (duplicate := self._find_duplicate(result)) is None:
                key, seed = self._key(INITIAL, 0, str(index)), self._seed(INITIAL, 0, index)
                await self._add_entry(key, 0, INITIAL, None, seed, Edit(result), {}, event.usage)
                return
            event.outcome, event.rollout_key = "duplicate", duplicate.key
        else:
            cache.count(event.usage)
            event.reason = "timeout"
        if isinstance(result, BaseException):
            raise_if_fatal(result, final=self._pool_context.final)
            event.record(result)
            self._set_status("partial", event.error)
        self.events.append(event)

    async def _round(self, number: int) -> bool:
        """Run one round; return whether the pool grew."""
        is_native = self._pool_context.tags is None
        parents = [Parent.of(entry, is_native=is_native) for entry in self._select_parents()]
        self._expanded.update(parent.entry.index for parent in parents)
        work = [
            [_OperatorRun(one, self._operator_context(number, parent, one.name)) for one in self._operators_of(parent)]
            for parent in parents
        ]
        try:
            done = await self._run_concurrently([self._apply(one) for applied in work for one in applied])
        finally:
            await self._cancel([finding.task for parent in parents for finding in parent.findings.values()])
        before = len(self.pool)
        results = iter(done)
        for parent, applied in zip(parents, work, strict=True):
            self._record_findings(number, parent)
            for one in applied:
                one.result = next(results)
                await self._record_result(number, parent, one)
        if self.status != "timeout":
            self.num_rounds = number
        return len(self.pool) > before

    async def _run_concurrently(self, jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException | None]:
        """Run coroutines concurrently; return each result or exception, or None for those that ran out of time."""
        tasks = [asyncio.ensure_future(job) for job in jobs]
        if not tasks:
            return []
        try:
            with contextlib.suppress(TimeoutError):
                async with work_clock().limit(self._deadline):
                    await asyncio.wait(tasks)
            late = {task for task in tasks if not task.done()}
        finally:
            await self._cancel(tasks)
        if late:
            self._set_status(
                "timeout", f"the question's time limit ({self._pool_context.options.question_time_s:g} s) was reached"
            )
        return [None if task in late else task.exception() or task.result() for task in tasks]

    async def _cancel(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Cancel running tasks; abandon those that do not end in time, so that they do not block the stage."""
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        _, left = await asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT_S)
        for task in left:
            _log.error("question %s: an operator did not stop after its cancellation: %r", self._question.key, task)
            # At its end, `asyncio.run` waits for all registered tasks.
            asyncio.tasks._unregister_task(task)

    def _select_parents(self) -> list[PoolEntry]:
        if self._pool_context.options.selection == "all":
            fresh = [entry for entry in self.pool if entry.index not in self._expanded]
            return fresh or ranked(self.pool)[:1]
        return [best_unexpanded(self.pool, self._expanded)]

    def _operators_of(self, parent: Parent) -> Iterator[Operator]:
        """Return the operators of the parent's branch, in their order."""
        branch = "correct" if parent.entry.correct else "incorrect"
        return (operator for operator in self._pool_context.operators if operator.branch == branch)

    async def _apply(self, one: _OperatorRun) -> Edit | Exception:
        try:
            return await edit_of(one.operator, one.context)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The question was not cancelled, but something that the operator awaited was.
            return RuntimeError("something that the operator awaited was cancelled")
        except Exception as error:  # noqa: BLE001 - an error in a user's operator fails only that operator
            return error

    def _operator_context(self, number: int, parent: Parent, name: str) -> OperatorContext:
        pool_context = self._pool_context
        return OperatorContext(
            question=self._question,
            parent=parent,
            prompts=pool_context.prompts,
            roles=pool_context.roles,
            hints=pool_context.hints(self._row["domain"]),
            codec=pool_context.continuing.codec,
            tags=pool_context.tags,
            seed=self._seed(name, number, parent.entry.index),
            run_rollout=self._run_rollout,
            cache=ScopedCache(self._cache, f"{number}-{name}-{parent.entry.index}"),
            deadline=self._deadline + _GRACE_S,
            # Operator names contain no hyphen, so a finding and an operator never share a cache.
            new_finding_context=lambda finding: self._operator_context(number, parent, f"find-{finding}"),
        )

    async def _run_rollout(self, prefix: Prefix | None, seed: int, cache: CallCache) -> Trajectory:
        pool_context = self._pool_context
        additional = 0 if prefix is None else pool_context.environment.num_continuation_calls
        until = work_clock().time() + pool_context.environment.rollout_time_s
        engine = pool_context.fresh if prefix is None else pool_context.continuing
        trajectory = await engine.roll_out(
            pool_context.runtime.episode(),
            self._question,
            seed=seed,
            deadline=min(until, self._deadline + _GRACE_S),
            cache=cache,
            prefix=prefix,
            options=EpisodeOptions(additional_calls=additional),
        )
        return pool_context.editable(trajectory)

    def _record_findings(self, number: int, parent: Parent) -> None:
        for name, finding in sorted(parent.findings.items()):
            event = PoolEvent(number, name, parent.entry, "found", usage=finding.usage)
            if not finding.task.done() or finding.task.cancelled():
                event.outcome, event.reason = "failed", "unfinished"
                if event.usage:
                    self.events.append(event)
                continue
            if (error := finding.task.exception()) is not None:
                event.record(error)
            self.events.append(event)

    async def _record_result(self, number: int, parent: Parent, applied: _OperatorRun) -> None:
        """Add an operator's trajectory to the pool, or record why there is none."""
        name, result, context = applied.operator.name, applied.result, applied.context
        event = PoolEvent(number, name, parent.entry, "produced", usage=context.usage)
        if isinstance(result, Edit):
            duplicate = self._find_duplicate(result.trajectory)
            if not result.trajectory.text.strip():
                event.outcome, event.reason = "rejected", "empty_trajectory"
            elif duplicate is not None:
                event.outcome, event.rollout_key = "duplicate", duplicate.key
            else:
                key = self._key(name, number, parent.entry.key)
                await self._add_entry(
                    key, number, name, parent.entry, context.seed, result, context.used_prompts, context.usage
                )
                event.rollout_key = key
        elif result is None:
            event.outcome, event.reason = "failed", "timeout"
        else:
            raise_if_fatal(result, final=self._pool_context.final)
            event.record(result)
            if event.outcome == "failed":
                self._set_status("partial", f"{name}: {event.error}")
            if event.reason == "operator_error":
                _log.error("question %s: operator %s failed", self._question.key, name, exc_info=result)
        self.events.append(event)

    def _set_status(self, status: str, error: str | None) -> None:
        if self.status != "timeout":
            self.status = status
        self.error = self.error or error

    def _find_duplicate(self, trajectory: Trajectory) -> PoolEntry | None:
        threshold = self._pool_context.options.near_duplicate
        return next(
            (one for one in self.pool if is_near_duplicate(one.trajectory.text, trajectory.text, threshold)), None
        )

    async def _add_entry(
        self,
        key: str,
        number: int,
        operator: str,
        parent: PoolEntry | None,
        seed: int,
        edit: Edit,
        prompts: dict[str, str],
        usage: dict[str, RoleUsage],
    ) -> None:
        trajectory = edit.trajectory
        prediction = prediction_of(trajectory)
        verdict = await self._judge(trajectory, prediction)
        is_new_verdict = all(entry.prediction != prediction for entry in self.pool if entry.verdict.raw)
        if verdict.raw and is_new_verdict:
            usage.setdefault("judge", RoleUsage()).add(
                verdict.prompt_tokens, verdict.completion_tokens, len(verdict.raw)
            )
        self.pool.append(
            PoolEntry(
                key=key,
                index=len(self.pool),
                round=number,
                operator=operator,
                parent=parent.key if parent else None,
                seed=seed,
                trajectory=trajectory,
                prediction=prediction,
                verdict=verdict,
                edit_step=edit.step,
                edit_text=edit.text,
                prompts=prompts,
                usage=usage,
            )
        )

    async def _judge(self, trajectory: Trajectory, prediction: str) -> Verdict:
        has_time = self.status != "timeout" and not self._pool_context.final
        return await verdict_on(
            self._pool_context.judge,
            case_of(
                self._question,
                self._row["answers"],
                prediction,
                answered=has_answered(trajectory),
                seed=self._seed("judge", prediction),
                deadline=self._deadline + _GRACE_S,
            ),
            self._cache,
            has_time=has_time,
        )

    def _seed(self, *parts: str | int) -> int:
        return derive_seed(self._pool_context.seed, self._question.key, "pools", *parts)

    def _key(self, operator: str, number: int, parent: str) -> str:
        return entry_key(self._question.key, self._pool_context.policy_name, operator, number, parent)
