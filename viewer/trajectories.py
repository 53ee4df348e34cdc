"""Map the three tables of trajectories (`rollouts`, `pools`, `rl_rollouts`) to the common columns of the list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from treadle.environments.rollouts.measured import CLOCK_SLACK_S
from treadle.viewer.tables import KeyedTable, StoredTable

RIGHT, PARTLY, WRONG, NO_VERDICT, NOT_JUDGED = VERDICTS = (
    "right",
    "partly right",
    "wrong",
    "no verdict",
    "not judged",
)
"""Verdicts. `partly right` (a score between 0 and 1) occurs only for training rollouts, whose only verdict is a score.
"""

TOOL_OUTCOMES = ("no calls", "all calls ran well", "error", "timeout", "invalid", "empty", "refused", "failed")
"""Values of the filter on tool calls. `failed`: the kind of failure is unknown."""
_NO_CALLS, _ALL_WELL, _FAILED = 1, 2, 1 << TOOL_OUTCOMES.index("failed")
_OUTCOME_BITS = {name: 1 << place for place, name in enumerate(TOOL_OUTCOMES) if place >= 2}

FINE_TUNING_ROW = "row"
NOT_SEEN = "not considered"
IN_TRAINING = "policy in training"

FACTS = pa.schema(
    [
        ("key", pa.string()), ("instance", pa.string()), ("question_key", pa.string()), ("dataset", pa.string()),
        ("environment", pa.string()),
        ("model", pa.string()), ("status", pa.string()), ("operator", pa.string()), ("verdict", pa.string()),
        ("sft_outcome", pa.string()), ("tool", pa.list_(pa.string())), ("tools", pa.int32()), ("score", pa.float64()),
        ("calls", pa.int32()), ("failed_calls", pa.int32()), ("tokens", pa.int64()), ("round", pa.int32()),
        ("sample", pa.int32()), ("parent", pa.string()), ("turns", pa.int32()), ("seconds", pa.float64()),
    ]
)  # fmt: skip
"""One row per trajectory. `tool`: names of the tools that it called, empty in `rl_rollouts`; `tools`: outcomes of its
calls as bits; `parent`: a key of the same instance, or empty; `score`: the reward in `rl_rollouts`; `seconds`: of the
rollout, null if they were not measured."""

_AGENT = (
    "rollout_key", "question_key", "dataset", "environment", "model", "sample_index", "operator", "parents", "round",
    "status", "num_turns", "calls_requested", "calls_executed", "tools", "failed_calls", "completion_tokens",
    "tool_calls",
)  # fmt: skip
_TRAINING = (
    "step", "group", "session", "question_key", "dataset", "environment", "reward", "score", "tool_calls",
    "tool_failures", "model_tokens", "finish", "branch_parent", "num_turns",
)  # fmt: skip


class JoinedTables(NamedTuple):
    """Further tables about the trajectories of an instance; None if missing."""

    scores: KeyedTable | None = None
    judgements: KeyedTable | None = None
    sft_rows: KeyedTable | None = None
    sft_rejections: KeyedTable | None = None

    @property
    def digests(self) -> tuple[str | None, ...]:
        """Digest of each table; None for a missing one."""
        return tuple(None if table is None else table.digest for table in self)


@dataclass(frozen=True, slots=True)
class TrajectoryTable:
    """A kind of trajectory table: columns that the list needs, text column, and conversion to `FACTS`."""

    columns: tuple[str, ...]
    text: str
    facts: Callable[[pa.Table, JoinedTables], Mapping[str, Any]]


LOGGED = ("rollout_key", "seconds", "model_seconds", "tool_seconds")
"""Columns of `rollout_telemetry` that the list needs."""


def facts_of(
    kind: TrajectoryTable, table: pa.Table, instance: str, joined: JoinedTables, log: pa.Table | None = None
) -> pa.Table:
    """Convert the rows of a table of trajectories to `FACTS`; `log` has the columns LOGGED."""
    columns = {"instance": pa.repeat(instance, table.num_rows), **kind.facts(table, joined)}
    columns["seconds"] = pa.nulls(table.num_rows, pa.float64()) if log is None else _seconds(columns["key"], log)
    return pa.table({name: columns[name] for name in FACTS.names}).cast(FACTS)


def _seconds(keys: pa.ChunkedArray, log: pa.Table) -> pa.ChunkedArray:
    """Return the duration of each rollout; null if it was not measured."""
    parts = pc.add(log["model_seconds"], log["tool_seconds"])
    known = log.filter(pc.less_equal(parts, pc.add(log["seconds"], pa.array([CLOCK_SLACK_S])[0])))
    return known["seconds"].take(pc.index_in(keys, known["rollout_key"].combine_chunks()))


def _rollouts(table: pa.Table, joined: JoinedTables) -> Mapping[str, Any]:
    facts, scores = _made_by_agent(table), joined.scores
    if scores is None:
        return facts | {"verdict": _all(NOT_JUDGED, table), "score": pa.nulls(len(table), pa.float64())}
    places = pc.index_in(table["rollout_key"], scores.keys)
    correct = scores.facts["correct"].take(places)
    verdict = pc.if_else(pc.is_valid(places), _verdict(correct), NOT_JUDGED)
    return facts | {"verdict": verdict, "score": scores.facts["score"].take(places)}


def _pools(table: pa.Table, joined: JoinedTables) -> Mapping[str, Any]:
    sft_outcome = pa.nulls(len(table), pa.string())
    if joined.sft_rejections is not None:
        rejected = joined.sft_rejections
        sft_outcome = rejected.facts["reason"].take(pc.index_in(table["rollout_key"], rejected.keys))
    if joined.sft_rows is not None:
        taken = pc.is_in(table["rollout_key"], joined.sft_rows.keys)
        sft_outcome = pc.if_else(taken, FINE_TUNING_ROW, sft_outcome)
        sft_outcome = pc.fill_null(sft_outcome, NOT_SEEN)
    more = {
        "verdict": _verdict(table["correct"]),
        "score": table["score"],
        "sft_outcome": pc.fill_null(sft_outcome, ""),
    }
    return _made_by_agent(table) | more


def _made_by_agent(table: pa.Table) -> dict[str, Any]:
    failed = table["failed_calls"].to_numpy()
    refused = table["calls_requested"].to_numpy() > table["calls_executed"].to_numpy()
    bits = np.where(table["calls_requested"].to_numpy() == 0, _NO_CALLS, _ALL_WELL).astype(np.int32)
    told = np.flatnonzero((failed > 0) | refused)
    ledgers = table["tool_calls"].take(pa.array(told)).to_pylist()
    bits[told] = [_outcome_bits(ledger) for ledger in ledgers]
    return {
        "key": table["rollout_key"], "question_key": table["question_key"], "dataset": table["dataset"],
        "environment": table["environment"], "model": table["model"], "status": table["status"],
        "operator": table["operator"],
        "sft_outcome": _all("", table), "tool": _tool_names(table["tools"]),
        "tools": bits, "calls": table["calls_requested"], "failed_calls": table["failed_calls"],
        "tokens": table["completion_tokens"], "round": table["round"], "sample": table["sample_index"],
        "turns": table["num_turns"],
        "parent": pc.binary_join(pc.list_slice(table["parents"], 0, 1), ""),
    }  # fmt: skip


def _tool_names(tools: pa.ChunkedArray) -> pa.ListArray:
    """Return for each row of the column `tools` the list of tool names in it."""
    column = tools.combine_chunks()
    return pa.ListArray.from_arrays(column.offsets, column.values.field("tool"))


def _outcome_bits(ledger: str) -> int:
    bits = 0
    for call in orjson.loads(ledger):
        bits |= _OUTCOME_BITS.get(call["status"], 0)
    return bits or _FAILED


def _training(table: pa.Table, joined: JoinedTables) -> Mapping[str, Any]:
    step, session, parent = (pc.cast(table[name], pa.string()) for name in ("step", "session", "branch_parent"))
    calls, failed = table["tool_calls"].to_numpy(), table["tool_failures"].to_numpy()
    bits = np.where(calls == 0, _NO_CALLS, np.where(failed > 0, _FAILED, _ALL_WELL)).astype(np.int32)
    score = table["score"]
    verdict = pc.case_when(
        pc.make_struct(pc.is_null(score), pc.greater_equal(score, 1.0), pc.greater(score, 0.0)),
        NO_VERDICT, RIGHT, PARTLY, WRONG,
    )  # fmt: skip
    return {
        "key": pc.binary_join_element_wise(step, session, table["group"], "."),
        "question_key": table["question_key"], "dataset": table["dataset"],
        "environment": table["environment"], "model": _all(IN_TRAINING, table),
        "status": table["finish"], "operator": pc.if_else(pc.is_valid(parent), "branch", "rollout"),
        "verdict": verdict, "sft_outcome": _all("", table), "tool": pa.array([[]] * len(table), pa.list_(pa.string())),
        "tools": bits, "score": table["reward"],
        "calls": table["tool_calls"], "failed_calls": table["tool_failures"],
        "tokens": table["model_tokens"], "round": table["step"],
        "sample": table["session"], "turns": table["num_turns"],
        "parent": pc.fill_null(pc.binary_join_element_wise(step, parent, table["group"], "."), ""),
    }  # fmt: skip


def _verdict(correct: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.if_else(correct, RIGHT, WRONG), NO_VERDICT)


def _all(value: str, table: pa.Table) -> pa.Array:
    return pa.repeat(value, table.num_rows)


KINDS: Mapping[str, TrajectoryTable] = {
    "rollouts": TrajectoryTable(_AGENT, "text", _rollouts),
    "pools": TrajectoryTable((*_AGENT, "correct", "score"), "text", _pools),
    "rl_rollouts": TrajectoryTable(_TRAINING, "output", _training),
}


@dataclass(frozen=True, slots=True)
class InstancePart:
    """Trajectories of one instance."""

    instance: str
    environments: Mapping[str, str]
    """Name of each environment that it used -> its type."""
    kind_name: str
    kind: TrajectoryTable
    table: StoredTable
    facts: pa.Table
    joined: JoinedTables

    def environment_type(self, name: str) -> str:
        """Return the type of an environment, or its name if the instance did not use it."""
        return self.environments.get(name, name)

    @property
    def digests(self) -> tuple[str | None, ...]:
        """Digests of all tables that the part was built from."""
        return (self.table.reader.digest, *self.joined.digests)


@dataclass(frozen=True, slots=True)
class QuestionTables:
    """Lookup of questions by key. Short previews of their texts are in memory, the rest is read from storage."""

    tables: Sequence[KeyedTable] = ()
    previews: dict[str, str] = field(default_factory=dict)

    def row(self, key: str) -> dict[str, Any] | None:
        """Return the row of a question, or None if the key is unknown. Raise ArtifactError if it cannot be read."""
        return self._columns(
            key, ("question", "answers", "choices", "dataset", "domain", "split", "source_file", "source_row")
        )

    def payload(self, key: str) -> dict[str, Any]:
        """Return the hidden payload of a question; empty without one. Raise ArtifactError if it cannot be read."""
        row = self._columns(key, ("payload",))
        payload: dict[str, Any] = orjson.loads(row["payload"] or "{}") if row is not None else {}
        return payload

    def _columns(self, key: str, names: Sequence[str]) -> dict[str, Any] | None:
        found = (table.row(key, names) for table in self.tables)
        return next((row for row in found if row is not None), None)
