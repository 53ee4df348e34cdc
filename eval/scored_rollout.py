"""What the figures of evaluation need of one rollout and its verdict."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.eval.conciseness import Votes, is_redundant


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRollout:
    """One row of `scores`."""

    question_key: str
    dataset: str
    domain: str
    """math, qa or choice: of the question."""
    status: str
    is_valid_answer: bool
    scorer: str
    """Who decided P: a rule, the judge, or the status where the rollout did not end with an answer."""
    judge_status: str | None = None
    """Whether the judge's verdict was used; None where no judge was asked."""
    score: float | None
    """P within [0, 1]: 1 or 0 for math and choice, F1 for qa; None without a verdict."""
    correct: bool | None
    """None exactly where `score` is."""
    em: float
    acc: float
    f1: float
    f1_legacy: float
    """With punctuation kept, as published for ET-Agent."""
    calls_requested: int
    """T: what the agent asked for, run or refused."""
    calls_executed: int
    failed_calls: int
    """Wrong: calls with status error, timeout, invalid or empty; a refused call is none of these."""
    python_calls: int
    search_calls: int
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int | None
    """L: tokens of the trajectory without tool results, by the evaluated model's tokenizer; None without one."""
    output_chars: int
    """Characters of the trajectory without tool results."""
    votes: Votes | None = None
    """On a redundant call; None where no judge was asked."""
    opinions: tuple[tuple[str, bool | None], ...] = ()
    """Judges asked about the answer, by name, and their verdicts; None where nothing can be read."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ScoredRollout:
        """From a row with `COLUMNS`."""
        votes = None
        if row["votes_yes"] is not None:
            votes = Votes(row["votes_yes"], row["votes_no"], row["votes_abstained"])
        fields = {name: row[name] for name in _FIELDS}
        # Many rollouts have few such texts among them: each is kept once.
        fields |= {name: sys.intern(fields[name]) for name in _REPEATED}
        return cls(**fields, votes=votes, opinions=_opinions(row["judges"]))

    @property
    def has_known_tokens(self) -> bool:
        """Whether its tokens were counted; those of a rollout that was imported were not: it has text, and none."""
        return self.prompt_tokens > 0 or not self.output_chars

    def kinds(self) -> Iterator[str]:
        """What it is counted among, as <what>:<which>."""
        yield f"status:{self.status}"
        yield f"scorer:{self.scorer}"
        if self.judge_status is not None:
            yield f"judge_status:{self.judge_status}"
        if self.votes is not None and self.calls_requested:
            yield f"votes:{_VERDICTS[is_redundant(self.votes)]}"
        tools = ("none", "python", "search", "both")
        yield f"tools_used:{tools[(self.python_calls > 0) + 2 * (self.search_calls > 0)]}"


def _opinions(judges: str) -> tuple[tuple[str, bool | None], ...]:
    """Names and verdicts from the column `judges`."""
    said = {} if judges == "{}" else orjson.loads(judges)
    return tuple((sys.intern(name), said[name]["verdict"]) for name in sorted(said))


_VERDICTS = {True: "redundant", False: "concise", None: "undecided"}
_FIELDS = tuple(name for name in ScoredRollout.__dataclass_fields__ if name not in ("votes", "opinions"))
_REPEATED = ("question_key", "dataset", "domain", "status", "scorer")
_VOTES = ("votes_yes", "votes_no", "votes_abstained")
COLUMNS = (*_FIELDS, *_VOTES, "judges")
"""Columns of `scores` that a rollout is made from."""
