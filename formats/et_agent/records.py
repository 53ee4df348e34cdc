"""Read and validate rows of other programs' files: pools of a data flywheel and direct rollouts.

Three shapes are recognized by their fields: flywheel records of the program published with arXiv 2601.06860
(`evolve_trajectories_buffer`), its direct rollouts (`rollout_outputs`), and pools with an object per trajectory
(`pool`). Documented in docs/guides/export.md. Nothing is guessed: a row of another shape, or with inconsistent fields,
is rejected with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from treadle.core.untrusted.input_files import InputRow, read_rows
from treadle.datagen.questions.layouts import RowRejected
from treadle.datagen.questions.rows import check_text

ImportKind = Literal["pools", "rollouts"]

MAX_TRAJECTORIES = 1_000
MAX_CHARS = 1_000_000
"""Most characters of one trajectory."""
IMPORTED = "imported"
INITIAL = "initial"

_OPERATORS = frozenset(
    ("initial", "rerollout", "redundant_mod", "global_refine", "self_correct", "hint_step", "hint_tail", "reflect")
)
_STATUSES = {
    "answer": "answered",
    "answered": "answered",
    "empty": "no_answer",
    "no_answer": "no_answer",
    "limit": "limit",
    "max_turns": "max_turns",
    "context_full": "context_full",
    "length": "length",
    "timeout": "timeout",
    "budget": "budget",
    "llm_failed": "failed",
    "error": "failed",
    "failed": "failed",
}
"""Status words of other programs -> status of a rollout."""
_OUTCOMES = frozenset(("ok", "empty", "error", "timeout", "invalid", "refused"))
_END = "</answer>"
_NOTES = ("Timeout", "Error")


@dataclass(frozen=True, slots=True)
class ImportTrajectory:
    """One trajectory of a row."""

    text: str
    status: str
    """Status, as in the table `rollouts`."""
    operator: str
    """Operator that made the trajectory; `imported` if the file names no known one."""
    prediction: str = ""
    correct: bool | None = None
    score: float | None = None
    round: int = 0
    parent: int | None = None
    """Index of the parent trajectory in the row; None without a parent."""
    edit_step: int | None = None
    edit_text: str = ""
    outcomes: tuple[tuple[str, str], ...] | None = None
    """(tool, status) of its calls; None if they must be inferred from the text."""
    num_executed: tuple[int, int] | None = None
    """Number of searches and Python calls that ran; None if the row has no counts."""


@dataclass(frozen=True, slots=True)
class ImportRecord:
    """One row: a question and its trajectories."""

    number: int
    """1-based: line number in JSON Lines, position in other formats."""
    fields: dict[str, Any]
    """`question`, `answer` and `source`, to be parsed like a row of questions."""
    system: str
    """System message of the agent; empty if the row has none."""
    trajectories: tuple[ImportTrajectory, ...]


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A rejected row, and why."""

    number: int
    reason: str
    detail: str


def read_records(path: Path, kind: ImportKind) -> Iterator[ImportRecord | RejectedRow]:
    """Yield the parsed or rejected rows of a JSON, JSON Lines or parquet file; raise DataError as `read_rows` does."""
    for row in read_rows(path):
        try:
            yield _record(row, kind)
        except RowRejected as error:
            yield RejectedRow(row.number, error.reason, str(error))
        except RecursionError:
            yield RejectedRow(row.number, "bad_json", "nested too deeply")


def _record(row: InputRow, kind: ImportKind) -> ImportRecord:
    if row.value is None:
        raise RowRejected(row.reason, row.detail)
    fields = row.value
    shape = next((name for name in _SHAPES[kind] if fields.get(name) is not None), None)
    if shape is None:
        raise RowRejected("missing_field", f"the row holds no {kind}; expected one of {', '.join(_SHAPES[kind])}")
    trajectories = tuple(_SHAPES[kind][shape](fields))
    if not trajectories:
        raise RowRejected("no_trajectories", _why_empty(fields))
    if len(trajectories) > MAX_TRAJECTORIES:
        raise RowRejected("too_long", f"{len(trajectories):,} trajectories; at most {MAX_TRAJECTORIES:,} are allowed")
    return ImportRecord(row.number, _question(fields), _system(fields), trajectories)


