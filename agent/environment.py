"""Define the environment of a rollout: it reacts to each turn of the model and decides when the rollout ends.

`Environment` is the interface that the rollout engine uses. `ToolEnvironment` implements it with tools and limits; a
simulated user or a remote service can implement it elsewhere. One observation may hold several calls and several
blocks, so a dialect with more than one call per turn needs no other engine. Limits: docs/behaviour/agent.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import orjson

from treadle.agent.config import EnvironmentSettings
from treadle.agent.dialect import ParsedCall, is_answer, parse_call, result_block
from treadle.agent.tools.outcome import CallContext, OutcomeStatus, Tool, ToolOutcome

FAILED_STATUSES = frozenset({"error", "timeout", "invalid", "empty"})
"""Outcomes that count as failed calls. A refused call does not run and is counted separately."""


QUESTION_COLUMNS = ("question_key", "dataset", "domain", "question", "choices", "format", "scorer", "search")
"""Columns of `questions` that make a `Question`."""


@dataclass(frozen=True, slots=True)
class Question:
    """Question that an environment is reset with: one row of the `questions` table without its gold answers."""

    key: str
    text: str
    choices: tuple[str, ...] = ()
    dataset: str = ""
    domain: str = ""
    format: str | None = None
    """multiple_choice, assertion, fill_in, open_ended or None; selects the format paragraph of the system message."""
    scorer: str | None = None
    """math, qa, qa_characters or choice; None for the scorer of the domain."""
    search: str | None = None
    """local, web or both: route of its searches, if the environment leaves that to the question."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Question:
        """Build a question from a row with `QUESTION_COLUMNS`; format, scorer and search may be missing."""
        return cls(
            row["question_key"],
            row["question"],
            tuple(row["choices"]),
            row["dataset"],
            row["domain"],
            row.get("format"),
            row.get("scorer"),
            row.get("search"),
        )

    @property
    def rule(self) -> str:
        """Name of the rule that scores an answer: `scorer`, or else the domain."""
        return self.scorer or self.domain

    @property
    def user_message(self) -> str:
        """The question and, for multiple choice, a blank line and one `A. text` line per option."""
        if not self.choices:
            return self.text
        options = [f"{_option_letter(index)}. {choice}" for index, choice in enumerate(self.choices)]
        return "\n".join([self.text, "", *options])


def _option_letter(index: int) -> str:
    """Return A to Z, then AA, AB, ..."""
    high, low = divmod(index, 26)
    return (_option_letter(high - 1) if high else "") + chr(ord("A") + low)


