"""Join rollouts with all that is known of them into one table for analysis.

One row per rollout: question, gold answers, prediction, verdict, calls by tool, tokens and seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa

from treadle.core.errors import DataError
from treadle.core.runs.run import Run
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY
from treadle.stages.report import telemetry_rows

_TOOL_FIELDS = [("tool", pa.string()), ("requested", pa.int32()), ("executed", pa.int32()), ("failed", pa.int32())]
COLUMNS: Mapping[str, tuple[pa.DataType, str]] = {
    "rollout_key": (pa.string(), "key of the rollout"),
    "instance": (pa.string(), "address of the instance that made it"),
    "model": (pa.string(), "name of the model"),
    "dataset": (pa.string(), "data set of the question"),
    "domain": (pa.string(), "domain of the question"),
    "split": (pa.string(), "train or heldout"),
    "environment": (pa.string(), "name of the environment"),
    "sample_index": (pa.int32(), "number among the rollouts of its question"),
    "question_key": (pa.string(), "key of the question"),
    "question": (pa.string(), "its text"),
    "gold": (pa.list_(pa.string()), "accepted answers"),
    "prediction": (pa.string(), "answer that was read from the trajectory; empty without one"),
    "right": (pa.bool_(), "verdict; null without one"),
    "score": (pa.float64(), "score, or reward"),
    "scorer": (pa.string(), "what decided"),
    "status": (pa.string(), "how the rollout ended"),
    "truncated": (pa.bool_(), "whether a limit ended it"),
    "text": (pa.string(), "the whole trajectory as text"),
    "num_turns": (pa.int32(), "turns of the model"),
    "num_calls": (pa.int32(), "calls that ran"),
    "num_failed_calls": (pa.int32(), "those that failed"),
    "calls": (pa.list_(pa.struct(_TOOL_FIELDS)), "calls by tool"),
    "prompt_tokens": (pa.int64(), "tokens of all prompts"),
    "completion_tokens": (pa.int64(), "sampled tokens"),
    "tokens_per_turn": (pa.list_(pa.int32()), "tokens that the model sampled in each turn; empty in text mode"),
    "seconds": (pa.float64(), "wall time in the last attempt; null if it was not measured"),
    "model_seconds": (pa.float64(), "waiting for the model"),
    "tool_seconds": (pa.float64(), "in tools"),
    "seconds_per_turn": (pa.float64(), "mean wall time of a turn"),
}
"""Column -> its type and meaning."""
SCHEMA = pa.schema([pa.field(name, kind, metadata={"doc": doc}) for name, (kind, doc) in COLUMNS.items()])
_SAME = {"gold": "answers", "right": "correct", "num_calls": "calls_executed", "num_failed_calls": "failed_calls",
         "calls": "tools"}  # fmt: skip
"""Column -> column of rollouts that it is."""
READ = (
    "rollout_key", "instance", "model", "dataset", "domain", "split", "environment", "sample_index", "question_key",
    "question", "answers", "prediction", "correct", "score", "scorer", "status", "truncated", "text", "num_turns",
    "calls_executed", "failed_calls", "tools", "prompt_tokens", "completion_tokens", "samples",
)  # fmt: skip
"""Columns of joined rollouts that are read."""
_MEASURED = ("seconds", "model_seconds", "tool_seconds")


def with_measures(rows: pa.Table, run: Run) -> pa.Table:
    """Return one row per rollout with the columns of `COLUMNS`; `rows` are rollouts with the columns `READ`.

    Raises DataError if measured times cannot be read; without their file they are null.
    """
    measured = dict(_measured(run, frozenset(rows["instance"].unique().to_pylist())))
    batches = [
        pa.RecordBatch.from_pylist([_row(row, measured) for row in batch.to_pylist()], schema=SCHEMA)
        for batch in rows.to_batches(max_chunksize=1_024)
    ]
    return pa.Table.from_batches(batches, schema=SCHEMA)


def _row(rollout: Mapping[str, Any], measured: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    times = measured.get(rollout["rollout_key"], {})
    row = {name: rollout.get(_SAME.get(name, name), times.get(name)) for name in COLUMNS}
    turns = rollout["num_turns"]
    row["seconds_per_turn"] = row["seconds"] / turns if turns and row["seconds"] is not None else None
    row["tokens_per_turn"] = [count for sample in rollout["samples"] for count in _turn_lengths(sample)]
    return row


def _turn_lengths(sample: Mapping[str, Any]) -> Iterator[int]:
    """Yield the number of tokens that the model sampled in each turn; a re-encoded one counts as sampled."""
    starts = [*sample["turn_starts"], len(sample["ids"])]
    for start, end in pairwise(starts):
        yield sum(origin != 0 for origin in sample["origins"][start:end])


def _measured(run: Run, instances: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the times of the rollouts of some instances by their keys; they belong to no artifact."""
    for record in run.records():
        if record.address not in instances:
            continue
        try:
            rows = telemetry_rows(record, run, ROLLOUT_TELEMETRY.kind)
        except (pa.ArrowException, OSError) as error:
            file = record.telemetry[ROLLOUT_TELEMETRY.kind]
            raise DataError(f"{file} of run {run.run_id} cannot be read: {error}; delete it to go without") from error
        for row in rows:
            yield row["rollout_key"], {name: row[name] for name in _MEASURED}