def _question(fields: Mapping[str, Any]) -> dict[str, Any]:
    found = {"question": fields.get("question", fields.get("input"))}
    found |= {"answer": fields.get("answers", fields.get("answer")), "source": fields.get("source")}
    missing = [name for name, value in found.items() if value is None]
    if missing:
        raise RowRejected("missing_field", f"the row has no {missing[0]}")
    return found


def _system(fields: Mapping[str, Any]) -> str:
    value = fields.get("instruction")
    return value if isinstance(value, str) else ""


def _why_empty(fields: Mapping[str, Any]) -> str:
    """Return why a row has no trajectories, according to the other program."""
    for name in ("prediction", "initial_output", "status"):
        value = fields.get(name)
        if isinstance(value, str) and (value.startswith(_NOTES) or name == "status"):
            return f"no trajectories; its {name} says {value[:80]!r}"
    return "the list of trajectories is empty"


def _evolved(fields: Mapping[str, Any]) -> Iterator[ImportTrajectory]:
    """Yield the pool of a flywheel record with predictions and verdicts; its first item is the initial rollout."""
    texts = _list(fields, "evolve_trajectories_buffer")
    predictions = _aligned_list(fields, "evolve_predictions", texts)
    verdicts = _aligned_list(fields, "evolve_trajectories_llm_judge_results", texts)
    for place, (value, prediction, verdict) in enumerate(zip(texts, predictions, verdicts, strict=True)):
        where = f"trajectory {place + 1}"
        text = _text(value, where)
        yield ImportTrajectory(
            text=text,
            status=_status_of(text),
            operator=INITIAL if place == 0 else IMPORTED,
            prediction=_text(prediction, f"the prediction of {where}"),
            correct=_verdict(verdict, where),
            round=0 if place == 0 else 1,
        )


def _sampled(fields: Mapping[str, Any]) -> Iterator[ImportTrajectory]:
    """Yield the rollouts of a record of direct rollouts. An empty one stays at its position, as `failed`."""
    texts = _list(fields, "rollout_outputs")
    counts = _aligned_list(fields, "tool_counts", texts)
    ends = _aligned_list(fields, "finish", texts) if fields.get("finish") is not None else [None] * len(texts)
    for place, (value, count, end) in enumerate(zip(texts, counts, ends, strict=True)):
        where = f"rollout {place + 1}"
        text = _text(value, where)
        yield ImportTrajectory(
            text=text,
            status=_status_of(text) if end is None else _known(_STATUSES, end, f"the finish of {where}"),
            operator=IMPORTED,
            num_executed=_counts(count, where),
        )


def _pooled(fields: Mapping[str, Any]) -> Iterator[ImportTrajectory]:
    """Yield the trajectories of a pool with an object per trajectory."""
    entries = _list(fields, "pool")
    places: dict[Any, int] = {}
    for place, entry in enumerate(entries):
        where = f"trajectory {place + 1}"
        if not isinstance(entry, Mapping):
            raise RowRejected("wrong_type", f"{where} is of type {type(entry).__name__}, not an object")
        text = _text(entry.get("trajectory"), where)
        end, parent, operator = entry.get("finish_reason"), entry.get("parent_tid"), entry.get("operator")
        if parent is not None and (not isinstance(parent, str | int) or parent not in places):
            raise RowRejected("bad_parent", f"the parent of {where} is not an earlier trajectory")
        yield ImportTrajectory(
            text=text,
            status=_status_of(text) if end is None else _known(_STATUSES, end, f"the finish_reason of {where}"),
            operator=operator if operator in _OPERATORS else IMPORTED,
            prediction=_text(entry.get("prediction", ""), f"the prediction of {where}"),
            correct=_verdict(entry.get("correct"), where),
            score=_score(entry.get("score"), where),
            round=_non_negative_int(entry.get("round", 0), f"the round of {where}"),
            parent=None if parent is None else places[parent],
            edit_step=None
            if (step := entry.get("edit_step")) is None
            else _non_negative_int(step, f"the edit_step of {where}"),
            edit_text=_text(entry.get("edit_text") or "", f"the edit_text of {where}"),
            outcomes=_outcomes(entry.get("tool_calls"), where),
        )
        if isinstance(tid := entry.get("tid"), str | int):
            places[tid] = place


