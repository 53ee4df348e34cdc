"""Find the problems of finished rollouts in their stored tables: counts first, texts only if there is a problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson
import pyarrow as pa

from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.core.errors import TreadleError
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.text_arrays import one_of
from treadle.environments.diagnosis.causes import causes_of, problems_of
from treadle.environments.diagnosis.diagnosis import Diagnosis, Example, cut_end, cut_start
from treadle.environments.diagnosis.facts import ENDED, FAILED, Facts, marks_of
from treadle.environments.mixture import environments_of
from treadle.environments.settings import DEFAULT_TYPE

_MAX_READ = 200
"""Rollouts of a group whose texts are read for causes."""
_NUM_EXAMPLES = 3
_LIGHT = (
    "rollout_key", "question_key", "dataset", "environment", "status", "truncated", "calls_requested",
    "calls_executed", "failed_calls",
)  # fmt: skip
_TEXTS = ("rollout_key", "question_key", "status", "segments", "tool_calls", "first_messages")
_SUMS = ("truncated", "calls_requested", "calls_executed", "failed_calls")


def diagnoses_of(record: StageRecord, run: Run) -> list[Diagnosis]:
    """Return the problems of the rollouts of a record; empty if there are none or its tables are gone."""
    try:
        return list(_diagnoses(record, run))
    except (TreadleError, KeyError):
        return []  # Deleted tables, or those of another version: there is nothing to tell.


def _diagnoses(record: StageRecord, run: Run) -> Iterator[Diagnosis]:
    batches = list(run.rows(record.outputs["rollouts"]).batches(_LIGHT))
    if not batches:
        return
    table = pa.Table.from_batches(batches)
    groups = {name: _where(table, "dataset", (name,)) for name in table["dataset"].unique().to_pylist()}
    told: set[str] = set()
    for dataset, rows in {"": table, **(groups if len(groups) > 1 else {})}.items():
        facts = _counts(record, rows)
        for problem in problems_of(facts):
            if problem.name in told:
                continue
            told |= {problem.name} if not dataset else set()
            yield _diagnosis(record, run, dataset, rows, problem.name)


def _where(rows: pa.Table, column: str, values: Iterable[str], *, invert: bool = False) -> pa.Table:
    """Return the rows whose value in a column is one of these; with `invert` the others."""
    import pyarrow.compute as pc

    mask = one_of(values)(rows[column])
    return rows.filter(pc.invert(mask) if invert else mask)


def _counts(record: StageRecord, rows: pa.Table, **more: Any) -> Facts:
    """Return the facts of a group that need no texts."""
    settings, statuses = record.settings, Counter(rows["status"].to_pylist())
    own = _where(rows, "status", (FAILED,), invert=True)
    sums = {name: int(sum(own[name].to_pylist())) for name in _SUMS}
    tables = environments_of(settings)
    tools, dialects = set[str](), set[str]()
    for name in rows["environment"].unique().to_pylist():
        offered, dialect = _asked_of(tables.get(name, {}))
        tools |= set(offered)
        dialects.add(dialect)
    model = settings.get("model", {})
    return Facts(
        statuses=dict(statuses.most_common()),
        num_truncated=sums["truncated"],
        num_calls=sums["calls_requested"],
        num_executed=sums["calls_executed"],
        num_failed_calls=sums["failed_calls"],
        tools=tuple(sorted(tools)),
        dialect=dialects.pop() if len(dialects) == 1 else "",  # type: ignore[arg-type]
        is_chatml=not settings.get("tokenizer_digest") and model.get("api") != "chat" and not model.get("server"),
        max_tokens=settings.get("options", {}).get("sampling", {}).get("max_tokens"),
        **more,
    )


def _asked_of(environment: Mapping[str, Any]) -> tuple[list[str], str]:
    """Return the tools of an environment that may be called, and its dialect."""
    offered = [name for name, tool in environment.get("tools", {}).items() if tool.get("max_calls") != 0]
    if environment.get("type", DEFAULT_TYPE) != DEFAULT_TYPE:
        return offered, ""
    for name in ("python", "search"):
        tool = environment.get(name) or {}
        if tool.get("enabled") and tool.get("max_calls") != 0:
            offered.append(name)
    is_native = environment.get("dialect") == "functions" or bool(environment.get("tools"))
    return offered, "functions" if is_native else "tags"


def _diagnosis(record: StageRecord, run: Run, dataset: str, rows: pa.Table, name: str) -> Diagnosis:
    """Return the diagnosis of a problem, with causes and examples from the texts of rollouts that have it."""
    chosen = _where(rows, "status", (FAILED, *(ENDED if name == "no_answer" else ())), invert=True)
    keys = chosen["rollout_key"].slice(0, _MAX_READ).to_pylist()
    reader = run.rows(record.outputs["rollouts"])
    batches = reader.matching("rollout_key", one_of(keys), _TEXTS)
    read = [row for batch in batches for row in batch.to_pylist()]
    offered, marks, unknown = set(_counts(record, rows).tools), Counter[str](), Counter[str]()
    for row in read:
        marks.update(marks_of(_model_text(row)))
        unknown.update(call["tool"] for call in orjson.loads(row["tool_calls"]) if call["status"] == "invalid")
    strange = tuple(tool for tool, _ in unknown.most_common() if tool not in offered)
    facts = _counts(record, rows, num_read=len(read), marks=marks, unknown_tools=strange)
    problem = next(one for one in problems_of(facts) if one.name == name)
    shown = read[:_NUM_EXAMPLES]
    questions = _questions(record, run, [row["question_key"] for row in shown])
    examples = tuple(
        Example(
            row["rollout_key"],
            cut_start(questions.get(row["question_key"], "")),
            row["status"],
            cut_end(_model_text(row)),
        )
        for row in shown
    )
    return Diagnosis(
        address=record.address,
        model=record.settings.get("model_name", ""),
        dataset=dataset,
        problem=name,
        summary=problem.sentence(facts),
        endings=facts.statuses,
        asked=_asked(facts, shown),
        causes=tuple(causes_of(problem, facts)),
        examples=examples,
    )


def _model_text(row: Mapping[str, Any]) -> str:
    return "".join(one["text"] for one in orjson.loads(row["segments"]) if one["kind"] not in SYSTEM_KINDS)


def _asked(facts: Facts, rows: list[dict[str, Any]]) -> str:
    """Return what the model was asked to write; of other environments the beginning of their first message."""
    tools = ", ".join(facts.tools)
    if facts.dialect == "tags":
        calls = "".join(f", a call within <{tool}> and </{tool}>" for tool in facts.tools)
        return rf"the answer in \boxed{{}} within <answer> and </answer>{calls}."
    if facts.dialect == "functions":
        return rf"the answer in \boxed{{}}, calls in the model's own form ({tools or 'no tools'})."
    messages = orjson.loads(rows[0]["first_messages"] or "[]") if rows else []
    return cut_start(messages[0]["content"]) if messages else ""


def _questions(record: StageRecord, run: Run, keys: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for ref in record.inputs.get("questions", ()):
        reader = run.rows(ref.artifact)
        for batch in reader.matching("question_key", one_of(keys), ("question",)):
            found |= {row["question_key"]: row["question"] for row in batch.to_pylist()}
    return found
