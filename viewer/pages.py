"""Compute the content of each page, as plain values for its template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from treadle.agent.dialects.base import FRAME
from treadle.core.errors import TreadleError
from treadle.core.runs.run import Run
from treadle.environments.rollouts.tool_counts import counts_text
from treadle.environments.settings import DEFAULT_TYPE
from treadle.environments.stored_settings import environment_label
from treadle.viewer.catalogue import Snapshot
from treadle.viewer.changes.difference import difference
from treadle.viewer.index import FilterValue, SelectionResult, neighbours
from treadle.viewer.reading import LoadedTrajectory, read_segments
from treadle.viewer.segments import pieces_of, timeline_of
from treadle.viewer.selection import FILTERS, PAGE_ROWS, SORTS, Selection
from treadle.viewer.turns import opening_text, trimmed_places, turn_heads
from treadle.viewer.verdicts import STYLES, reward_of, verdict_of
from treadle.web.record.run_entries import RunEntries

_SHOWN_VALUES = 8
_MAX_SHOWN_RELATED = 60
_QUESTION_CHARS = 6000


@dataclass(frozen=True, slots=True)
class ListedTrajectory:
    """Row of the trajectory list."""

    facts: Mapping[str, Any]
    question: str
    """Beginning of the question's text."""
    shows_calls: bool = True
    """Whether the number of calls is shown; False if the environment may have no tools and no call was made."""

    @property
    def style(self) -> str:
        """CSS class of its verdict."""
        return STYLES[self.facts["verdict"]]


class FilterGroup(NamedTuple):
    """Filter with its values."""

    name: str
    heading: str
    shown: list[FilterValue]
    more: list[FilterValue]
    """Less frequent values, collapsed at first."""


TraceBack = Callable[[Run, str], Sequence[Mapping[str, Any]]]
"""Function from a run and the key of a trajectory or question to the steps that made it, from the source on.

The steps are those that `treadle lineage --json` prints. The command line passes this function, because the viewer
cannot import `treadle.tasks`.
"""


def overview(snapshot: Snapshot, selection: Selection) -> dict[str, Any]:
    """Return the values of the list page."""
    found = snapshot.index.find(selection)
    page = min(selection.page, found.num_pages)
    selection = selection.with_only(page=page)
    lines = _lines(snapshot, snapshot.index.page(found, page))
    shows_calls = snapshot.index.has_calls or any(
        _has_tools(snapshot, instance, name) for instance, name in snapshot.index.environments
    )
    return {
        "selection": selection,
        "num_found": len(found.rows),
        "wrong": snapshot.wrong.listed(selection),
        "has_trajectory": lambda instance, key: snapshot.index.number(instance, key) is not None,
        "groups": _groups(found),
        "lines": lines,
        "shows_calls": shows_calls,
        "chosen": [(FILTERS[name], name, value) for name, value in selection.pairs() if name in FILTERS],
        "asked": snapshot.questions.previews.get(selection.question, selection.question),
        "shows_seconds": snapshot.index.has_seconds,
        "sorts": {
            name: heading
            for name, heading in SORTS.items()
            if {"calls": shows_calls, "seconds": snapshot.index.has_seconds}.get(name, True)
        },
        "num_pages": found.num_pages,
        "pages": _page_numbers(page, found.num_pages),
    }


def trajectory(snapshot: Snapshot, one: LoadedTrajectory, selection: Selection) -> dict[str, Any]:
    """Return the values of the page of one trajectory."""
    targets = one.targets
    pieces = pieces_of(one.segments, one.calls, targets, _addresses(snapshot, one))
    heads = turn_heads(one.segments, one.samples, one.row.get("turn_rewards") or (), one.row.get("num_turns") or 0)
    has_frames = any(piece.kind == FRAME for piece in pieces)
    return {
        **frame(snapshot, one, selection),
        "pieces": pieces,
        "heads": heads,
        "trimmed": trimmed_places(one.segments),
        "has_frames": has_frames,
        "opening": opening_text(one.row) if heads else "",
        "num_left_out": len(one.segments) - len(pieces),
        "timeline": timeline_of(piece for piece in pieces if piece.kind != FRAME),
        "verdict": verdict_of(one),
        "reward": reward_of(one),
        "reward_heading": "Reward" if one.kind == "rl_rollouts" or one.row.get("reward") is not None else "Episode",
        "plan": one.plan,
        "facts": _facts(one),
        "edit_text": one.row.get("edit_text", ""),
        "error": one.row.get("error"),
        "sft_row": one.sft_row,
        "has_masks": targets is not None,
        "unmatched_calls": one.calls if one.calls and not any(piece.outcome for piece in pieces) else [],
        **_same_question(snapshot, one),
    }


