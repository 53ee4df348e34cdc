"""Render tables of runs, instances and plans. All text of users, models and servers is sanitized here."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from treadle.core.figures import Figures
from treadle.core.runs.address import Address
from treadle.core.runs.records import InstanceStatus, ModelServerStatus, StageRecord
from treadle.core.runs.retry import num_with_status
from treadle.core.runs.run import Run
from treadle.core.untrusted.sanitize import one_line, sanitize
from treadle.report.terminal_table import terminal_table
from treadle.tasks.inspection.overview import RunOverview
from treadle.tasks.planning.plan import PlannedStep

_STATE_STYLES = {"completed": "green", "running": "cyan", "failed": "red", "crashed": "red", "interrupted": "yellow"}
_STATE_WORDS = {"absent": "not started"}
_STATE_CAUSES = {"interrupted": "stopped by Ctrl-C or SIGTERM", "crashed": "its process was killed"}
_TROUBLES = ("failed", *_STATE_CAUSES)
_ENDED_WORDS = {"failed": "failed", "interrupted": "was interrupted", "crashed": "crashed"}
_ACTION_STYLES = {"reuse": "green", "take over": "green", "run": "cyan", "missing input": "red", "refuse": "red"}
_PIPE_WIDTH = 160


def console() -> Console:
    """Return a console on standard output; it is wide for files and pipes, so that lines are not wrapped."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_PIPE_WIDTH if piped else None)


def run_options(run_id: str, root: str | Path) -> str:
    """Return the options that name a run, quoted for a shell."""
    import shlex

    default = str(root) in ("outputs", os.path.abspath("outputs")) and "TREADLE_ROOT" not in os.environ
    return f"--run {run_id}" + ("" if default else f" --root {shlex.quote(sanitize(str(root)))}")


def plan_table(steps: Sequence[PlannedStep]) -> Table:
    """Render what would happen to each instance, and why."""
    rows = tuple((step.address, step.action, one_line(step.why)) for step in steps)
    table = Figures("", ("instance", "would", "because"), rows, num_names=3)
    return terminal_table(table, unwrapped=(0, 1), styles=_ACTION_STYLES)


def runs_table(runs: Sequence[RunOverview], now: datetime) -> Table:
    """Render one line per run of a root."""
    rows = tuple(
        (
            run.run_id,
            run.state,
            f"{run.num_completed} of {run.num_instances}",
            _age(run.created_at, now),
            _age(run.changed_at, now),
            one_line(run.error),
        )
        for run in runs
    )
    table = Figures("", ("run", "state", "done", "started", "last change", "error"), rows, num_names=6)
    return terminal_table(table, unwrapped=range(5), styles=_STATE_STYLES)


def _age(time: str | None, now: datetime) -> str:
    """Return the age of a record's timestamp as in `3 h ago`."""
    if not time:
        return ""
    seconds = (now - datetime.fromisoformat(time)).total_seconds()
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit} ago"
    return "just now" if seconds < 60 else "1 min ago"


def status_table(run: Run, statuses: Sequence[InstanceStatus], *, forced: bool) -> Group:
    """Render one line per instance, then errors and how to continue; `forced`: a forced run was interrupted."""
    rows = tuple(
        (
            status.address,
            _state_text(status),
            status.num_attempts,
            (status.finished_at or status.started_at or "")[:19].replace("T", " "),
            _rows_text(status),
        )
        for status in statuses
    )
    header = ("instance", "state", "attempts", "last change (UTC)", "rows")
    styles = {_state_text(status): _STATE_STYLES.get(status.state, "") for status in statuses}
    figures = Figures(f"run {run.run_id}", header, rows, num_names=len(header))
    table = terminal_table(figures, unwrapped=range(4), styles=styles)
    now: list[Text | Table] = [*_doing(statuses), *_server_tables(statuses)]
    return Group(table, *now, *_troubles(run, statuses), *_cut_off(run, statuses, forced))


def _doing(statuses: Sequence[InstanceStatus]) -> list[Text]:
    """Return a line per running stage that describes its work."""
    return [Text(f"\n{status.address}: {one_line(status.doing)}") for status in statuses if status.doing]


