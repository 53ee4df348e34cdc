"""Measure how a planning agent worked: its steps, its batches, its plan, and the times of its calls. Pure functions.

Definitions: docs/behaviour/planning.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from treadle.agent.contract import ModelTurn
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.environments.planning.calls import BLOCKED, DUPLICATE
from treadle.environments.planning.dialect import PlanningDialect
from treadle.environments.planning.graph import Plan
from treadle.environments.planning.planned import PlannedCall, call_dependencies
from treadle.environments.planning.scheduler import Scheduling


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls of one turn.

    Attributes:
        turn: Number of the turn, from 0.
        plan: Latest plan when the calls were made; None without one.
        num_plans: Plans that the model had written by then; batches with the same number have the same plan.
        calls: The calls with their tasks.
        stored: Their entries in the column `tool_calls`, in the same order.
        depends_on: Id of a call or task -> those that it waits for; see `call_dependencies`.
    """

    turn: int
    plan: Plan | None
    num_plans: int
    calls: tuple[PlannedCall, ...]
    stored: tuple[Mapping[str, Any], ...]
    depends_on: Mapping[str, Sequence[str]]

    @property
    def executed(self) -> list[Mapping[str, Any]]:
        """Entries of the calls that ran."""
        return [call for call in self.stored if call["status"] != "refused"]


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """Figures of one trajectory.

    Attributes:
        num_steps: Turns with calls that ran.
        mean_width: Mean number of calls that ran in such a turn; 0 without such turns.
        max_width: Most calls that ran in one turn.
        num_duplicates: Calls that were refused because they had been made before.
        num_blocked: Calls that were not run because what they need failed.
        num_plans: Plans that the model wrote.
        num_bad_plans: Plans that cannot be followed.
        num_tasks: Tasks of the plans that can be followed, summed.
        num_levels: Levels of the plans that can be followed, summed.
        num_early_calls: Calls that were made before a task was done on which their own task depends.
        num_tasks_not_run: Tasks that name a tool or have no dependencies, and for which no call was made.
        num_calls_outside: Calls that belong to no task of the plan.
        faults: Codes of `treadle.environments.planning.violations` for the order of blocks.
    """

    num_steps: int = 0
    mean_width: float = 0.0
    max_width: int = 0
    num_duplicates: int = 0
    num_blocked: int = 0
    num_plans: int = 0
    num_bad_plans: int = 0
    num_tasks: int = 0
    num_levels: int = 0
    num_early_calls: int = 0
    num_tasks_not_run: int = 0
    num_calls_outside: int = 0
    faults: tuple[str, ...] = ()

    def parts(self) -> dict[str, float]:
        """Return the figures by the names of `parts.PARTS`; without a plan, those about plans are left out."""
        found: dict[str, float] = {
            "steps": self.num_steps,
            "batch_width": self.mean_width,
            "max_batch_width": self.max_width,
            "duplicate_calls": self.num_duplicates,
            "blocked_calls": self.num_blocked,
            "plans": self.num_plans,
            "faults": len(self.faults),
        }
        if self.num_plans:
            found |= {
                "bad_plans": self.num_bad_plans,
                "plan_tasks": self.num_tasks,
                "plan_levels": self.num_levels,
                "early_calls": self.num_early_calls,
                "tasks_not_run": self.num_tasks_not_run,
                "calls_outside_plan": self.num_calls_outside,
            }
        return {name: float(value) for name, value in found.items()}


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Seconds of the calls of one trajectory.

    Attributes:
        sequential_s: Sum over all calls: their time one after the other.
        batch_s: Sum over turns of the longest call.
        critical_path_s: Sum over turns of the longest chain of calls that wait for each other.
        wall_s: Sum over turns from the start of the first call to the end of the last one.
    """

    sequential_s: float = 0.0
    batch_s: float = 0.0
    critical_path_s: float = 0.0
    wall_s: float = 0.0

    @property
    def speed_up(self) -> float | None:
        """`sequential_s` divided by `batch_s`; None without calls."""
        return self.sequential_s / self.batch_s if self.batch_s else None


@dataclass(slots=True)
class _Plans:
    """Plans of a trajectory, collected while it is read."""

    current: Plan | None = None
    found: list[Plan] = field(default_factory=list)
    done: dict[int, dict[str, int]] = field(default_factory=dict)
    """Number of a plan (from 1; 0 while there is no plan) -> task -> turn of the task's first call."""


