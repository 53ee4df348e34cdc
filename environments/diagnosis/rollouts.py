"""Find the problems of finished rollouts in their stored tables: counts first, texts only if there is a problem."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from treadle.core.answers.extraction import REASONING, SYSTEM_KINDS
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.text_arrays import one_of
from treadle.environments.diagnosis.causes import ROLLOUT_PROBLEMS
from treadle.environments.diagnosis.diagnosis import Diagnosis, Example, cut_end, cut_start
from treadle.environments.diagnosis.facts import ENDED, FAILED, Facts, marks_of
from treadle.environments.diagnosis.problem import FEW
from treadle.environments.diagnosis.stored import counted_columns, groups_of, questions_of
from treadle.environments.mixture import environments_of
from treadle.environments.settings import DEFAULT_TYPE

_MAX_READ = 200
"""Maximum number of rollouts of a group whose texts are read to find causes."""
_NUM_EXAMPLES = 3
_LIGHT = (
    "rollout_key", "question_key", "dataset", "environment", "status", "truncated", "calls_requested",
    "calls_executed", "failed_calls", "completion_tokens", "tools",
)  # fmt: skip
_TEXTS = ("rollout_key", "question_key", "status", "segments", "tool_calls", "first_messages")
_OF_CALLS = ("failed_calls", "failed_tool", "refused_calls")
"""Names of problems of calls; only rollouts with calls are shown as their examples."""
_RESULTS = ("result", "tool")
"""Kinds of segments with the result of a call."""
_MARKERS = re.compile(r"</?result>")
_SUMS = ("truncated", "calls_requested", "calls_executed", "failed_calls")


def rollout_diagnoses(record: StageRecord, run: Run) -> Iterator[Diagnosis]:
    """Yield the problems of the rollouts of a record. Raise TreadleError or KeyError if its tables cannot be read."""
    if (table := counted_columns(run, record.outputs["rollouts"], _LIGHT)) is None:
        return
    told: set[str] = set()
    for dataset, rows in groups_of(table):
        for problem in ROLLOUT_PROBLEMS.problems_of(_counts(record, rows)):
            if problem.name not in told and (found := _diagnosis(record, run, dataset, rows, problem.name)):
                told |= {problem.name} if not dataset else set()
                yield found


def _counts(record: StageRecord, rows: pa.Table, **more: Any) -> Facts:
    """Return the facts of a group that need no texts."""
    settings, statuses = record.settings, Counter(rows["status"].to_pylist())
    own = rows.filter(pc.invert(one_of((FAILED,))(rows["status"])))
    sums = {name: int(pc.sum(own[name]).as_py() or 0) for name in _SUMS}
    tables = environments_of(settings)
    tools, dialects = set[str](), set[str]()
    for name in pc.unique(rows["environment"]).to_pylist():
        environment = tables.get(name, {})
        offered, dialect = ([], "") if environment is None else _asked_of(environment)
        tools |= set(offered)
        dialects.add(dialect)
    # An import has neither model nor options.
    model, sampling = settings.get("model") or {}, (settings.get("options") or {}).get("sampling") or {}
    return Facts(
        statuses=dict(statuses.most_common()),
        num_truncated=sums["truncated"],
        num_calls=sums["calls_requested"],
        num_executed=sums["calls_executed"],
        num_failed_calls=sums["failed_calls"],
        failed_tools=_failed_tools(own),
        tools=tuple(sorted(tools)),
        dialect=dialects.pop() if len(dialects) == 1 else "",  # type: ignore[arg-type]
        is_chatml=not settings.get("tokenizer_digest") and model.get("api") != "chat" and not model.get("server"),
        max_tokens=sampling.get("max_tokens"),
        temperature=sampling.get("temperature"),
        **{**dict(zip(("num_groups", "num_equal_groups"), _num_groups(own), strict=True)), **more},
    )


def _failed_tools(rows: pa.Table) -> dict[str, int]:
    """Return the tools that ran at least `FEW` times and always failed, with the number of their calls."""
    flat = pc.list_flatten(rows["tools"])
    if not len(flat):  # combining no chunks would import pandas
        return {}
    calls = flat.combine_chunks()
    executed, failed = Counter[str](), Counter[str]()
    # `Table.group_by` would import pandas.
    for tool, num_executed, num_failed in _columns(calls.field, ("tool", "executed", "failed")):
        executed[tool] += num_executed
        failed[tool] += num_failed
    return {tool: count for tool, count in sorted(executed.items()) if count >= FEW and failed[tool] == count}


def _num_groups(rows: pa.Table) -> tuple[int, int]:
    """Count the questions with several rollouts, and those of them whose rollouts agree in status, calls and tokens."""
    sizes, counts = Counter[str](), defaultdict[str, set[tuple[Any, ...]]](set)
    for question, *own in _columns(rows.column, ("question_key", "completion_tokens", "calls_requested", "status")):
        sizes[question] += 1
        counts[question].add(tuple(own))
    alike = [len(counts[question]) == 1 for question, size in sizes.items() if size > 1]
    return len(alike), sum(alike)


def _columns(column: Callable[[str], pa.Array], names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of some columns, row by row."""
    return zip(*(column(name).to_pylist() for name in names), strict=True)


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


