"""Define `treadle gc`, which lists unreferenced files with sizes and reasons, and deletes them on request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from treadle.cli.options import json_option, root_option, say
from treadle.core.untrusted.sanitize import one_line, sanitized_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treadle.core.gc.garbage import CollectionPlan, Garbage

_SHOWN = 40


@click.command(short_help="Delete unreferenced artifacts and leftover files.", epilog="Example:  treadle gc --yes")
@click.option("--yes", "delete", is_flag=True, help="Delete; without this option, only list.")
@click.option(
    "--older-than",
    "min_age_h",
    type=click.FloatRange(min=1),
    default=24,
    show_default=True,
    metavar="HOURS",
    help="Keep files changed within this time.",
)
@root_option
@json_option
def gc(delete: bool, min_age_h: float, root: str | Path, as_json: bool) -> None:
    """Delete unreferenced artifacts and leftover files.

    These are artifacts that no record references and no running attempt reads, workspaces and work folders of finished
    attempts, journals older than the current result, temporary files of killed processes, and leftovers of deleted
    runs. Runs, results and their inputs are kept, and so is everything in use. To free the space of a run, delete its
    folder first.
    """
    from treadle.core.gc.collection import collect
    from treadle.core.gc.garbage import plan_collection
    from treadle.core.store.roots import open_storage

    storage = open_storage(root)
    if not delete:
        plan = plan_collection(storage, min_age_h * 3600)
        if as_json:
            click.echo(_as_json(plan))
        else:
            _show(
                plan, f"{_things(len(plan.garbage))} can be deleted with --yes" if plan.garbage else "nothing to delete"
            )
        return
    done = collect(storage, min_age_h * 3600)
    if as_json:
        click.echo(_as_json(done.plan, [item.key for item in done.removed], done.left))
        return
    _show(done.plan, f"deleted: {_things(len(done.removed))}" if done.plan.garbage else "nothing to delete")
    for item, why in done.left:
        say(f"not deleted: {item.key}: {one_line(why)}")


def _things(number: int) -> str:
    return "1 item" if number == 1 else f"{number:,} items"


def size_text(num_bytes: float) -> str:
    """Return a size in powers of 1,024, such as `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} TiB"


def _show(plan: CollectionPlan, summary: str) -> None:
    from treadle.cli.views.tables import console
    from treadle.core.figures import Figures
    from treadle.report.terminal_table import terminal_table

    rows = tuple(
        (
            size_text(item.num_bytes),
            item.what,
            f"{item.key} (on this machine)" if item.here else item.key,
            one_line(item.why),
        )
        for item in plan.garbage[:_SHOWN]
    )
    if rows:
        table = Figures("", ("size", "what", "where", "because"), rows, num_names=0)
        console().print(terminal_table(table, unwrapped=(0, 1)))
    rest = plan.garbage[_SHOWN:]
    if rest:
        click.echo(
            f"and {len(rest):,} smaller ones ({size_text(sum(item.num_bytes for item in rest))}); --json has all"
        )
    for note in plan.notes:
        say(f"note: {one_line(note)}")
    if plan.num_recent:
        say(f"{_things(plan.num_recent)} ({size_text(plan.bytes_recent)}) changed too recently, see --older-than")
    click.echo(
        f"{summary} ({size_text(plan.num_bytes)}); {plan.num_artifacts_kept:,} artifacts "
        f"({size_text(plan.bytes_kept)}) are referenced and kept"
    )


def _as_json(plan: CollectionPlan, removed: Sequence[str] = (), left: Sequence[tuple[Garbage, str]] = ()) -> str:
    counts = ("num_bytes", "notes", "num_artifacts_kept", "bytes_kept", "num_recent", "bytes_recent")
    return sanitized_json(
        {
            "garbage": list(plan.garbage),
            **{name: getattr(plan, name) for name in counts},
            "removed": removed,
            "left": [{"key": item.key, "why": why} for item, why in left],
        }
    )
