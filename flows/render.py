"""What the command line shows: statuses, trajectories, lineage. All model and dataset text is made harmless here."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from treadle.core.harmless import harmless, one_line
from treadle.core.records import InstanceStatus
from treadle.tasks.lineage import FoundRollout, LineageStep

_STATE_STYLES = {"completed": "green", "running": "cyan", "failed": "red", "crashed": "red", "interrupted": "yellow"}
_STATE_WORDS = {"absent": "not begun"}
_STATE_CAUSES = {"interrupted": "stopped by Ctrl-C or SIGTERM", "crashed": "its process was killed"}
_PIPE_WIDTH = 160
_SEGMENT_STYLES = {"think": "dim", "search": "cyan", "python": "magenta", "result": "yellow", "answer": "bold green"}


def console() -> Console:
    """Standard output; wide where it is no terminal, so that files and pipes get whole lines."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_PIPE_WIDTH if piped else None)


def run_options(run_id: str, root: Path) -> str:
    """The options that name a run, as a shell takes them."""
    import shlex

    default = root.absolute() == Path("outputs").absolute() and "TREADLE_ROOT" not in os.environ
    return f"--run {run_id}" + ("" if default else f" --root {shlex.quote(harmless(str(root)))}")


def status_table(run_id: str, root: Path, statuses: Sequence[InstanceStatus]) -> Group:
    """One line per instance, and below them what went wrong and how to go on."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=f"run {run_id}", title_justify="left")
    table.add_column("instance", no_wrap=True, overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("attempts", justify="right", no_wrap=True)
    table.add_column("last change (UTC)", no_wrap=True)
    table.add_column("rows", overflow="fold")
    for status in statuses:
        table.add_row(
            status.address,
            Text(_STATE_WORDS.get(status.state, status.state), style=_STATE_STYLES.get(status.state, "")),
            str(status.num_attempts),
            (status.finished_at or status.started_at or "")[:19].replace("T", " "),
            _rows_text(status),
        )
    return Group(table, *_troubles(run_id, root, statuses))


def _rows_text(status: InstanceStatus) -> str:
    if status.num_rows:
        filled = [kind for kind, count in status.num_rows.items() if count]
        kinds = sorted(filled, key=lambda kind: (kind == "quarantine", kind))
        return ", ".join(f"{status.num_rows[kind]:,} {kind}" for kind in kinds)
    return f"{status.num_finished:,} finished in the journal" if status.num_finished else ""


def _troubles(run_id: str, root: Path, statuses: Sequence[InstanceStatus]) -> list[Text]:
    lines = []
    for status in statuses:
        if status.state not in ("failed", "crashed", "interrupted"):
            continue
        said = _STATE_CAUSES.get(status.state) or status.error or "no cause was recorded"
        text = Text("\n")
        text.append(f"{status.address} {status.state}", style=_STATE_STYLES[status.state])
        text.append(f": {one_line(said)}")
        if status.log:
            text.append(f"\nlog: {harmless(str(root / status.log))}", style="dim")
        lines.append(text)
    if lines:
        lines.append(Text(f"\ngo on with: treadle run {run_options(run_id, root)}"))
    return lines


def trajectory_panel(found: FoundRollout) -> Group:
    """A trajectory with its question and verdict."""
    row, head = found.rollout, Text()
    origin = f"{row['rollout_key']}  {row['model']}  {row['dataset']}  sample {row['sample_index']}"
    head.append(one_line(origin) + "\n", style="dim")
    head.append(harmless(found.question["question"]) + "\n", style="bold")
    head.append("gold: " + harmless(" | ".join(found.question["answers"])), style="green")
    body = Text()
    for segment in found.segments:
        body.append(harmless(segment["text"]), style=_SEGMENT_STYLES.get(segment["kind"], ""))
        body.append("\n")
    return Group(Panel(head, expand=False), body, Panel(_verdict(found), expand=False))


def _verdict(found: FoundRollout) -> Text:
    row, text = found.rollout, Text()
    calls = f"{row['calls_executed']} of {row['calls_requested']} calls run, {row['failed_calls']} failed"
    tokens = f"{row['completion_tokens']} sampled tokens"
    text.append(f"{one_line(row['status'])}; {row['num_turns']} turns; {calls}; {tokens}")
    for call in found.tool_calls:
        outcome = one_line(f"{call['tool']}: {call['status']}")
        text.append(f"\n{outcome}", style="dim" if call["status"] == "ok" else "red")
    if found.score is not None:
        verdict = {True: "correct", False: "wrong", None: "no verdict"}[found.score["correct"]]
        text.append(f"\n{verdict}", style="green" if verdict == "correct" else "red")
        text.append(f" ({one_line(found.score['scorer'])}): prediction {harmless(found.score['prediction'])!r}")
    return text


def lineage_tree(steps: Sequence[LineageStep]) -> Tree:
    """The way of a row, from the source down."""
    tree = node = Tree(Text(harmless(steps[0].label)))
    for step in steps[1:]:
        node = node.add(Text(harmless(step.label)))
    return tree
