"""Define the options of commands that write one result of a run, and find that result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treadle.cli.options import Decorator, json_option, options_object, root_option, run_option
from treadle.core.untrusted.sanitize import sanitize, sanitized_json

if TYPE_CHECKING:
    from treadle.core.runs.records import StageRecord
    from treadle.core.runs.run import Run


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export: which result of a run to write, and where."""

    run_id: str
    instance: str | None
    out: Path
    force: bool
    root: str | Path
    as_json: bool

    def found(self, kind: str) -> tuple[Run, StageRecord]:
        """Return the run, and the record that has a table of this kind."""
        from treadle.core.runs.run import Run

        run = Run.open(self.root, self.run_id)
        return run, _record_with(run, kind, self.instance)

    def tell(self, facts: Mapping[str, Any], line: str) -> None:
        """Print a summary of the export: `facts` as JSON for scripts, or `line`."""
        click.echo(sanitized_json(facts) if self.as_json else sanitize(line))


def export_options(
    instance: str,
    out: str = "Folder to write; it must not exist yet.",
    force: str = "Replace an earlier export in that folder.",
) -> Decorator:
    """Return a decorator that passes the options of an export to a command as `ExportOptions`.

    The arguments are the help texts of three options.
    """
    return options_object(
        ExportOptions,
        run_option,
        click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help=out),
        click.option("--instance", help=instance),
        click.option("--force", is_flag=True, help=force),
        root_option,
        json_option,
    )


def _record_with(run: Run, kind: str, address: str | None) -> StageRecord:
    """Return the record of the named instance, or of the last iteration and phase that made tables of this kind.

    Results of different models, or of a model and a phase, have no order: if several are candidates, raises RunError
    that asks for an address.
    """
    from treadle.core.errors import DataError, RunError, closest
    from treadle.core.runs.address import Address, phase_of

    found = {Address.parse(record.address): record for record in run.records() if kind in record.outputs}
    if address is not None:
        wanted = Address.parse(address)
        found = {at: record for at, record in found.items() if at == wanted}
    if not found:
        missing = address or kind
        made = {one: None for record in run.records() for one in record.outputs}
        if address is None and (near := closest(kind, made)):
            raise DataError(f"run {run.run_id} has no table {kind}{near}; it has {', '.join(made)}")
        raise RunError(f"run {run.run_id} has no finished {missing}; `treadle status --run {run.run_id}` shows it all")
    newest = max(at.iteration for at in found)
    phases = {at: phase_of(at.qualifier) if at.qualifier else 0 for at in found if at.iteration == newest}
    last_phase = max((phase for phase in phases.values() if phase is not None), default=None)
    last = [found[at] for at, phase in phases.items() if phase is None or phase == last_phase]
    if len(last) > 1:
        several = ", ".join(record.address for record in last)
        raise RunError(f"run {run.run_id} has several finished {kind}: {several}; name one of them with --instance")
    return last[0]