def _diagnosis(record: StageRecord, run: Run, dataset: str, rows: pa.Table, name: str) -> Diagnosis | None:
    """Return the diagnosis of a problem, with causes and examples from the texts of rollouts that have it.

    None if the texts show that the problem does not exist.
    """
    chosen = rows.filter(pc.invert(one_of((FAILED,))(rows["status"])))
    if name == "no_answer":
        chosen = chosen.filter(pc.invert(one_of(ENDED)(chosen["status"])))
    if name in _OF_CALLS:
        chosen = chosen.filter(pc.cast(chosen["calls_requested"], pa.bool_()))
    keys = chosen["rollout_key"].slice(0, _MAX_READ).to_pylist()
    reader = run.rows(record.outputs["rollouts"])
    batches = reader.matching("rollout_key", one_of(keys), _TEXTS)
    read = [row for batch in batches for row in batch.to_pylist()]
    counted = _counts(record, rows)
    facts = _counts(record, rows, **_read(read, counted))
    problem = next((one for one in ROLLOUT_PROBLEMS.problems_of(facts) if one.name == name), None)
    if problem is None:
        return None
    shown = read[:_NUM_EXAMPLES]
    questions = questions_of(record, run, [row["question_key"] for row in shown], ("question",))
    examples = tuple(
        Example(
            row["rollout_key"],
            cut_start(questions.get(row["question_key"], {}).get("question", "")),
            row["status"],
            cut_end(_model_text(row)),
        )
        for row in shown
    )
    return Diagnosis(
        address=record.address,
        rollouts=record.address,
        model=record.settings.get("model_name", ""),
        dataset=dataset,
        problem=name,
        summary=problem.sentence(facts),
        endings=facts.statuses,
        asked=_asked(facts, shown),
        causes=tuple(ROLLOUT_PROBLEMS.causes_of(problem, facts)),
        examples=examples,
    )


def _read(rows: Sequence[Mapping[str, Any]], counted: Facts) -> dict[str, Any]:
    """Return the facts that the texts of rollouts show."""
    marks, unknown, texts = Counter[str](), Counter[str](), defaultdict[str, list[str]](list)
    for row in rows:
        text = _model_text(row)
        marks.update(marks_of(text) | ({"open_thought", "only_thought"} if _only_reasons(row) else set()))
        unknown.update(call["tool"] for call in orjson.loads(row["tool_calls"]) if call["status"] == "invalid")
        texts[row["question_key"]].append(text)
    several = [set(same) for same in texts.values() if len(same) > 1]
    has_unlike = any(len(same) > 1 for same in several)
    return {
        "num_read": len(rows),
        "marks": marks,
        "unknown_tools": tuple(tool for tool, _ in unknown.most_common() if tool not in counted.tools),
        "common_error": _common_error(rows, counted.failed_tools),
        "num_equal_groups": 0 if has_unlike else counted.num_equal_groups,
    }


def _common_error(rows: Iterable[Mapping[str, Any]], tools: Mapping[str, int]) -> str:
    """Return the result text of at least three quarters of the failed calls of `tools`; empty if there is none."""
    said = Counter[str]()
    for row in rows:
        calls, segments = orjson.loads(row["tool_calls"]), orjson.loads(row["segments"])
        results = [one["text"] for one in segments if one["kind"] in _RESULTS]
        # If results and calls differ in number, as in dialogues with other messages, they cannot be matched.
        for call, result in zip(calls, results, strict=True) if len(calls) == len(results) else ():
            if call["tool"] in tools and call["status"] not in ("ok", "refused"):
                said[cut_end(_MARKERS.sub(" ", result))] += 1
    text, count = said.most_common(1)[0] if said else ("", 0)
    return text if count >= FEW // 2 and 4 * count >= 3 * said.total() else ""


def _model_text(row: Mapping[str, Any]) -> str:
    return "".join(one["text"] for one in orjson.loads(row["segments"]) if one["kind"] not in SYSTEM_KINDS)


def _only_reasons(row: Mapping[str, Any]) -> bool:
    """Return whether the model's last segment is reasoning that its server returned separately from the text."""
    kinds = [one["kind"] for one in orjson.loads(row["segments"]) if one["kind"] not in SYSTEM_KINDS]
    return bool(kinds) and kinds[-1] == REASONING


def _asked(facts: Facts, rows: list[dict[str, Any]]) -> str:
    """Return what the model was asked to write; if the dialect is unknown, the beginning of the first message."""
    tools = ", ".join(facts.tools)
    if facts.dialect == "tags":
        calls = "".join(f", a call within <{tool}> and </{tool}>" for tool in facts.tools)
        return rf"the answer in \boxed{{}} within <answer> and </answer>{calls}."
    if facts.dialect == "functions":
        return rf"the answer in \boxed{{}}, calls in the model's own form ({tools or 'no tools'})."
    messages = orjson.loads(rows[0]["first_messages"] or "[]") if rows else []
    return cut_start(messages[0]["content"]) if messages else ""