def _server_tables(statuses: Sequence[InstanceStatus]) -> list[Table]:
    """Render one line per model server that a running stage uses."""
    rows = tuple(
        (
            status.address,
            one_line(server.model),
            one_line(server.url),
            one_line(server.health),
            server.in_flight,
            server.queued,
            f"{server.tokens_per_s:,.0f}",
            server.answered,
            _errors_text(server),
        )
        for status in statuses
        for server in status.model_servers
    )
    header = ("instance", "model", "server", "state", "in flight", "queued", "tokens/s", "answered", "errors")
    figures = Figures("model servers", header, rows, num_names=4)
    return [terminal_table(figures, unwrapped=range(4), styles={"down": "red", "trial": "yellow"})] if rows else []


def _errors_text(server: ModelServerStatus) -> str:
    counts = ", ".join(f"{number:,} {one_line(kind)}" for kind, number in server.errors.items())
    return f"{counts}; last: {one_line(server.last_error)}" if counts and server.last_error else counts


def _state_text(status: InstanceStatus) -> str:
    words = _STATE_WORDS.get(status.state, status.state)
    return f"{words}, waits for {one_line(status.waits_for)}" if status.waits_for else words


def _rows_text(status: InstanceStatus) -> str:
    if status.num_rows:
        filled = [kind for kind, count in status.num_rows.items() if count]
        kinds = sorted(filled, key=lambda kind: (kind == "quarantine", kind))
        rows = ", ".join(f"{status.num_rows[kind]:,} {kind}" for kind in kinds)
        if status.imported_from:
            rows += f", imported from {one_line(status.imported_from)}"
        if status.was_reused_from:
            return f"{rows}, reused from {status.was_reused_from}, which has been rerun since"
        return f"{rows}, the same as {status.reused_from}" if status.reused_from else rows
    return f"{status.num_finished:,} finished in the journal" if status.num_finished else ""


def _troubles(run: Run, statuses: Sequence[InstanceStatus]) -> list[Text]:
    lines = [_trouble(run, status, status.state, "") for status in statuses if status.state in _TROUBLES]
    if lines:
        lines.append(Text(f"\ncontinue with: treadle run {run_options(run.run_id, run.storage.location())}"))
    return lines


def _cut_off(run: Run, statuses: Sequence[InstanceStatus], forced: bool) -> list[Text]:
    """Return remarks on finished instances: later attempts that did not complete, and rollouts that timed out.

    Such an attempt was forced, retried some rows, or was to make rows that the result lacks. The remarks end with the
    commands that run it again.
    """
    options = run_options(run.run_id, run.storage.location())
    lines, commands = [], []
    for status in statuses:
        retry = "".join(f" --retry {name}" for name in status.retried)
        for state, words, more in (
            (status.forced_state, "completed, but a forced attempt after it", " --force"),
            # Not with --force, which would run everything again.
            (status.gaps_state, "completed with accepted gaps, and an attempt to fill them", ""),
            (status.retry_state, "completed, but a retry of some rows", retry),
        ):
            if state is not None:
                lines.append(_trouble(run, status, state, f"{words} {_ENDED_WORDS[state]}"))
                commands.append(f"treadle stage {status.address} {options}{more}")
        if (
            status.retry_state is None
            and (record := run.record(Address.parse(status.address)))
            and (line := timeouts_text(run, record))
        ):
            lines.append(Text(f"\n{line}"))
    if forced:
        lines.append(Text("\na forced run was interrupted"))
        commands = [f"treadle run {options} --force"]
    return [*lines, *(Text(f"\nrun again with: {command}") for command in commands)]


def timeouts_text(run: Run, record: StageRecord) -> str:
    """Return a line on rollouts that timed out, and how to retry them; empty if there are none."""
    number = num_with_status(record, {"timeout"})
    if record.stage != "rollouts" or record.reused_from or not number:
        return ""
    options = run_options(run.run_id, run.storage.location())
    ended = "rollout" if number == 1 else "rollouts"
    retry = f"treadle stage {record.address} {options} --retry timeout"
    return (
        f"{record.address}: {number:,} {ended} ended by timeout; retry {'it' if number == 1 else 'them'} with: {retry}"
    )


def _trouble(run: Run, status: InstanceStatus, state: str, words: str) -> Text:
    said = _STATE_CAUSES.get(state) or status.error or "no cause was recorded"
    text = Text("\n")
    text.append(f"{status.address} {words or state}", style=_STATE_STYLES[state])
    text.append(f": {one_line(said)}")
    if status.log:
        text.append(f"\nlog: {sanitize(run.storage.location(status.log))}", style="dim")
    return text
