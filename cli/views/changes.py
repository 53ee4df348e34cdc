"""Render the difference between an edited trajectory and its parent for a terminal: `-` removed, `+` added."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.text import Text

from treadle.core.untrusted.sanitize import one_line, sanitize
from treadle.viewer.trajectory_changes import ChangedSegment, TrajectoryChanges, folded

_MARKS = {"removed": ("- ", "red"), "added": ("+ ", "green")}


def changes_view(changes: TrajectoryChanges, parent: dict[str, Any]) -> Group:
    """Render the changes: segments as in the parent in one line, removed and added ones in full."""
    key = one_line(parent["rollout_key"])
    lines: list[Text] = []
    if changes.num_steps:
        steps = "step 1" if changes.num_steps == 1 else f"steps 1-{changes.num_steps}"
        lines.append(Text(f"  {steps} as in {key}", style="dim"))
    for side, pieces in folded(changes.pieces):
        if side == "same":
            kinds = ", ".join(piece.kind for piece in pieces)
            lines.append(Text(one_line(f"{kinds} as in {key}"), style="dim"))
            lines[-1].pad_left(2)
        else:
            lines += [_marked(piece) for piece in pieces]
    if not changes.pieces:
        lines.append(Text("  no changes", style="dim"))
    return Group(*lines, Text())


def _marked(piece: ChangedSegment) -> Text:
    """Render a segment with its mark on each line, leaving out the prefix that its counterpart shares."""
    mark, style = _MARKS[piece.side]
    text = sanitize(piece.text[piece.shared_chars :])
    if piece.shared_chars:
        text = f"… {text.lstrip()}" if text.strip() else "… (only this shared beginning)"
    return Text("\n".join(mark + line for line in text.splitlines() or [""]), style=style)