_SHAPES: Mapping[ImportKind, Mapping[str, Callable[[Mapping[str, Any]], Iterator[ImportTrajectory]]]] = {
    "pools": {"evolve_trajectories_buffer": _evolved, "pool": _pooled},
    "rollouts": {"rollout_outputs": _sampled},
}


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list):
        raise RowRejected("wrong_type", f"{name} is of type {type(value).__name__}, not a list")
    return value


def _aligned_list(fields: Mapping[str, Any], name: str, texts: Sequence[Any]) -> list[Any]:
    """Return a list with one entry per trajectory; raise RowRejected if its length differs."""
    if fields.get(name) is None:
        raise RowRejected("missing_field", f"the row has no {name}")
    values = _list(fields, name)
    if len(values) != len(texts):
        raise RowRejected("not_aligned", f"{name} has {len(values):,} entries for {len(texts):,} trajectories")
    return values


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise RowRejected("wrong_type", f"{where} is of type {type(value).__name__}, not text")
    if len(value) > MAX_CHARS:
        raise RowRejected("too_long", f"{where} has {len(value):,} characters; at most {MAX_CHARS:,} are allowed")
    check_text(value)
    return value.strip()


def _status_of(text: str) -> str:
    """Return the status of a rollout that the row does not state: `failed`, `answered` or `no_answer`."""
    if not text:
        return "failed"
    return "answered" if text.endswith(_END) else "no_answer"


def _known(words: Mapping[str, str], value: Any, where: str) -> str:
    if not isinstance(value, str) or value not in words:
        raise RowRejected("bad_value", f"{where} is {str(value)[:40]!r}, not one of {', '.join(words)}")
    return words[value]


def _verdict(value: Any, where: str) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise RowRejected("wrong_type", f"the verdict on {where} is of type {type(value).__name__}, not true or false")
    return value


def _score(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise RowRejected("bad_value", f"the score of {where} is {str(value)[:40]!r}, not a number from 0 to 1")
    return float(value)


def _non_negative_int(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise RowRejected("bad_value", f"{where} is {str(value)[:40]!r}, not a whole number")
    return value


def _counts(value: Any, where: str) -> tuple[int, int]:
    if not isinstance(value, Mapping):
        raise RowRejected("wrong_type", f"the tool_counts of {where} are of type {type(value).__name__}, not an object")
    search, python, total = (
        _non_negative_int(value.get(name), f"{name} of {where}")
        for name in ("search_times", "python_times", "total_times")
    )
    if search + python != total:
        raise RowRejected(
            "bad_value", f"the tool_counts of {where} do not add up: {search} and {python} are not {total}"
        )
    return search, python


def _outcomes(value: Any, where: str) -> tuple[tuple[str, str], ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise RowRejected("wrong_type", f"the tool_calls of {where} are of type {type(value).__name__}, not a list")
    found = []
    for call in value:
        tool, status = (call.get("tool"), call.get("status")) if isinstance(call, Mapping) else (None, None)
        if not isinstance(tool, str) or status not in _OUTCOMES:
            raise RowRejected("bad_value", f"a call of {where} has no tool and status that are known")
        found.append((tool, str(status)))
    return tuple(found)