def turn_texts(segments: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield each text that the model wrote without interruption by the system."""
    text = ""
    for segment in segments:
        if segment["kind"] in SYSTEM_KINDS:
            if text:
                yield text
            text = ""
        else:
            text += segment["text"]
    if text:
        yield text


def batches(
    segments: Sequence[Mapping[str, Any]], tool_calls: Sequence[Mapping[str, Any]], dialect: PlanningDialect
) -> list[Batch]:
    """Return the batches of a trajectory: the columns `segments` and `tool_calls` of `rollouts`, read from JSON."""
    return list(_read(segments, tool_calls, dialect, _Plans()))


def _read(
    segments: Sequence[Mapping[str, Any]],
    tool_calls: Sequence[Mapping[str, Any]],
    dialect: PlanningDialect,
    plans: _Plans,
) -> Iterator[Batch]:
    rest = list(tool_calls)
    for text in turn_texts(segments):
        if (found := dialect.find_plan(text)) is not None:
            plans.current = found[0]
            plans.found.append(found[0])
        number = rest[0]["turn"] if rest else 0
        turn: ModelTurn = dialect.read(text, number, "stop")
        stored, rest = rest[: len(turn.calls)], rest[len(turn.calls) :]
        if not stored:
            continue
        done = plans.done.setdefault(len(plans.found), {})
        calls = dialect.planned(turn, plans.current, done)
        for one in calls:
            if one.task:
                done.setdefault(one.task, number)
        depends_on = call_dependencies(calls, plans.current)
        yield Batch(number, plans.current, len(plans.found), calls, tuple(stored), depends_on)


def plan_figures(
    segments: Sequence[Mapping[str, Any]],
    tool_calls: Sequence[Mapping[str, Any]],
    dialect: PlanningDialect,
    scheduling: Scheduling,
    faults: Sequence[str] = (),
) -> PlanFigures:
    """Return the figures of a stored trajectory; `faults` are the codes of its dialect."""
    plans = _Plans()
    found = list(_read(segments, tool_calls, dialect, plans))
    widths = [len(batch.executed) for batch in found if batch.executed]
    valid = {place: plan for place, plan in enumerate(plans.found, start=1) if plan.is_valid}
    notes = [call.get("note", "") for call in tool_calls]
    return PlanFigures(
        num_steps=len(widths),
        mean_width=sum(widths) / len(widths) if widths else 0.0,
        max_width=max(widths, default=0),
        num_duplicates=notes.count(DUPLICATE),
        num_blocked=sum(note.startswith(BLOCKED) for note in notes),
        num_plans=len(plans.found),
        num_bad_plans=len(plans.found) - len(valid),
        num_tasks=sum(len(plan.nodes) for plan in valid.values()),
        num_levels=sum(len(plan.levels()) for plan in valid.values()),
        num_early_calls=sum(_early(batch, plans, found, scheduling) for batch in found),
        num_tasks_not_run=sum(_not_run(plan, plans.done.get(place, {})) for place, plan in valid.items()),
        num_calls_outside=sum(
            not one.task for batch in found if batch.plan is not None and batch.plan.is_valid for one in batch.calls
        ),
        faults=tuple(faults),
    )


def _early(batch: Batch, plans: _Plans, found: Sequence[Batch], scheduling: Scheduling) -> int:
    """Count the calls of a batch whose task depends on a task that is first called in the same or a later turn.

    A task that is first called in the same turn is no reason to count a call that the scheduler lets wait for it.
    """
    if batch.plan is None or not batch.plan.is_valid:
        return 0
    ancestors = batch.plan.ancestors()
    first: dict[str, tuple[int, bool]] = {}
    for other in found:
        if other.num_plans == batch.num_plans:
            for one in other.calls:
                first.setdefault(one.task, (other.turn, one.is_named))
    early = 0
    for one in batch.calls:
        for task in ancestors.get(one.task, ()):
            turn, is_named = first.get(task, (-1, False))
            ordered = turn == batch.turn and is_named and one.is_named and scheduling != "tags"
            if turn >= batch.turn and not ordered:
                early += 1
                break
    return early


def _not_run(plan: Plan, done: Mapping[str, int]) -> int:
    return sum(node.id not in done and (node.tool is not None or not node.depends_on) for node in plan.nodes)


def call_times(found: Sequence[Batch], times: Sequence[Mapping[str, Any]]) -> CallTimes:
    """Return the seconds of the calls; `times` is the column `call_times` of `rollout_telemetry`."""
    by_id = {one["id"]: one for one in times}
    sequential = batch_s = critical = wall = 0.0
    for batch in found:
        own = {call["id"]: by_id[call["id"]] for call in batch.stored if call["id"] in by_id}
        if not own:
            continue
        seconds = {id: one["seconds"] for id, one in own.items()}
        sequential += sum(seconds.values())
        batch_s += max(seconds.values())
        critical += longest_chain(batch.depends_on, seconds)
        wall += max(one["started_s"] + one["seconds"] for one in own.values())
    return CallTimes(sequential, batch_s, critical, wall)


def longest_chain(depends_on: Mapping[str, Sequence[str]], seconds: Mapping[str, float]) -> float:
    """Return the longest sum of seconds along dependencies; items without seconds count as 0."""
    ends: dict[str, float] = {}

    def end(id: str) -> float:
        if id not in ends:
            ends[id] = seconds.get(id, 0.0) + max((end(other) for other in depends_on[id]), default=0.0)
        return ends[id]

    return max(map(end, depends_on), default=0.0)
