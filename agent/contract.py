"""Define the contract between the rollout engine and an environment: tasks, turns, observations, calls and episodes.

Every turn of the model goes to the episode, with the reason why it ended; the episode decides what the turn was and
answers with messages, calls and possibly the end of the rollout. Normative: docs/behaviour/environments.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import orjson

from treadle.agent.call_cache import CallCache, NullCache
from treadle.agent.tools.outcome import OutcomeStatus
from treadle.agent.tools.schema import ToolSchema

FAILED_STATUSES = frozenset({"error", "timeout", "invalid", "empty"})
"""Outcomes that count as failed calls. A refused call does not run and is counted separately."""


DEFAULT_ENVIRONMENT = "default"
"""Name, in rows and shares, of the environment of the table `[environment]`; others are named under `environments`."""
TASK_COLUMNS = (
    "question_key", "dataset", "domain", "question", "choices", "format", "scorer", "search", "environment",
)  # fmt: skip
"""Columns of `questions` that a `Task` is built from, without those hidden from the model."""
HIDDEN_COLUMNS = ("answers", "payload")
"""Columns of `questions` that no prompt of the model may contain."""


@dataclass(frozen=True, slots=True)
class Task:
    """Task that an episode is reset with: one row of the `questions` table.

    `answers` and `payload` are hidden: only environments, scorers and roles that declare it may read them. They are
    empty if the row was read without them.
    """

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
    environment: str = DEFAULT_ENVIRONMENT
    """Name of the task's environment: that of a table under `environments`, or `default`."""
    answers: tuple[str, ...] = field(default=(), repr=False)
    payload: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Task:
        """Build a task from a row with `TASK_COLUMNS`; other columns and format, scorer, search and environment
        may be missing.
        """
        return cls(
            row["question_key"],
            row["question"],
            tuple(row["choices"]),
            row["dataset"],
            row["domain"],
            row.get("format"),
            row.get("scorer"),
            row.get("search"),
            row.get("environment", DEFAULT_ENVIRONMENT),
            tuple(row.get("answers") or ()),
            orjson.loads(row.get("payload") or "{}"),
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
class Call:
    """One call that the model requested.

    Attributes:
        id: Unique in the rollout, such as `t3.search_0`: turn, tool, and number among the turn's calls of that tool.
        tool: Name of the tool.
        arguments: Arguments by name, JSON-able.
        error: What is wrong with the call, for the model, if it could not be read.
    """

    id: str
    tool: str
    arguments: Mapping[str, Any]
    error: str = ""

    @property
    def text(self) -> str:
        """The argument as text: the value itself if it is the only one and a string, else all arguments as JSON."""
        if len(self.arguments) == 1:
            (value,) = self.arguments.values()
            if isinstance(value, str):
                return value
        return orjson.dumps(self.arguments, option=orjson.OPT_SORT_KEYS).decode()


def call_id(turn: int, tool: str, number: int) -> str:
    """Return the id of a call: `number` counts the calls of this tool in the turn, from 0."""
    return f"t{turn}.{tool}_{number}"


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One turn of the model.

    Attributes:
        text: Text of the model since the last message, or since the last stop marker that the episode reacted to.
        number: Number of the turn, from 0.
        ended: Why it stopped.
        is_empty: Whether the turn added nothing to the text.
        calls: The calls in it, in their order.
    """

    text: str
    number: int
    ended: TurnEnd
    is_empty: bool = False
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class StepContext:
    """What the reaction to a turn may depend on besides the turn.

    Attributes:
        deadline: Time of the work clock (`treadle.core.work_clock`) by which the episode must have reacted.
        log: The assistant turn so far, in pieces; if empty, tools get the text of this turn alone.
        seed: Seed of random draws.
        budget_s: Seconds that calls may run, not counting any wait before that; see `CallContext`.
        num_left_out: Number of the episode's first messages that a trim has left out of the model's context.
    """

    deadline: float
    log: Sequence[str] = ()
    seed: int = 0
    budget_s: float | None = None
    num_left_out: int = 0


@dataclass(frozen=True, slots=True)
class CallRecord:
    """Ledger entry: one call, its outcome, and the number of its turn.

    `text` is the tool's own text. `note`, tokens and `sources` are those of the tool's outcome. `started_s` counts from
    the start of the first call of the turn.
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
    id: str = ""
    started_s: float = 0.0

    @property
    def executed(self) -> bool:
        """Whether the tool ran."""
        return self.status != "refused"


Role = Literal["block", "user", "tool", "system"]
"""Role of what the environment writes; see `Message`."""


@dataclass(frozen=True, slots=True)
class Message:
    """What the environment writes.

    Attributes:
        text: The text. In a `block` it is the whole block, markers included.
        role: `block` continues the assistant's turn, between two pieces of model text; the others end it and are
            messages of the conversation.
        call: Id of the call that a message of role `tool` answers.
    """

    text: str
    role: Role = "user"
    call: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """Reaction to one turn of the model.

    Attributes:
        calls: Ledger entries of the turn's calls.
        messages: Appended to the context, in order.
        status: Ends the rollout; with None it continues.
        reward: Reward of this turn; None if it has none.
        truncated: Whether the rollout ends before its task does, for example at a limit of the environment.
        tools: Tools that the model may call from now on, in addition to those it knows.
    """

    calls: tuple[CallRecord, ...] = ()
    messages: tuple[Message, ...] = ()
    status: str | None = None
    reward: float | None = None
    truncated: bool = False
    tools: tuple[ToolSchema, ...] = ()

    @property
    def follows_from_turn(self) -> bool:
        """Whether the observation can be computed again from the turn alone; it is then not journaled."""
        return not (self.calls or self.messages or self.tools) and self.reward is None

    def to_json(self) -> bytes:
        """Return the observation as bytes for the journal."""
        return orjson.dumps(self)

    @classmethod
    def from_json(cls, data: bytes) -> Observation:
        """Read the output of `to_json`."""
        raw = orjson.loads(data)
        calls = ({**call, "sources": tuple(call["sources"])} for call in raw["calls"])
        messages = tuple(Message(**message) for message in raw["messages"])
        records = tuple(CallRecord(**call) for call in calls)
        tools = tuple([ToolSchema(**tool) for tool in raw["tools"]])
        return cls(records, messages, raw["status"], raw["reward"], raw["truncated"], tools)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of an episode that is known only from its live state.

    Attributes:
        reward: Reward of the whole episode; None if it is unknown (never 0 for that).
        success: Whether the task is solved; None if unknown.
        parts: Named parts of the reward.
    """

    reward: float | None = None
    success: bool | None = None
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InitialState:
    """What an episode begins with: the messages before the first turn, which end with a user message, and its tools."""

    messages: Sequence[Mapping[str, str]]
    tools: Sequence[ToolSchema] = ()


@dataclass(frozen=True, slots=True)
class EpisodeOptions:
    """What an episode may depend on besides its task.

    Attributes:
        history: Calls of the prefix that the rollout continues; empty without a prefix.
        hint: Text that the engine adds to the last initial message; it is cut from training prompts.
        additional_calls: Number of calls that are allowed beyond each limit on calls.
        seed: Seed of the rollout.
        group_seed: Seed that all rollouts of a task share.
        cache: Durable cache of the rollout, for answers of models that the episode asks.
        added_tokens: Spellings of all tokens that the policy's tokenizer matches as a whole.
        trains_on_hint: Whether training prompts keep the hint.
    """

    history: Sequence[CallRecord] = ()
    hint: str = ""
    additional_calls: int = 0
    seed: int = 0
    group_seed: int = 0
    cache: CallCache = field(default_factory=NullCache)
    added_tokens: frozenset[str] = frozenset()
    trains_on_hint: bool = False


Resume = Literal["replay", "reenact", "restart"]
"""How an interrupted episode resumes: `replay` applies the journaled observations; `reenact` acts the journaled turns
again on a new episode and compares; `restart` begins again under another seed."""


class Episode(Protocol):
    """One rollout's side of the environment: `reset`, then `step` or `replay` once per turn, then `close`.

    Every turn of the model is given to the episode, also one without a call.
    """

    async def reset(self, task: Task, options: EpisodeOptions) -> InitialState:
        """Begin the episode; return the messages before the first turn of the model."""
        ...

    async def step(self, turn: ModelTurn, context: StepContext) -> Observation:
        """React to a turn of the model: continue, answer its calls, or end the rollout with a status.

        Raises ToolError and ModelError only for infrastructure failures, never for a mistake of the agent.
        """
        ...

    async def replay(self, turn: ModelTurn, observation: Observation, context: StepContext) -> None:
        """Restore the state after a journaled observation, as the episode's `Resume` mode requires.

        Raises EpisodeDiverged if that is not possible; the rollout then begins again.
        """
        ...

    async def outcome(self) -> Outcome | None:
        """Return the result of the ended episode that only its live state shows; None if there is none."""
        ...

    async def close(self) -> None:
        """Release the resources of the episode; called exactly once, also after errors."""
        ...


class EpisodeDiverged(Exception):
    """A resumed episode did not react as recorded."""


class Ledger:
    """Counts of the calls of one rollout: the only source for limits and metrics. Counts are never read from text."""

    def __init__(self, calls: Iterable[CallRecord] = ()) -> None:
        self.requested: Counter[str] = Counter()
        self.executed: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        for call in calls:
            self.add(call)

    def add(self, call: CallRecord) -> None:
        """Count one call."""
        self.requested[call.tool] += 1
        self.executed[call.tool] += call.executed
        self.failed[call.tool] += call.status in FAILED_STATUSES

    def refused(self, tool: str) -> int:
        """Return the number of calls of a tool that were over a limit."""
        return self.requested[tool] - self.executed[tool]
