"""Make experience from rollouts of one task: a summariser writes records, a validator checks each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from treadle.agent.call_cache import CallCache
from treadle.agent.role import RoleModel
from treadle.core.errors import ContextTooLong, DeadlineExceeded
from treadle.core.gather import gather_all
from treadle.core.seeds import derive_seed
from treadle.core.work_clock import timed_work
from treadle.rl.experience.prompts import (
    PlayedRollout,
    read_summary,
    read_valid,
    summary_messages,
    verdict_messages,
)
from treadle.rl.experience.record import Experience
from treadle.rl.experience.settings import AuthorOptions

T = TypeVar("T")

Verdict = Literal["valid", "refused", "no_verdict"]
"""Verdict of the validator on a record; `no_verdict` if no reply could be read."""


@dataclass(frozen=True, slots=True)
class Written:
    """Experience from a batch of rollouts.

    Attributes:
        records: Records with their verdicts, in the order of the reply.
        problem: Why there is no summary: `unreadable`, `too_long` or `timeout`; empty if there is one.
        num_malformed: Items of the summary that are no records, or of a kind that the rollouts cannot support, such as
            a strategy if no rollout succeeded.
        used: Role -> number of prompt tokens and of sampled tokens.
    """

    records: tuple[tuple[Experience, Verdict], ...] = ()
    problem: str = ""
    num_malformed: int = 0
    used: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def valid(self) -> list[Experience]:
        """Records that the validator found valid; only these may enter a pool."""
        return [one for one, verdict in self.records if verdict == "valid"]


class _Usage:
    """Counter of prompt and sampled tokens by role."""

    def __init__(self) -> None:
        self._prompt: Counter[str] = Counter()
        self._sampled: Counter[str] = Counter()

    def count(self, role: str, prompt_tokens: int, completion_tokens: int) -> None:
        """Add the tokens of a reply."""
        self._prompt[role] += prompt_tokens
        self._sampled[role] += completion_tokens

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return role -> number of prompt tokens and of sampled tokens."""
        return {role: (self._prompt[role], self._sampled[role]) for role in sorted(self._prompt)}


@dataclass(frozen=True, slots=True)
class Author:
    """Summariser and validator with their options.

    Attributes:
        seed: Seed that the seeds of all requests derive from.
    """

    summariser: RoleModel
    validator: RoleModel
    options: AuthorOptions
    seed: int

    async def write(
        self, played: Sequence[PlayedRollout], head: Callable[[Mapping[str, Any]], Experience], *, cache: CallCache
    ) -> Written:
        """Return experience from rollouts of one task; each reply is cached before it is used.

        `head` makes a record from an item of the reply, and raises ValueError for an item that is none. Raises
        ModelErrors if a model cannot be reached.
        """
        usage = _Usage()
        with timed_work() as clock:
            requests = _BatchRequests(self, cache, usage, clock.time() + self.options.request_time_s)
            try:
                items = await requests.summary(played)
            except (ContextTooLong, DeadlineExceeded) as error:
                problem = "too_long" if isinstance(error, ContextTooLong) else "timeout"
                return Written(problem=problem, used=usage.totals())
            if items is None:
                return Written(problem="unreadable", used=usage.totals())
            records, num_malformed = _supported(items[: self.options.max_records], played, head)
            verdicts = await gather_all([requests.verdict(*one, played) for one in enumerate(records)])
        pairs = tuple(zip(records, verdicts, strict=True))
        return Written(pairs, "", num_malformed, usage.totals())


@dataclass(frozen=True, slots=True)
class _BatchRequests:
    """Requests about one batch."""

    author: Author
    cache: CallCache
    usage: _Usage
    deadline: float

    async def summary(self, played: Sequence[PlayedRollout]) -> list[dict[str, Any]] | None:
        options = self.author.options
        messages = summary_messages(
            played, max_records=options.max_records, max_message_chars=options.max_message_chars
        )
        return await self._first_readable(self.author.summariser, messages, "summary", read_summary)

    async def verdict(self, number: int, record: Experience, played: Sequence[PlayedRollout]) -> Verdict:
        messages = verdict_messages(record, played, max_message_chars=self.author.options.max_message_chars)
        try:
            found = await self._first_readable(self.author.validator, messages, f"validate_{number}", read_valid)
        except (ContextTooLong, DeadlineExceeded):
            found = None
        return "no_verdict" if found is None else "valid" if found else "refused"

    async def _first_readable(
        self, model: RoleModel, messages: Sequence[Mapping[str, str]], unit: str, read: Callable[[str], T | None]
    ) -> T | None:
        for attempt in range(self.author.options.attempts):
            reply = await model.ask(
                messages,
                cache=self.cache,
                unit=f"{unit}.{attempt}",
                seed=derive_seed(self.author.seed, unit, attempt),
                session="",  # Prompts share no beginning that would keep them on one server.
                deadline=self.deadline,
            )
            self.usage.count(model.role, reply.prompt_tokens, reply.completion_tokens)
            if (found := read(reply.text)) is not None:
                return found
        return None


def _supported(
    items: Sequence[Mapping[str, Any]],
    played: Sequence[PlayedRollout],
    head: Callable[[Mapping[str, Any]], Experience],
) -> tuple[list[Experience], int]:
    """Return the records among the items of a summary, and the number of others.

    Strategies need a success, lessons a failure, and comparisons both.
    """
    has_success, has_failure = (any(one.is_success is wanted for one in played) for wanted in (True, False))
    fits = {"strategy": has_success, "lesson": has_failure, "comparison": has_success and has_failure}
    records = []
    for item in items:
        try:
            record = head(item)
        except ValueError:
            continue
        if fits[record.kind]:
            records.append(record)
    return records, len(items) - len(records)
