"""Run one episode of a question: tools with limits, and the end of the rollout at an answer.

Limits: docs/behaviour/agent.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.agent.contract import (
    Call,
    CallRecord,
    EpisodeOptions,
    InitialState,
    Ledger,
    ModelTurn,
    Observation,
    Outcome,
    StepContext,
    Task,
)
from treadle.agent.dialects.tags import is_answer, neutralise
from treadle.agent.tools.outcome import CallContext, Tool, ToolOutcome
from treadle.core.gather import gather_or_cancel
from treadle.environments.question.settings import QuestionSettings
from treadle.web.pages.control_tokens import without_tokens


class QuestionEpisode:
    """Episode with tools and limits. All episodes share the tools; each has a ledger of its own."""

    def __init__(self, settings: QuestionSettings, tools: Mapping[str, Tool]) -> None:
        self._settings = settings
        self._tools = tools
        self._additional = 0
        self._ledger = Ledger()
        self._question = ""
        self._route: str | None = None
        self._added_tokens: frozenset[str] = frozenset()

    async def reset(self, task: Task, options: EpisodeOptions) -> InitialState:
        """Load the calls of a prefix; return the system message (if any) and the question."""
        self._ledger = Ledger(options.history)
        self._additional = options.additional_calls
        self._question = task.user_message
        self._route = task.search
        self._added_tokens = options.added_tokens
        return InitialState(self._settings.first_messages(task))

    async def step(self, turn: ModelTurn, context: StepContext) -> Observation:
        """Run the calls of the turn, refuse those over a limit, or end the rollout."""
        if turn.calls:
            observation = await self._answer_calls(turn, context)
            self._count(observation)
            return observation
        if turn.ended == "stop":
            return Observation(status="answered" if is_answer(turn.text, self._settings.dialect) else "no_answer")
        return self._unmarked(turn)

    def _unmarked(self, turn: ModelTurn) -> Observation:
        """React to a turn without a call or an answer."""
        if turn.ended in ("filtered", "context_full", "budget"):
            return Observation(status=turn.ended)
        if self._settings.on_unmarked == "continue" and not turn.is_empty:
            return Observation()
        return Observation(status="length" if turn.ended == "length" else "no_answer")

    async def replay(self, turn: ModelTurn, observation: Observation, context: StepContext) -> None:
        """Count the calls of an observation."""
        self._count(observation)

    def _count(self, observation: Observation) -> None:
        for call in observation.calls:
            self._ledger.add(call)

    async def outcome(self) -> Outcome | None:
        """Return None: the answer is scored from the stored rollout."""
        return None

    async def close(self) -> None:
        """Do nothing; an episode holds no resources."""

    async def _answer_calls(self, turn: ModelTurn, context: StepContext) -> Observation:
        """Run the allowed calls concurrently, in the order of the turn; refuse the others."""
        log = context.log or (turn.text,)
        told = CallContext(self._question, log, context.seed, context.budget_s, self._route)
        refusals = self._refusals(turn.calls)
        allowed = [call for call in turn.calls if call.id not in refusals]
        jobs = [self._tools[call.tool].call(call.text, deadline=context.deadline, context=told) for call in allowed]
        # Most turns have one call, which needs no task of its own.
        outcomes = iter([await jobs[0]] if len(jobs) == 1 else await gather_or_cancel(jobs))
        records, messages, ends = [], [], False
        for call in turn.calls:
            if (refusal := refusals.get(call.id)) is None:
                record = _executed(call, turn.number, next(outcomes))
            else:
                notice, is_last = refusal
                ends = ends or is_last
                record = CallRecord(call.tool, call.text, "refused", turn.number, notice, id=call.id)
            records.append(record)
            if record.executed or record.text:
                messages.append(self._settings.dialect.result(self._shown(record)))
        return Observation(tuple(records), tuple(messages), "limit" if ends else None)

    def _shown(self, record: CallRecord) -> str:
        """Return the text of a result, with spellings of the tokenizer's added tokens broken up if it is from the web.

        Spelled control tokens are encoded as plain text anyway, but other added tokens, such as Qwen's `<tool_call>`,
        would be matched as a whole.
        """
        if not record.sources or not self._added_tokens:
            return record.text
        return without_tokens(neutralise(record.text, self._settings.dialect), self._added_tokens)

    def _refusals(self, calls: tuple[Call, ...]) -> dict[str, tuple[str, bool]]:
        """Return the notice for each call over a limit, by id, and whether the call ends the rollout."""
        on_limit = self._settings.on_limit
        allowed: list[str] = []
        refused: list[str] = []
        found = {}
        for call in calls:
            reason = self._limit_message(call.tool, allowed)
            if reason is None:
                allowed.append(call.tool)
                continue
            # With `notice`, the second refused call of a tool ends the rollout.
            earlier = self._ledger.refused(call.tool) + refused.count(call.tool)
            ends = on_limit == "stop" or (on_limit == "notice" and earlier >= 1)
            refused.append(call.tool)
            found[call.id] = ("" if ends or on_limit == "silent" else f"{reason} Go on without it.", ends)
        return found

    def _limit_message(self, tool: str, allowed: Sequence[str]) -> str | None:
        """Return the message of the limit that rules out one more call; None if the call is allowed.

        `allowed` are the tools of the turn's earlier calls that will run.
        """
        executed = self._ledger.executed
        limit = self._settings.call_limit(tool, self._additional)
        if limit == 0 or tool not in self._tools:
            return f"The {tool} tool is not available here."
        if executed[tool] + allowed.count(tool) >= limit:
            return f"The limit of {tool} calls ({limit}) is reached; this call was not run."
        total = self._settings.total_limit(self._additional)
        if total is not None and executed.total() + len(allowed) >= total:
            return f"The limit of tool calls ({total}) is reached; this call was not run."
        return None


def _executed(call: Call, turn: int, outcome: ToolOutcome) -> CallRecord:
    return CallRecord(
        call.tool,
        call.text,
        outcome.status,
        turn,
        _well_formed(outcome.text),
        outcome.seconds,
        outcome.cached,
        outcome.note,
        outcome.prompt_tokens,
        outcome.completion_tokens,
        outcome.sources,
        call.id,
    )


def _well_formed(text: str) -> str:
    """Replace lone surrogates, which can be neither sent nor stored, with U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
