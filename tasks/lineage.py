"""Where a row comes from: the way from a rollout back to the row of the user's file, and on to its verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from treadle.core.errors import DataError
from treadle.core.runs import Run
from treadle.core.stage import Address, Rows

_UNKNOWN = "no {what} begins with {key!r} in this run; `treadle status` lists what is finished"


@dataclass(frozen=True, slots=True)
class FoundRollout:
    """A rollout with all that belongs to it."""

    address: Address
    rollout: dict[str, Any]
    question: dict[str, Any]
    score: dict[str, Any] | None
    segments: list[dict[str, Any]]
    tool_calls: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        rollout = {**self.rollout, "segments": self.segments, "tool_calls": self.tool_calls}
        return {"instance": str(self.address), "rollout": rollout, "question": self.question, "score": self.score}


@dataclass(frozen=True, slots=True)
class LineageStep:
    """One step of the way: a row of a table, or the artifact that holds it."""

    label: str
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {"label": self.label, **self.facts}


def find_rollout(run: Run, key: str) -> FoundRollout:
    """Find a rollout by its key or an unambiguous beginning; raises DataError."""
    full_key = _full_key(run, "rollouts", "rollout_key", key)
    if full_key is None:
        raise DataError(_UNKNOWN.format(what="rollout", key=key))
    address, row = next(_rows(run, "rollouts", "rollout_key", full_key))
    _, question = next(_rows(run, "questions", "question_key", row["question_key"]))
    scores = [score for _, score in _rows(run, "scores", "rollout_key", full_key)]
    return FoundRollout(
        address=address,
        rollout=row,
        question=question,
        score=scores[0] if scores else None,
        segments=orjson.loads(row["segments"]),
        tool_calls=orjson.loads(row["tool_calls"]),
    )


def trace_back(run: Run, key: str) -> list[LineageStep]:
    """The way of a rollout or a question, from its source on; raises DataError for an unknown key."""
    if _full_key(run, "rollouts", "rollout_key", key) is not None:
        found = find_rollout(run, key)
        return [*_question_steps(run, found.question), *_rollout_steps(run, found)]
    question_key = _full_key(run, "questions", "question_key", key)
    if question_key is None:
        raise DataError(_UNKNOWN.format(what="rollout or question", key=key))
    _, question = next(_rows(run, "questions", "question_key", question_key))
    return [
        *_question_steps(run, question),
        *(
            LineageStep(f"rollout {row['rollout_key']} by {address}: {row['status']}", {"rollout": row["rollout_key"]})
            for address, row in _rows(run, "rollouts", "question_key", question_key)
        ),
    ]


def _question_steps(run: Run, question: dict[str, Any]) -> list[LineageStep]:
    source = {"file": question["source_file"], "row": question["source_row"]}
    return [
        LineageStep(f"source {source['file']}, row {source['row']}", source),
        LineageStep(
            f"question {question['question_key']} ({question['dataset']}, {question['split']}): {question['question']}",
            {"question": question["question_key"], "artifacts": _artifacts(run, "questions")},
        ),
    ]


def _rollout_steps(run: Run, found: FoundRollout) -> list[LineageStep]:
    row = found.rollout
    steps = [LineageStep(f"parent {parent}", {"parent": parent}) for parent in row["parents"]]
    made = f"operator {row['operator']}, round {row['round']}, model {row['model']}, seed {row['seed']}"
    steps.append(
        LineageStep(
            f"rollout {row['rollout_key']} by {found.address} ({made}): {row['status']}",
            {"rollout": row["rollout_key"], "artifacts": _artifacts(run, "rollouts", found.address)},
        )
    )
    if found.score is not None:
        verdict = {True: "correct", False: "wrong", None: "no verdict"}[found.score["correct"]]
        steps.append(LineageStep(f"verdict by {found.score['scorer']}: {verdict}", {"score": found.score}))
    return steps


def _artifacts(run: Run, kind: str, address: Address | None = None) -> list[str]:
    """Digests of the tables of a kind: that of one instance, or of all."""
    records = [record for record in run.records() if address in (None, Address.parse(record.address))]
    return sorted({record.outputs[kind].digest for record in records if kind in record.outputs})


def _full_key(run: Run, kind: str, column: str, prefix: str) -> str | None:
    """The one key that begins so, None if none does; raises DataError for several. Reads only the keys."""
    import pyarrow.compute as pc

    found: set[str] = set()
    for _, table in _tables(run, kind):
        for batch in table.batches([column]):
            found.update(batch[column].filter(pc.starts_with(batch[column], prefix)).to_pylist())
    if len(found) > 1:
        raise DataError(f"{prefix!r} is the beginning of {len(found):,} keys; give more of it, as {min(found)}")
    return found.pop() if found else None


def _rows(run: Run, kind: str, column: str, value: str) -> Iterator[tuple[Address, dict[str, Any]]]:
    """Rows of all tables of a kind with this value, read as a stream."""
    import pyarrow.compute as pc

    for address, table in _tables(run, kind):
        for batch in table.batches():
            for row in batch.filter(pc.equal(batch[column], value)).to_pylist():
                yield address, row


def _tables(run: Run, kind: str) -> Iterator[tuple[Address, Rows]]:
    for record in run.records():
        if kind in record.outputs:
            yield Address.parse(record.address), run.rows(record.outputs[kind])
