"""Run the calls of a planning agent: in the order of its plan, with a cap, and no repeated search.

Each finished call is cached on its own, so that a rollout that is killed in the middle of a batch does not run such
calls again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from treadle.agent.cached_units import call_unit
from treadle.agent.call_cache import CallCache, NullCache
from treadle.agent.contract import (
    FAILED_STATUSES,
    Call,
    CallRecord,
    EpisodeOptions,
    ModelTurn,
    Observation,
    StepContext,
    Task,
)
from treadle.agent.role import RoleModel
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.tools.schema import ToolSchema
from treadle.core.seeds import derive_seed
from treadle.environments.planning.dialect import PlanningDialect
from treadle.environments.planning.entry_calls import read_entry_call
from treadle.environments.planning.graph import Plan
from treadle.environments.planning.places import Places
from treadle.environments.planning.planned import PlannedCall, call_dependencies
from treadle.environments.planning.scheduler import Scheduling, run_scheduled
from treadle.environments.tools.calls import CallLimits, EpisodeCalls, outcome_of, record_of

DUPLICATE = "duplicate"
"""Note of a call that is refused because an equal one was made before."""
BLOCKED = "blocked by "
"""Beginning of the note of a refused call whose inputs failed; the ids of the failed calls follow."""
DUPLICATE_NOTICE = (
    "This was asked for before, and the result is above. Ask for something else, or put together what is known."
)


@dataclass(slots=True)
class PlannedCalls(EpisodeCalls):
    """Calls of one episode of a planning agent.

    Attributes:
        scheduling: Rule by which the calls of a turn wait for each other.
        max_parallel: Most calls that run at once; None for no limit.
        guarded: Tools whose calls are not repeated.
        own_entries: Names of the entries of `environment.tools`; see `read_entry_call` for the text of their tags.
        filler: Model that extracts values for placeholders from results; None: a value is a result's first sentence.
    """

    scheduling: Scheduling = "levels"
    max_parallel: int | None = None
    guarded: frozenset[str] = frozenset()
    own_entries: frozenset[str] = frozenset()
    filler: RoleModel | None = None
    plan: Plan | None = None
    _cache: CallCache = field(default_factory=NullCache)
    _places: Places = field(init=False)
    _planned: dict[str, PlannedCall] = field(default_factory=dict)
    _made: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Id of a call of the turn -> its text with placeholders filled, and seconds from the batch's start to its own."""
    shown_from: int = 0
    """First turn whose results the model still sees; calls of earlier turns may be repeated."""
    _found: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    """Tool and normalised text of a call -> its result and turn, so that repeated calls are recognised."""

    async def begin(self, task: Task, options: EpisodeOptions, limits: CallLimits) -> tuple[ToolSchema, ...]:
        """See `EpisodeCalls.begin`."""
        self._cache = options.cache
        self._places = Places(self.filler, options.cache, f"{task.key} {options.seed}", {})
        schemas = await EpisodeCalls.begin(self, task, options, limits)
        for record in options.history:
            self._remember(record)
        return schemas

    def entry_schemas(self) -> dict[str, Sequence[ToolSchema]]:
        """Return the tools of each entry of `environment.tools`."""
        return {name: self._tools[name].schemas for name in self._tools if name in self.own_entries}

    async def run(self, turn: ModelTurn, context: StepContext) -> Observation:
        """See `EpisodeCalls.run`. Calls whose inputs failed are not run, and the model sees no result of them."""
        self._read_plan(turn)
        observation = await EpisodeCalls.run(self, turn, context)
        records = tuple([self._as_made(record) for record in observation.calls])
        return replace(observation, calls=records)

    def refuse(self, turn: ModelTurn, note: str, notice: str) -> Observation:
        """Refuse all calls of a turn: record each as refused with `note`, and give the model `notice` as its result."""
        self._read_plan(turn)
        records = [record_of(call, turn.number, ToolOutcome("refused", notice, note=note)) for call in turn.calls]
        for record in records:
            self.ledger.add(record)
        return Observation(tuple(records), tuple([self._message(record) for record in records]))

    async def replay(self, turn: ModelTurn, observation: Observation, context: StepContext) -> None:
        """See `EpisodeCalls.replay`."""
        self._read_plan(turn)
        await EpisodeCalls.replay(self, turn, observation, context)
        for record in observation.calls:
            self._remember(record)

    def _read_plan(self, turn: ModelTurn) -> None:
        assert isinstance(self.dialect, PlanningDialect)
        if (found := self.dialect.find_plan(turn.text)) is not None:
            self.plan = found[0]
            self._places.results = {}
        self._planned = {one.call.id: one for one in self.dialect.planned(turn, self.plan, self._places.results)}
        self._made = {}

    def _as_made(self, record: CallRecord) -> CallRecord:
        if record.id not in self._made:
            return record
        argument, started_s = self._made[record.id]
        return replace(record, argument=argument, started_s=started_s)

    def _label(self, record: CallRecord) -> str:
        planned = self._planned.get(record.id)
        return f"{record.id}, task {planned.task}" if planned is not None and planned.is_named else record.id

    async def _run_all(self, calls: Sequence[Call], turn: ModelTurn, context: StepContext) -> Sequence[ToolOutcome]:
        if not calls:
            return ()
        clock = asyncio.get_running_loop().time
        started = clock()
        runnable = {call.id for call in calls}

        async def run(item: str, _: Mapping[str, ToolOutcome | None]) -> ToolOutcome | None:
            if item not in self._planned:
                return None  # a task without a call in this turn
            if item not in runnable:
                return ToolOutcome("refused", "")
            return await self._run_one(self._planned[item], turn, context, lambda: clock() - started)

        ended = await run_scheduled(
            call_dependencies(list(self._planned.values()), self.plan),
            run,
            scheduling=self.scheduling,
            has_failed=_has_failed,
            max_parallel=self.max_parallel,
        )
        found = []
        for call in calls:
            value, blocked_by = ended[call.id].value, ended[call.id].blocked_by
            found.append(value or ToolOutcome("refused", "", note=BLOCKED + ", ".join(blocked_by)))
        return found

    async def _run_again(self, call: Call, turn: ModelTurn, context: StepContext) -> ToolOutcome:
        return await self._invoke(self._planned[call.id].call, turn, context)

    async def _run_one(
        self, planned: PlannedCall, turn: ModelTurn, context: StepContext, seconds: Callable[[], float]
    ) -> ToolOutcome:
        """Run one call; return the recorded outcome if an earlier attempt ran it, and refuse a repeated call."""
        unit = f"{call_unit(turn.number)}/{planned.call.id}"
        if (known := self._cache.get(unit)) is not None:
            (raw,) = orjson.loads(known)["calls"]
            record = CallRecord(**{**raw, "sources": tuple(raw["sources"])})
            self._made[record.id] = record.argument, record.started_s
            self._remember(record)
            return outcome_of(record)
        try:
            call = await self._filled(planned, turn, context)
        except KeyError as error:
            return ToolOutcome("invalid", f"Error: there is no result of {error.args[0]} to put into this call.")
        self._made[call.id] = call.text, seconds()
        key = _key(call.tool, call.text)
        if call.tool in self.guarded:
            earlier, found_in = self._found.get(key, ("", -1))
            if found_in >= self.shown_from:
                if planned.is_named and earlier:
                    self._places.results.setdefault(planned.task, []).append(earlier)
                return ToolOutcome("refused", DUPLICATE_NOTICE, note=DUPLICATE)
            self._found[key] = "", turn.number  # an equal call of this turn is not made as well
        try:
            outcome = await self._invoke(call, turn, replace(context, seed=derive_seed(context.seed, call.id)))
        except BaseException:
            self._found.pop(key, None)
            raise
        record = replace(record_of(call, turn.number, outcome), started_s=self._made[call.id][1])
        self._found.pop(key, None)
        self._remember(record)
        if len(self._planned) > 1:  # the observation of a single call is cached at once
            self._cache.append(unit, orjson.dumps({"calls": [record]}))
        return outcome

    async def _filled(self, planned: PlannedCall, turn: ModelTurn, context: StepContext) -> Call:
        """Return the call with the placeholders of its text filled. Raises KeyError for a task without a result."""
        if not planned.argument.places or self.plan is None:
            return planned.call
        values = await self._places.values(self.plan, planned.argument.places, turn.number, context)
        (parameter,) = planned.call.arguments
        return replace(planned.call, arguments={parameter: planned.argument.filled(values)})

    async def _invoke(self, call: Call, turn: ModelTurn, context: StepContext) -> ToolOutcome:
        if call.tool not in self.own_entries:
            return await self._call(call, turn, context)
        tools = self._tools[call.tool]
        try:
            name, arguments = read_entry_call(call.text, tools.schemas)
        except ValueError as error:
            return ToolOutcome("invalid", f"Error: {error}.")
        told = CallContext(self._question, context.log or (turn.text,), context.seed, context.budget_s, self._route)
        return await tools.call(name, arguments, deadline=context.deadline, context=told)

    def _remember(self, record: CallRecord) -> None:
        """Keep the result of a successful call, to refuse repetitions and to fill placeholders of later calls."""
        if record.status != "ok":
            return
        if record.tool in self.guarded:
            self._found[_key(record.tool, record.argument)] = record.text, record.turn
        planned = self._planned.get(record.id)
        if planned is not None and planned.task:
            self._places.results.setdefault(planned.task, []).append(record.text)


def _has_failed(outcome: ToolOutcome | None) -> bool:
    if outcome is None:
        return False
    return outcome.status in FAILED_STATUSES or (outcome.status == "refused" and outcome.note != DUPLICATE)


def _key(tool: str, text: str) -> tuple[str, str]:
    """Return a key that equal calls have in common: letter case and white space do not count."""
    return tool, " ".join(text.split()).casefold()
