"""Join rollouts with everything known about them into one table for analysis, as a stream.

One row per rollout: question, gold answers, prediction, verdict, calls by tool, tokens and seconds. Questions are held
in memory; of the other tables, a row group is. Token ids are never read.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from treadle.core.errors import DataError, RunError
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY
from treadle.tasks.analysis.run_tables import ASKED, asked_of, batches_of, records_with, scored_of

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
    "tokens_per_turn": (pa.list_(pa.int64()), "sampled tokens of each turn; null if it was not measured"),
    "seconds": (pa.float64(), "wall time in the last attempt; null if it was not measured"),
    "model_seconds": (pa.float64(), "waiting for the model"),
    "tool_seconds": (pa.float64(), "in tools"),
    "seconds_per_turn": (pa.list_(pa.float64()), "seconds of each turn, of the model and in tools; null as above"),
}
"""Column -> its type and meaning."""
SCHEMA = pa.schema([pa.field(name, kind, metadata={"doc": doc}) for name, (kind, doc) in COLUMNS.items()])
_SAME = {"gold": "answers", "right": "correct", "num_calls": "calls_executed", "num_failed_calls": "failed_calls",
         "calls": "tools"}  # fmt: skip
"""Column -> its name in `questions`, `scores` or `rollouts`, if that differs."""
_ROLLOUT = (
    "rollout_key", "model", "dataset", "domain", "environment", "sample_index", "question_key", "status", "truncated",
    "text", "num_turns", "calls_executed", "failed_calls", "tools", "prompt_tokens", "completion_tokens",
)  # fmt: skip
_VERDICT = ("rollout_key", "prediction", "correct", "score", "scorer")
_MEASURED = ("rollout_key", "seconds", "model_seconds", "tool_seconds", "turns")
_NO_ROW: Mapping[str, Any] = {}


def trajectory_batches(run: Run, *, model: str | None = None, iteration: int | None = None) -> Iterator[pa.RecordBatch]:
    """Yield one row per rollout with the columns of `COLUMNS`, in batches; a reused result is read once.

    Verdicts are null if `scores` has not finished, measured times if there is no telemetry. Raises RunError if
    no rollouts have finished, or no rollouts of this model, DataError if measured times cannot be read.
    """
    records = records_with(run, "rollouts", iteration)
    if model is not None:
        records = _records_of(run, records, model)
    for record in records:
        joiner = _Joiner(run, record)
        for batch in batches_of(run, record, "rollouts", _ROLLOUT):
            rows = joiner.joined(batch.to_pylist())
            if chosen := [row for row in rows if model in (None, row["model"])]:
                yield pa.RecordBatch.from_pylist(chosen, schema=SCHEMA)
        joiner.close()


def _records_of(run: Run, records: Sequence[StageRecord], model: str) -> list[StageRecord]:
    """Return the results with rollouts of a model; raise RunError if there is none."""
    models = {
        record.address: {
            name
            for _, group in run.rows(record.outputs["rollouts"]).row_groups(["model"])
            for name in group["model"].unique().to_pylist()
        }
        for record in records
    }
    if not (found := [record for record in records if model in models[record.address]]):
        known = ", ".join(dict.fromkeys(name for names in models.values() for name in sorted(names)))
        raise RunError(f"run {run.run_id} has no rollouts of {model!r}; there are those of {known}")
    return found


class _Joiner:
    """Joiner of the rollouts of one instance with their questions, verdicts and measured times."""

    def __init__(self, run: Run, record: StageRecord) -> None:
        self._address = record.address
        self._questions = asked_of(run, record)
        self._places = {key: place for place, key in enumerate(self._questions["question_key"].to_pylist())}
        scored = scored_of(run, record)
        verdicts = batches_of(run, scored, "scores", _VERDICT) if scored is not None else ()
        self._verdicts = FollowingRows(verdicts, f"scores of {record.address}")
        self._times = FollowingRows(_measured(run, record), f"times of {record.address}")

    def joined(self, rollouts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows of the joined table for these rollouts; call it in the order of the `rollouts` table."""
        keys = [row["rollout_key"] for row in rollouts]
        places = pa.array([self._places.get(row["question_key"]) for row in rollouts], pa.int64())
        asked = self._questions.select(ASKED).take(places).to_pylist()
        verdicts, times = self._verdicts.take(keys), self._times.take(keys)
        return [
            self._row({**question, **verdicts.get(key, _NO_ROW), **row}, times.get(key, _NO_ROW))
            for key, question, row in zip(keys, asked, rollouts, strict=True)
        ]

    def close(self) -> None:
        """Raise DataError if rows that belonged to earlier rollouts turn up at the end."""
        self._verdicts.close()
        self._times.close()

    def _row(self, known: Mapping[str, Any], times: Mapping[str, Any]) -> dict[str, Any]:
        row = {name: known.get(_SAME.get(name, name), times.get(name)) for name in COLUMNS}
        row["instance"] = self._address
        if (turns := times.get("turns")) is not None:
            row["tokens_per_turn"] = [turn["completion_tokens"] for turn in turns]
            row["seconds_per_turn"] = [turn["model_seconds"] + turn["tool_seconds"] for turn in turns]
        return row


class FollowingRows:
    """Rows about rollouts, in the order of the rollouts, read only as far as requested.

    Some rollouts may have none. At most one batch is held.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], name: str) -> None:
        self._batches = iter(batches)
        self._name = name
        self._waiting: dict[str, dict[str, Any]] = {}
        self._without: set[str] = set()

    @property
    def num_held(self) -> int:
        """Number of rows that were read and not yet returned."""
        return len(self._waiting)

    def take(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return rollout key -> row for the next rollouts, which have these keys; a rollout may have no row.

        Raises DataError if the rows are in another order: one belongs to a rollout that an earlier call asked for.
        """
        wanted = set(keys)
        found = {key: self._waiting.pop(key) for key in wanted & self._waiting.keys()}
        # A row that is still held belongs to a later rollout, so no further rows of the requested rollouts follow.
        while len(found) < len(wanted) and not self._waiting and (batch := next(self._batches, None)) is not None:
            self._read(batch, wanted, found)
        self._without |= wanted - found.keys()
        return found

    def close(self) -> None:
        """Read the remaining rows; raise DataError if one belongs to a rollout that `take` has returned no row for."""
        for batch in self._batches:
            self._read(batch, (), {})
            self._waiting.clear()

    def _read(self, batch: pa.RecordBatch, wanted: Container[str], found: dict[str, dict[str, Any]]) -> None:
        for row in batch.to_pylist():
            key = row["rollout_key"]
            if key in self._without:
                raise DataError(f"{self._name}: rollout {key} is not in its place; rerun the stage that wrote them")
            (found if key in wanted else self._waiting)[key] = row


def _measured(run: Run, record: StageRecord) -> Iterator[pa.RecordBatch]:
    """Yield the measured times of the rollouts of a result; nothing if the telemetry file no longer exists."""
    import pyarrow.parquet as pq

    key = record.telemetry.get(ROLLOUT_TELEMETRY.kind)
    if key is None or not run.storage.exists(key):
        return
    try:
        with run.storage.open(key) as file:
            parquet = pq.ParquetFile(file, pre_buffer=False)
            yield from parquet.iter_batches(1_024, columns=list(_MEASURED), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{key} of run {run.run_id} cannot be read: {error}; delete it to go without") from error
