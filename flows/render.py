"""What the command line shows: statuses, trajectories, lineage. All model and dataset text is made harmless here."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from treadle.core.records import InstanceStatus
from treadle.tasks.lineage import FoundRollout, LineageStep

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_STATE_STYLES = {"completed": "green", "running": "cyan", "failed": "red", "crashed": "red", "interrupted": "yellow"}
_SEGMENT_STYLES = {"think": "dim", "search": "cyan", "python": "magenta", "result": "yellow", "answer": "bold green"}


def harmless(text: str) -> str:
    """Replace control characters and direction marks by their escapes, so that text cannot drive a terminal."""
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def status_table(run_id: str, statuses: Sequence[InstanceStatus]) -> Table:
    """One line per instance."""
    table = Table(title=f"run {run_id}", title_justify="left")
    for column in ("instance", "state", "rows", "attempts", "last attempt"):
        table.add_column(column, justify="right" if column in ("rows", "attempts") else "left")
    for status in statuses:
        rows = ", ".join(f"{count:,} {kind}" for kind, count in sorted(status.num_rows.items()))
        if not rows and status.num_finished:
            rows = f"{status.num_finished:,} in the journal"
        table.add_row(
            status.address,
            Text(status.state, style=_STATE_STYLES.get(status.state, "")),
            rows,
            str(status.num_attempts),
            Text(harmless(status.error or status.finished_at or "")),
        )
    return table


def trajectory_panel(found: FoundRollout) -> Group:
    """A trajectory with its question and verdict."""
    row, head = found.rollout, Text()
    head.append(f"{row['rollout_key']}  {row['model']}  {row['dataset']}  sample {row['sample_index']}\n", style="dim")
    head.append(harmless(found.question["question"]) + "\n", style="bold")
    head.append("gold: " + harmless(" | ".join(found.question["answers"])), style="green")
    body = Text()
    for segment in found.segments:
        body.append(harmless(segment["text"]), style=_SEGMENT_STYLES.get(segment["kind"], ""))
        body.append("\n")
    return Group(Panel(head), body, Panel(_verdict(found)))


def _verdict(found: FoundRollout) -> Text:
    row, text = found.rollout, Text()
    calls = f"{row['calls_executed']} of {row['calls_requested']} calls run, {row['failed_calls']} failed"
    text.append(f"{row['status']}; {row['num_turns']} turns; {calls}; {row['completion_tokens']} sampled tokens")
    for call in found.tool_calls:
        text.append(f"\n{call['tool']}: {call['status']}", style="dim" if call["status"] == "ok" else "red")
    if found.score is not None:
        verdict = {True: "correct", False: "wrong", None: "no verdict"}[found.score["correct"]]
        text.append(f"\n{verdict}", style="green" if verdict == "correct" else "red")
        text.append(f" ({found.score['scorer']}): prediction {harmless(found.score['prediction'])!r}")
    return text


def lineage_tree(steps: Sequence[LineageStep]) -> Tree:
    """The way of a row, from the source down."""
    tree = node = Tree(Text(harmless(steps[0].label)))
    for step in steps[1:]:
        node = node.add(Text(harmless(step.label)))
    return tree
