"""Show runs, tables and trajectories in notebooks.

Texts of models and data sets are escaped, with control characters as escapes, and are neither typeset as formulas nor
turned into links. There are no scripts. What is shown is bounded, however large the data is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from html import escape
from typing import Any

import pyarrow as pa

from treadle.core.untrusted.sanitize import one_line, sanitize
from treadle.tasks.inspection.lineage import FoundRollout
from treadle.viewer.segments import ShownSegment, pieces_of

_EDGE_ROWS = 5
"""Number of rows that are shown from the start, and from the end, of a long table."""
_MAX_COLUMNS = 20
_CELL_CHARS = 60
_CELL_ITEMS = 8
_MAX_LINES = 100
"""Maximum number of instances of a run that are shown."""
_MAX_PIECES = 200
_MAX_CHARS = 60_000
"""Characters of a trajectory that are shown in full; later pieces are shown by their first line."""
# Jupyter typesets text between dollar signs as TeX, unless a class forbids it.
_FRAME = '<div class="treadle tex2jax_ignore mathjax_ignore">'
_PRE = '<pre style="white-space: pre-wrap; margin: 0 0 0.6em 0; text-align: left">'
_LEFT = ' style="text-align: left"'


class RunTrajectory(FoundRollout):
    """A trajectory with its question and verdict; a notebook shows its text, piece by piece."""

    __slots__ = ()

    @classmethod
    def of(cls, found: FoundRollout) -> RunTrajectory:
        """Return the same trajectory in the form for notebooks."""
        return cls(**{field.name: getattr(found, field.name) for field in fields(FoundRollout)})

    def __repr__(self) -> str:
        key = self.rollout["rollout_key"]
        return f"<trajectory {key} of {self.address}: {self.rollout['status']}, {_verdict(self)}>"

    def _repr_html_(self) -> str:
        return trajectory_html(self)


def table_html(rows: pa.Table) -> str:
    """Return the first and last rows of a table; cells are cut, and of many columns only the first are shown."""
    names = rows.column_names[:_MAX_COLUMNS]
    is_long = rows.num_rows > 2 * _EDGE_ROWS
    head = rows.select(names).slice(0, _EDGE_ROWS if is_long else rows.num_rows).to_pylist()
    tail = rows.select(names).slice(rows.num_rows - _EDGE_ROWS).to_pylist() if is_long else []
    numbers = [*range(len(head)), *range(rows.num_rows - len(tail), rows.num_rows)]
    lines = [[str(number), *map(_cell, row.values())] for number, row in zip(numbers, [*head, *tail], strict=True)]
    if tail:
        lines.insert(len(head), ["…"] * (len(names) + 1))
    size = f"{rows.num_rows:,} rows, {rows.num_columns:,} columns"
    if hidden := rows.num_columns - len(names):
        size += f" ({hidden:,} not shown: {one_line(', '.join(rows.column_names[_MAX_COLUMNS:]))})"
    return f"{_FRAME}{_grid(['', *names], lines)}<p>{escape(size)}</p></div>"


def run_html(name: str, created_at: str, instances: Sequence[tuple[str, str, str]]) -> str:
    """Return the finished instances of a run, given as (address, tables with numbers of rows, end time)."""
    shown = instances[:_MAX_LINES]
    more = f"<p>and {len(instances) - len(shown):,} more</p>" if len(instances) > len(shown) else ""
    body = _grid(("instance", "tables", "finished"), shown) if shown else "<p>Nothing has finished yet.</p>"
    title = f"<p><b>run {escape(one_line(name))}</b>, created {escape(one_line(created_at))}</p>"
    return f"{_FRAME}{title}{body}{more}</div>"


def trajectory_html(found: FoundRollout) -> str:
    """Return a trajectory: its question, gold answers and verdict, then its pieces, long tool results folded."""
    facts = [
        ("instance", str(found.address)),
        ("model", found.rollout["model"]),
        ("question", found.question["question"]),
        ("gold answers", "; ".join(found.question["answers"])),
        ("status", found.rollout["status"]),
        ("prediction", str(_judged(found).get("prediction") or "none")),
        ("verdict", _verdict(found)),
    ]
    head = "".join(f"<tr><th{_LEFT}>{name}</th><td{_LEFT}>{_text(value, 2_000)}</td></tr>" for name, value in facts)
    pieces = pieces_of(found.segments, found.tool_calls)
    left, parts = _MAX_CHARS, []
    for piece in pieces[:_MAX_PIECES]:
        left -= len(piece.text) + len(piece.tail)
        parts.append(_piece(piece, is_brief=left < 0))
    if hidden := len(found.segments) - len(parts):
        parts.append(f"<p>and {hidden:,} more pieces</p>")
    title = f"<p><b>trajectory {escape(one_line(found.rollout['rollout_key']))}</b></p>"
    return f"{_FRAME}{title}<table>{head}</table>{''.join(parts)}</div>"


def _piece(piece: ShownSegment, *, is_brief: bool) -> str:
    label = ", ".join(filter(None, (piece.tool or piece.kind, piece.outcome, piece.note)))
    name = f"<b>{_text(label, 200)}</b>"
    if is_brief:
        return f"<div>{name} {_text(piece.preview, 200)}</div>"
    cut = f"\n… {piece.num_chars - len(piece.text) - len(piece.tail):,} characters left out …\n" if piece.tail else ""
    text = f"{_PRE}{escape(sanitize(piece.text + cut + piece.tail))}</pre>"
    if piece.is_folded:
        return f"<details><summary>{name} {_text(piece.preview, 200)}</summary>{text}</details>"
    return f"<div>{name}{text}</div>"


def _judged(found: FoundRollout) -> dict[str, Any]:
    """Return the row with the verdict: trajectories of pools hold their own."""
    return found.rollout if found.is_of_pool else found.score or {}


def _verdict(found: FoundRollout) -> str:
    return {True: "right", False: "wrong"}.get(_judged(found).get("correct"), "no verdict")  # type: ignore[arg-type]


def _grid(header: Iterable[str], lines: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th{_LEFT}>{_text(name, _CELL_CHARS)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td{_LEFT}>{_text(cell, 400)}</td>" for cell in line) + "</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    """Return a value of a table on one line, cut; nothing for null."""
    if isinstance(value, list):
        shown = ", ".join(_cell(item) for item in value[:_CELL_ITEMS])
        text = f"[{shown}{', …' if len(value) > _CELL_ITEMS else ''}]"
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{name}: {_cell(item)}" for name, item in value.items()) + "}"
    elif isinstance(value, float):
        text = f"{value:.6g}"
    else:
        text = "" if value is None else str(value)
    return text if len(text) <= _CELL_CHARS else text[: _CELL_CHARS - 1] + "…"


def _text(value: str, max_chars: int) -> str:
    """Return a text on one line, cut and escaped."""
    text = one_line(value[: 4 * max_chars])
    return escape(text if len(text) <= max_chars else text[: max_chars - 1] + "…")
