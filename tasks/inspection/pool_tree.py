"""Build the pool of one question as a tree: initial rollouts, their edits by operators, and the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.tasks.inspection.rows import rows_with

_TRAJECTORY = (
    "rollout_key", "sample_index", "operator", "round", "parents", "edit_step", "edit_text", "status", "correct",
    "score", "prediction", "judge", "calls_requested", "num_turns", "model", "models", "seed", "usage",
)  # fmt: skip
_EVENT = ("event_index", "round", "operator", "parent", "outcome", "reason", "reply", "error", "rollout_key", "usage")
_COPIED = (
    "round", "operator", "edit_step", "edit_text", "status", "correct", "score", "prediction", "calls_requested",
    "num_turns", "model", "seed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EventWithoutResult:
    """An operator application, or a finding shared by several operators, that produced no trajectory."""

    round: int
    operator: str
    outcome: str
    """One of `found`, `duplicate`, `rejected`, `failed`."""
    reason: str
    reply: str
    """The rejected reply of the model."""
    error: str | None
    duplicate_of: str | None
    """Key of the trajectory that it duplicates."""
    num_tokens: int

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class SftOutcome:
    """Result of a trajectory in `sft_rows`."""

    is_row: bool
    reasons: tuple[str, ...] = ()
    """Codes of all rules that it violates, or why it was not selected."""


@dataclass(frozen=True, slots=True)
class Node:
    """A trajectory, and the edits that were tried on it."""

    key: str
    facts: dict[str, Any]
    """Columns of its row."""
    method: str
    """Method that decided the verdict."""
    usage: dict[str, Any]
    sft_outcome: SftOutcome | None
    """None if `sft_rows` did not read the trajectory."""
    chosen: bool
    edits: list[Node] = field(default_factory=list)
    without_result: list[EventWithoutResult] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Prompt and sampled tokens of all roles that making and judging the trajectory took."""
        return _tokens(self.usage)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        sft_outcome = (
            None
            if self.sft_outcome is None
            else {"row": self.sft_outcome.is_row, "reasons": list(self.sft_outcome.reasons)}
        )
        return {
            "key": self.key,
            **self.facts,
            "method": self.method,
            "usage": self.usage,
            "sft": sft_outcome,
            "chosen": self.chosen,
            "edits": [node.as_dict() for node in self.edits],
            "without_result": [one.as_dict() for one in self.without_result],
        }


@dataclass(frozen=True, slots=True)
class PoolTree:
    """Pool of one question in one instance of `pools`."""

    address: Address
    outcome: dict[str, Any]
    """Row of `pool_questions`, with parsed usage."""
    roots: list[Node]
    without_result: list[EventWithoutResult]
    """Initial rollouts that produced no trajectory."""

    @property
    def label(self) -> str:
        """One-line summary of the pool."""
        row, tokens = self.outcome, _tokens(self.outcome["usage"])
        error = f" ({row['error']})" if row["error"] else ""
        return (
            f"pool by {self.address}: {row['status']}{error}; {row['num_rounds']} rounds, "
            f"{row['num_trajectories']} trajectories, {row['num_correct']} right; {tokens:,} tokens"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        return {
            **self.outcome,
            "trajectories": [node.as_dict() for node in self.roots],
            "without_result": [one.as_dict() for one in self.without_result],
        }


def pool_trees(run: Run, question_key: str, chosen: str | None = None) -> Iterator[PoolTree]:
    """Yield the pool of a question in each instance of `pools` that has one; `chosen`: key of a trajectory to mark."""
    outcomes = dict(rows_with(run, "pool_questions", "question_key", question_key))
    if not outcomes:
        return
    trajectories = _by_address(rows_with(run, "pools", "question_key", question_key, _TRAJECTORY))
    events = _by_address(rows_with(run, "pool_events", "question_key", question_key, _EVENT))
    for address, outcome in outcomes.items():
        outcome = {**outcome, "usage": orjson.loads(outcome["usage"])}
        sft_outcomes = _sft_outcomes(run, question_key, address.iteration)
        roots, without_result = _build_tree(
            trajectories.get(address, []), events.get(address, []), sft_outcomes, chosen
        )
        yield PoolTree(address, outcome, roots, without_result)


def _build_tree(
    rows: list[dict[str, Any]], events: list[dict[str, Any]], sft_outcomes: Mapping[str, SftOutcome], chosen: str | None
) -> tuple[list[Node], list[EventWithoutResult]]:
    nodes: dict[str, Node] = {}
    roots: list[Node] = []
    without_result: list[EventWithoutResult] = []
    for row in sorted(rows, key=lambda row: row["sample_index"]):
        key = row["rollout_key"]
        facts = {name: row[name] for name in _COPIED} | {"models": orjson.loads(row["models"])}
        method = orjson.loads(row["judge"])["method"]
        node = Node(key, facts, method, orjson.loads(row["usage"]), sft_outcomes.get(key), key == chosen)
        parent = next((nodes[one] for one in row["parents"] if one in nodes), None)
        (parent.edits if parent else roots).append(node)
        nodes[key] = node
    for event in sorted(events, key=lambda event: event["event_index"]):
        if event["outcome"] != "produced":
            parent = nodes.get(event["parent"])
            (parent.without_result if parent else without_result).append(_event_without_result(event))
    return roots, without_result


def _event_without_result(event: Mapping[str, Any]) -> EventWithoutResult:
    names = ("round", "operator", "outcome", "reason", "reply", "error")
    return EventWithoutResult(
        **{name: event[name] for name in names},
        duplicate_of=event["rollout_key"],
        num_tokens=_tokens(orjson.loads(event["usage"])),
    )


def _sft_outcomes(run: Run, question_key: str, iteration: int) -> dict[str, SftOutcome]:
    """Return trajectory key -> its result in `sft_rows` of the iteration."""
    columns = ("rollout_key", "reason", "reasons")
    rejected = rows_with(run, "sft_rejections", "question_key", question_key, columns, iteration=iteration)
    sft_outcomes = {
        row["rollout_key"]: SftOutcome(False, tuple(row["reasons"]) or (row["reason"],)) for _, row in rejected
    }
    taken = rows_with(run, "sft_rows", "question_key", question_key, ("rollout_key",), iteration=iteration)
    return sft_outcomes | {row["rollout_key"]: SftOutcome(True) for _, row in taken}


def _by_address(rows: Iterator[tuple[Address, dict[str, Any]]]) -> dict[Address, list[dict[str, Any]]]:
    found: dict[Address, list[dict[str, Any]]] = {}
    for address, row in rows:
        found.setdefault(address, []).append(row)
    return found


def _tokens(usage: Mapping[str, Any]) -> int:
    return sum(used["prompt_tokens"] + used["completion_tokens"] for used in usage.values())