TurnEnd = Literal["stop", "end_of_turn", "length", "context_full", "budget", "filtered"]
"""Why the model stopped: at a stop marker of the dialect, by itself, at `sampling.max_tokens`, at its context window,
at the token limit of the trajectory, or because the server withheld the rest."""


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One turn of the model.

    Attributes:
        text: What it wrote since the last block, or since the last stop marker that was acted on.
        number: Number of the turn, from 0.
        ended: Why it stopped.
        is_empty: Whether the turn added nothing to the text.
    """

    text: str
    number: int
    ended: TurnEnd
    is_empty: bool = False


@dataclass(frozen=True, slots=True)
class StepContext:
    """What the reaction to a turn may depend on besides the turn.

    Attributes:
        deadline: Time of the work clock (`treadle.core.work_clock`) by which the reaction must be there.
        log: The assistant turn so far, in pieces; empty for the text of this turn alone.
        seed: Seed of random draws.
        budget_s: Seconds that calls may run, not counting any wait before that; see `CallContext`.
    """

    deadline: float
    log: Sequence[str] = ()
    seed: int = 0
    budget_s: float | None = None


@dataclass(frozen=True, slots=True)
class CallRecord:
    """Ledger entry: one call, its outcome, and the number of its turn.

    `text` is the tool's own text. `note`, tokens and `sources` are those of the tool's outcome.
    """

    tool: str
    argument: str
    status: OutcomeStatus
    turn: int
    text: str = ""
    seconds: float = 0.0
    cached: bool = False
    note: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    sources: tuple[str, ...] = ()

    @property
    def executed(self) -> bool:
        """Whether the tool ran."""
        return self.status != "refused"


@dataclass(frozen=True, slots=True)
class Observation:
    """Reaction to one turn of the model.

    `blocks` are appended to the context in order and unchanged. `status` ends the rollout; with None it continues.
    """

    calls: tuple[CallRecord, ...] = ()
    blocks: tuple[str, ...] = ()
    status: str | None = None

    def to_json(self) -> bytes:
        """Return the observation as bytes for the journal."""
        return orjson.dumps(self)

    @classmethod
    def from_json(cls, data: bytes) -> Observation:
        """Read the output of `to_json`."""
        raw = orjson.loads(data)
        calls = ({**call, "sources": tuple(call["sources"])} for call in raw["calls"])
        return cls(tuple(CallRecord(**call) for call in calls), tuple(raw["blocks"]), raw["status"])


class Environment(Protocol):
    """One episode, made per rollout: `reset`, then `step` or `replay` once per turn, then `close`.

    Every turn of the model is given to the environment, also one without a call.
    """

    async def reset(self, question: Question, history: Sequence[CallRecord] = ()) -> list[dict[str, str]]:
        """Begin an episode, after the calls of a prefix if there are any; return the messages before the assistant
        turn.
        """
        ...

    async def step(self, turn: ModelTurn, context: StepContext) -> Observation:
        """React to a turn of the model: continue, answer its calls, or end the rollout with a status.

        Raises ToolError and ModelError only for infrastructure failures, never for a mistake of the agent.
        """
        ...

    def replay(self, observation: Observation) -> None:
        """Apply a recorded observation without running a tool."""
        ...

    async def close(self) -> None:
        """Release the resources of the episode; called exactly once, also after errors."""
        ...


class Ledger:
    """Counts of the calls of one rollout: the only source for limits and metrics. They are never read from the text."""

    def __init__(self, calls: Iterable[CallRecord] = ()) -> None:
        self.requested: Counter[str] = Counter()
        self.executed: Counter[str] = Counter()
        self.failed = 0
        for call in calls:
            self.add(call)

    def add(self, call: CallRecord) -> None:
        """Count one call."""
        self.requested[call.tool] += 1
        self.executed[call.tool] += call.executed
        self.failed += call.status in FAILED_STATUSES

    def refused(self, tool: str) -> int:
        """Return the number of calls of a tool that were over a limit."""
        return self.requested[tool] - self.executed[tool]


def opening_messages(settings: EnvironmentSettings, question: Question) -> list[dict[str, str]]:
    """Return the messages before the assistant turn: the system message, if there is one, and the question."""
    system = settings.system_text_of(question.format)
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": question.user_message}]


class ToolEnvironment:
    """Environment with tools and limits. All rollouts share the tools; each has a ledger of its own."""

    def __init__(self, settings: EnvironmentSettings, tools: Mapping[str, Tool], *, additional_calls: int = 0) -> None:
        self._settings = settings
        self._tools = tools
        self._additional = additional_calls
        self._ledger = Ledger()
        self._question = ""
        self._route: str | None = None

    async def reset(self, question: Question, history: Sequence[CallRecord] = ()) -> list[dict[str, str]]:
        """Load the calls of a prefix; return the system message (if any) and the question."""
        self._ledger = Ledger(history)
        self._question = question.user_message
        self._route = question.search
        return opening_messages(self._settings, question)

    async def step(self, turn: ModelTurn, context: StepContext) -> Observation:
        """Run the call that ends the turn, refuse it, or end the rollout."""
        if turn.ended != "stop":
            return self._unmarked(turn)
        dialect = self._settings.dialect
        call = parse_call(turn.text, dialect)
        if call is None:
            observation = Observation(status="answered" if is_answer(turn.text, dialect) else "no_answer")
        elif (limit := self._limit_message(call.tool)) is not None:
            observation = self._refuse(call, turn.number, limit)
        else:
            log = context.log or (turn.text,)
            told = CallContext(self._question, log, context.seed, context.budget_s, self._route)
            outcome = await self._tools[call.tool].call(call.argument, deadline=context.deadline, context=told)
            observation = self._executed(call, turn.number, outcome)
        self.replay(observation)
        return observation

    def _unmarked(self, turn: ModelTurn) -> Observation:
        """React to a turn without a call or an answer."""
        if turn.ended in ("filtered", "context_full", "budget"):
            return Observation(status=turn.ended)
        if self._settings.on_unmarked == "continue" and not turn.is_empty:
            return Observation()
        return Observation(status="length" if turn.ended == "length" else "no_answer")

    def replay(self, observation: Observation) -> None:
        """Count the calls of an observation."""
        for call in observation.calls:
            self._ledger.add(call)

    async def close(self) -> None:
        """Do nothing; an episode holds no resources."""

    def _limit_message(self, tool: str) -> str | None:
        """Return the message of the limit that rules out one more call; None if the call is allowed."""
        limit = self._settings.call_limit(tool, self._additional)
        if limit == 0 or tool not in self._tools:
            return f"The {tool} tool is not available here."
        if self._ledger.executed[tool] >= limit:
            return f"The limit of {tool} calls ({limit}) is reached; this call was not run."
        total = self._settings.total_limit(self._additional)
        if total is not None and self._ledger.executed.total() >= total:
            return f"The limit of tool calls ({total}) is reached; this call was not run."
        return None

    def _refuse(self, call: ParsedCall, turn: int, reason: str) -> Observation:
        on_limit = self._settings.on_limit
        # With `notice`, the second refused call of a tool ends the rollout.
        ends = on_limit == "stop" or (on_limit == "notice" and self._ledger.refused(call.tool) >= 1)
        notice = "" if ends or on_limit == "silent" else f"{reason} Go on without it."
        record = CallRecord(call.tool, call.argument, "refused", turn, notice)
        return Observation((record,), (self._block(notice),) if notice else (), "limit" if ends else None)

    def _executed(self, call: ParsedCall, turn: int, outcome: ToolOutcome) -> Observation:
        text = _well_formed(outcome.text)
        record = CallRecord(
            call.tool,
            call.argument,
            outcome.status,
            turn,
            text,
            outcome.seconds,
            outcome.cached,
            outcome.note,
            outcome.prompt_tokens,
            outcome.completion_tokens,
            outcome.sources,
        )
        return Observation((record,), (self._block(text),))

    def _block(self, text: str) -> str:
        return result_block(text, self._settings.dialect, spaced=self._settings.result_format == "spaced")


def _well_formed(text: str) -> str:
    """Replace lone surrogates, which can be neither sent nor stored, with U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