def changes(snapshot: Snapshot, one: LoadedTrajectory, selection: Selection) -> dict[str, Any]:
    """Return the values of the page with the difference from the parent."""
    parent = read_segments(snapshot, one.facts["instance"], one.facts["parent"]) if one.facts["parent"] else None
    found = difference(parent, one.segments) if parent is not None else None
    return {**frame(snapshot, one, selection), "difference": found, "edit_text": one.row.get("edit_text", "")}


def lineage(trace_back: TraceBack, snapshot: Snapshot, one: LoadedTrajectory, selection: Selection) -> dict[str, Any]:
    """Return the values of the lineage page: steps from the source, and related trajectories of the question."""
    key = one.facts["question_key" if one.kind == "rl_rollouts" else "key"]
    steps: Sequence[Mapping[str, Any]] = ()
    problem = None
    try:
        steps = trace_back(snapshot.run, key)
    except TreadleError as error:  # A table on the way may be damaged; the trajectory itself can still be shown.
        problem = str(error)
    return {**frame(snapshot, one, selection), "steps": steps, "problem": problem, "styles": _PLAIN_STYLES}


def frame(snapshot: Snapshot, one: LoadedTrajectory, selection: Selection) -> dict[str, Any]:
    """Return the values that all pages of a trajectory share."""
    index, found = snapshot.index, snapshot.index.find(selection)
    before, after, place = neighbours(found, one.number)
    if place:
        selection = selection.with_only(page=(place - 1) // PAGE_ROWS + 1)
    instance, parent = one.facts["instance"], one.facts["parent"]
    parents = [number] if parent and (number := index.number(instance, parent)) is not None else []
    return {
        "one": one,
        "problems": list(dict.fromkeys([*snapshot.problems, *one.problems])),
        "wrong": snapshot.wrong.of_trajectory(one.facts),
        "line": _lines(snapshot, [one.facts])[0],
        "question_chars": _QUESTION_CHARS,
        "selection": selection,
        "before": None if before is None else index.rows([before])[0],
        "after": None if after is None else index.rows([after])[0],
        "place": place,
        "num_found": len(found.rows),
        "parents": _lines(snapshot, index.rows(parents)),
        "children": _related_lines(snapshot, index.children(instance, one.facts["key"])),
    }


_PLAIN_STYLES = {True: ("right", "right"), False: ("wrong", "wrong"), None: ("no verdict", "unknown")}


def _groups(found: SelectionResult) -> list[FilterGroup]:
    """Return the filters that have several values or are set."""
    groups = []
    for name, heading in FILTERS.items():
        values = found.values[name]
        chosen = [value for value in values if value.is_chosen]
        if len(values) < 2 and not chosen:
            continue
        shown = [value for place, value in enumerate(values) if place < _SHOWN_VALUES or value.is_chosen]
        groups.append(FilterGroup(name, heading, shown, [value for value in values if value not in shown]))
    return groups


def _lines(snapshot: Snapshot, rows: Sequence[Mapping[str, Any]]) -> list[ListedTrajectory]:
    previews = snapshot.questions.previews
    return [
        ListedTrajectory(
            row,
            previews.get(row["question_key"], ""),
            row["calls"] > 0 or _has_tools(snapshot, row["instance"], row["environment"]),
        )
        for row in rows
    ]


def _has_tools(snapshot: Snapshot, instance: str, environment: str) -> bool:
    """Return whether an environment of an instance is known to have tools."""
    return snapshot.parts[instance].environment_type(environment) == DEFAULT_TYPE


def _related_lines(snapshot: Snapshot, numbers: Sequence[int]) -> dict[str, Any]:
    """Return list lines of the first of these trajectories (given by row numbers), and their total number."""
    return {"num": len(numbers), "lines": _lines(snapshot, snapshot.index.rows(numbers[:_MAX_SHOWN_RELATED]))}


def _same_question(snapshot: Snapshot, one: LoadedTrajectory) -> dict[str, Any]:
    """Return other trajectories of the same question, without the parent and the children."""
    index, instance, question = snapshot.index, one.facts["instance"], one.facts["question_key"]
    near = {one.number, index.number(instance, one.facts["parent"]), *index.children(instance, one.facts["key"])}
    others = [number for number in index.of_question(question).tolist() if number not in near]
    start = index.starts[instance]
    inside = range(start, start + len(snapshot.parts[instance].facts))
    return {
        "siblings": _related_lines(snapshot, [number for number in others if number in inside]),
        "elsewhere": _related_lines(snapshot, [number for number in others if number not in inside]),
        "of_question": Selection(question=question),
    }


def _page_numbers(page: int, num_pages: int) -> list[int]:
    """Return the pages to link to: first, last, and those around the current one; 0 represents a gap."""
    shown = sorted({1, num_pages, *range(max(page - 2, 1), min(page + 2, num_pages) + 1)})
    numbers: list[int] = []
    for number in shown:
        numbers += [0] if numbers and number > numbers[-1] + 1 else []
        numbers.append(number)
    return numbers


def _facts(one: LoadedTrajectory) -> list[tuple[str, str]]:
    """Return the names and values that the page of a trajectory lists, the most important ones first."""
    facts, row = one.facts, one.row
    found: list[tuple[str, Any]] = [
        ("ended", facts["status"].replace("_", " ") + (", truncated" if row.get("truncated") else "")),
        ("turns", facts["turns"]),
        ("seconds", None if facts["seconds"] is None else f"{facts['seconds']:,.2f}"),
        ("calls", _calls(one) if facts["calls"] or one.environment == DEFAULT_TYPE else None),
        ("sampled tokens", facts["tokens"]),
        ("data set", facts["dataset"]),
        ("model", facts["model"]),
        ("made by", facts["instance"]),
        ("operator", _operator(one)),
        ("step" if one.kind == "rl_rollouts" else "sample", facts["round" if one.kind == "rl_rollouts" else "sample"]),
        ("contexts", len(one.samples) if len(one.samples) > 1 else None),
        ("prompt tokens", row.get("prompt_tokens")),
        ("all tokens", row.get("total_tokens")),
        ("branches before", row.get("branch_depth")),
        ("fine-tuning", facts["sft_outcome"].replace("_", " ")),
    ]
    if "usage" in row:
        found += [
            (f"tokens of {role}", f"{used['prompt_tokens']:,} in, {used['completion_tokens']:,} out")
            for role, used in orjson.loads(row["usage"]).items()
        ]
        found += [(f"model as {role}", model) for role, model in orjson.loads(row["models"]).items()]
    found += [
        ("seed", str(row["seed"])),
        ("question", facts["question_key"]),
        ("key", facts["key"]),
        ("environment", " ".join(filter(None, (_environment(one), (row.get("environment_digest") or "")[:12])))),
        ("tokenizer", (row.get("tokenizer_digest") or "")[:12]),
    ]
    shown = (
        (name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in found if value is not None
    )
    return [(name, value) for name, value in shown if value]


def _addresses(snapshot: Snapshot, one: LoadedTrajectory) -> dict[str, str]:
    """Map the keys of web pages that the trajectory's calls used to the URLs of these pages."""
    keys = [key for call in one.calls for key in call.get("sources", ())]
    if not keys:
        return {}
    with RunEntries(snapshot.run) as entries:
        return entries.addresses(keys)


def _environment(one: LoadedTrajectory) -> str:
    return environment_label(one.facts["environment"], one.environment)


def _calls(one: LoadedTrajectory) -> str:
    facts, row = one.facts, one.row
    by_tool = counts_text(row.get("tools", ()))
    parts = [f"{facts['calls']:,}" + (f" ({by_tool})" if by_tool else "")]
    refused = row.get("calls_requested", 0) - row.get("calls_executed", 0)
    parts += [f"{refused:,} refused"] if refused else []
    parts += [f"{facts['failed_calls']:,} failed"] if facts["failed_calls"] else []
    return ", ".join(parts)


def _operator(one: LoadedTrajectory) -> str:
    facts = one.facts
    if one.kind != "pools":
        return str(facts["operator"]).replace("_", " ")
    step = one.row["edit_step"]
    parts = [facts["operator"].replace("_", " ")]
    parts += [f"round {facts['round']:,}"] if facts["round"] else []
    parts += [f"at step {step:,}"] if step is not None else []
    return ", ".join(parts)
