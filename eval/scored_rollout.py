"""Represent one scored rollout with the columns that evaluation figures need, and evaluate its votes."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from treadle.agent.contract import DEFAULT_ENVIRONMENT
from treadle.core.answers.text_match import normalize_math, normalize_text
from treadle.environments.rollouts.tool_counts import OTHERS
from treadle.environments.scorers.scoring import FAILED
from treadle.eval.verdicts import mean_parts


@dataclass(frozen=True, slots=True)
class Votes:
    """Votes of a judge on one rollout: does it contain a redundant or ineffective tool call?"""

    yes: int
    no: int
    abstained: int
    """Number of replies that are missing or cannot be parsed."""


def is_redundant(votes: Votes) -> bool | None:
    """Return the answer given by more than half of all requested votes (such as 6 of 10), or None if there is none.

    Abstentions count in the total, so abstentions and ties can leave the result undecided. Documented in
    docs/behaviour/metrics.md; after ET-Agent (arXiv 2601.06860).
    """
    asked = votes.yes + votes.no + votes.abstained
    if 2 * votes.yes > asked:
        return True
    return False if 2 * votes.no > asked else None


class ToolCalls(NamedTuple):
    """Numbers of calls of one tool in one rollout, as in the column `tools`."""

    tool: str
    requested: int = 0
    executed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRollout:
    """One row of `scores`."""

    question_key: str
    dataset: str
    domain: str
    """Domain of the question: "math", "qa" or "choice"."""
    environment: str = DEFAULT_ENVIRONMENT
    """Name of the environment of the rollout's task."""
    status: str
    is_valid_answer: bool
    scorer: str
    """What decided the score P: a rule, the judge, the environment, or the status if the rollout gave no answer."""
    judge_status: str | None = None
    """Whether the judge's verdict was used; None if no judge was asked."""
    score: float | None
    """P within [0, 1]: 1 or 0 for math and choice, F1 for qa; any number if it is a reward. None without a verdict."""
    is_reward: bool = False
    """Whether the score is a reward."""
    correct: bool | None
    """Whether the answer is right; None exactly if `score` is None."""
    parts: tuple[tuple[str, float], ...] = ()
    """Further figures of the scorer, by name."""
    calls_requested: int
    """T: number of calls that the agent requested, executed or refused."""
    calls_executed: int
    failed_calls: int
    """Wrong: number of calls with status error, timeout, invalid or empty. Refused calls are not counted."""
    tools: tuple[ToolCalls, ...] = ()
    """Numbers of calls by tool, without tools that were not called."""
    has_rare_tools: bool = False
    """Whether this set of tools is used by too few rollouts to be counted separately."""
    num_turns: int = 0
    """Number of generation calls."""
    truncated: bool = False
    """Whether the rollout ended before its task did."""
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int | None
    """L: tokens of the trajectory without tool results, by the evaluated model's tokenizer; None without one."""
    output_chars: int
    """Characters of the trajectory without tool results."""
    sample_index: int = 0
    """Number of the rollout among those of its question, from 0."""
    answer: int = 0
    """Digest of the normalised answer, so that equal answers have equal digests."""
    cost: float | None = None
    """Cost of the rollout in the currency of the prices; None without prices."""
    votes: Votes | None = None
    """Votes on redundant calls; None if no judge was asked."""
    best_of: str | None = None
    """Whether this attempt was picked among those at its question; None if attempts were not compared."""
    judge_verdicts: tuple[tuple[str, bool | None], ...] = ()
    """Judges asked about the answer, by name, with their verdicts; None if the reply cannot be parsed."""
    judge_parts: Mapping[str, float] = field(default_factory=dict)
    """Name of a number that judges give -> its mean over the judges that gave it."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ScoredRollout:
        """Build the rollout from a row with `COLUMNS`."""
        votes = None
        if row["votes_yes"] is not None:
            votes = Votes(row["votes_yes"], row["votes_no"], row["votes_abstained"])
        fields = {name: row[name] for name in _FIELDS}
        # These texts repeat in many rollouts; interning stores each once.
        fields |= {name: sys.intern(fields[name]) for name in _REPEATED}
        tools = _shared(tuple(ToolCalls(**calls) for calls in row["tools"]))
        # Skip parsing in the common case without judges.
        said = {} if row["judges"] == "{}" else orjson.loads(row["judges"])
        return cls(
            **fields,
            parts=_shared_parts(tuple((part["name"], part["value"]) for part in row["parts"])),
            tools=tools,
            answer=_answer(row["prediction"], row["domain"]),
            votes=votes,
            judge_verdicts=_judge_verdicts(said),
            judge_parts=mean_parts(one.get("parts", {}) for one in said.values()),
        )

    def part(self, name: str) -> float | None:
        """Return a part of the score; None if it has no part of this name."""
        return next((value for own, value in self.parts if own == name), None)

    def calls_of(self, tool: str) -> ToolCalls:
        """Return the numbers of calls of a tool, all 0 if it was not called."""
        return next((calls for calls in self.tools if calls.tool == tool), ToolCalls(tool))

    @property
    def tools_used(self) -> str:
        """Names of the tools that were called, joined by `+`; `none` without calls."""
        if self.has_rare_tools:
            return OTHERS
        return "+".join(calls.tool for calls in self.tools) or "none"

    @property
    def has_known_tokens(self) -> bool:
        """True if the tokens were counted; False for an imported rollout, which has text but no token counts."""
        return self.prompt_tokens > 0 or not self.output_chars

    @property
    def response_tokens(self) -> int | None:
        """Number of tokens that the model wrote: L, or without a tokenizer the number of sampled tokens.

        None if neither is known, and for every rollout that infrastructure ended.
        """
        if self.status == FAILED:
            return None
        if self.reasoning_tokens is not None:
            return self.reasoning_tokens
        return self.completion_tokens if self.has_known_tokens else None

    def kinds(self) -> Iterator[str]:
        """Yield the categories of the rollout as `<property>:<value>`."""
        yield f"status:{self.status}"
        yield f"scorer:{self.scorer}"
        if self.judge_status is not None:
            yield f"judge_status:{self.judge_status}"
        if self.votes is not None and self.calls_requested:
            yield f"votes:{_VERDICTS[is_redundant(self.votes)]}"
        if self.is_reward and not self.tools:
            return  # An environment may have no tools.
        yield f"tools_used:{self.tools_used}"


@lru_cache(4096)
def _shared(tools: tuple[ToolCalls, ...]) -> tuple[ToolCalls, ...]:
    """Return the same object for equal counts, to save memory: many rollouts have equal ones."""
    return tools


@lru_cache(4096)
def _shared_parts(parts: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
    """Return the same object for equal parts, to save memory, with interned names."""
    return tuple((sys.intern(name), value) for name, value in parts)


def _judge_verdicts(said: Mapping[str, Any]) -> tuple[tuple[str, bool | None], ...]:
    """Return names and verdicts of judges from the column `judges`."""
    return tuple((sys.intern(name), said[name]["verdict"]) for name in sorted(said))


def _answer(prediction: str, domain: str) -> int:
    """Return a digest of an answer; differences of spelling that the answer's domain ignores do not change it."""
    text = normalize_math(prediction) if domain == "math" else normalize_text(prediction)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


_VERDICTS = {True: "redundant", False: "concise", None: "undecided"}
_COMPUTED = ("tools", "parts", "has_rare_tools", "answer", "cost", "votes", "judge_verdicts", "judge_parts")
_FIELDS = tuple(name for name in ScoredRollout.__dataclass_fields__ if name not in _COMPUTED)
_REPEATED = ("question_key", "dataset", "domain", "environment", "status", "scorer")
_VOTES = ("votes_yes", "votes_no", "votes_abstained")
COLUMNS = (*_FIELDS, "prediction", "tools", "parts", *_VOTES, "judges")
"""Columns of `scores` that `from_row` reads."""
