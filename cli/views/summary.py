"""Print what commands that run stages show when they are done."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import click
from rich.text import Text

from treadle.cli.views.figures import report_view
from treadle.cli.views.tables import console, run_options, timeouts_text
from treadle.cli.views.tutor_warning import print_unknown_to_tutor
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.untrusted.sanitize import one_line, sanitize, sanitized_json
from treadle.environments.diagnosis.reading import diagnoses_of
from treadle.tasks.summaries.report_tables import imported_lines
from treadle.tasks.summaries.stage_report import stage_report


def result_text(record: StageRecord) -> str:
    """Return rows per table, reasons for quarantined rows, and the origin of a result that was imported or reused."""
    counts = {kind: ref.num_rows for kind, ref in record.outputs.items() if ref.num_rows}
    tables = ", ".join(f"{kind} {counts[kind]:,}" for kind in sorted(counts, key=lambda k: (k == "quarantine", k)))
    reasons = {name: count for name, count in record.metrics.items() if name.startswith("reason.")}
    why = ", ".join(f"{name.removeprefix('reason.').replace('_', ' ')} {count:,}" for name, count in reasons.items())
    taken = f" (the same as {record.reused_from})" if record.reused_from else ""
    imported = f" (imported from {one_line(record.imported_from)})" if record.imported_from else ""
    return f"{tables}{f' ({why})' if why else ''}{imported}{taken}{' (unchanged, reused)' if record.reused else ''}"


def print_end(run: Run, records: Sequence[StageRecord], as_json: bool) -> None:
    """Print summaries of stages, the scores, and the folders of the data.

    As JSON, print the records; the report's record includes its scores.
    """
    if as_json:
        click.echo(sanitized_json([_with_summary(run, record) for record in records]))
        return
    for record in records:
        if (report := stage_report(record, run)) is not None:
            console().print("\n", report_view(record.address, report), sep="", end="")
        if "summary" in record.outputs:
            _print_summary(run, record, {one.address for one in records})
    for record in records:
        if line := timeouts_text(run, record):
            click.echo(line, err=True)
    print_unknown_to_tutor(run, records)
    click.echo()
    print_places(run, records)


def _with_summary(run: Run, record: StageRecord) -> dict[str, Any]:
    from treadle.report.layout import summary_lines

    fields = record.model_dump(mode="json")
    if "summary" in record.outputs:
        fields["summary"] = [line.as_dict() for line in summary_lines(run.rows(record.outputs["summary"]).rows())]
        if "groups" in record.outputs:
            fields["groups"] = list(run.rows(record.outputs["groups"]).rows())
    if record.outputs.keys() & {"rollouts", "scores"}:
        fields["diagnoses"] = [one.as_dict() for one in diagnoses_of(record, run)]
    return fields


def _print_summary(run: Run, record: StageRecord, told: Collection[str]) -> None:
    """Print the figures of a report, and the problems of the rollouts and scores that it compares.

    `told`: addresses of instances whose problems are left out, because their own summaries show them.
    """
    from treadle.report.problems import compared_diagnoses
    from treadle.report.terminal import comparison_table, judges_table, summary_table
    from treadle.report.terminal_table import terminal_table
    from treadle.tasks.summaries.report_seconds import report_seconds, seconds_table

    out, rows = console(), list(run.rows(record.outputs["summary"]).rows())
    out.print()
    out.print(summary_table(rows, width=out.width))
    if (times := seconds_table(rows, report_seconds(record, run))) is not None:
        out.print()
        out.print(terminal_table(times, unwrapped=range(2, len(times.header))))
    for line in imported_lines(record, run):
        out.print(Text(one_line(line)))
    for one in compared_diagnoses(record, run, told):
        out.print(Text(f"\n{one_line(one.address)}", style="bold"))
        for line in one.sentences():
            out.print(Text(one_line(line)))
    if (judges := judges_table(rows)) is not None:
        out.print()
        out.print(judges)
    if "comparisons" in record.outputs and record.outputs["comparisons"].num_rows:
        out.print()
        out.print(comparison_table(run.rows(record.outputs["comparisons"]).rows()))


def print_places(run: Run, records: Sequence[StageRecord]) -> None:
    """Print the folders of the data and commands to inspect it."""
    kinds = [kind for record in records for kind, ref in record.outputs.items() if ref.num_rows]
    width = max(map(len, kinds), default=0)
    for record in records:
        for kind, ref in sorted(record.outputs.items()):
            if ref.num_rows:
                click.echo(sanitize(f"{kind:<{width}} {run.storage.location(ref.folder)}"))
    options = run_options(run.run_id, run.storage.location())
    click.echo(f"treadle status {options}")
    for command in _inspection_commands(run, records):
        click.echo(f"{command} {options}")


def _inspection_commands(run: Run, records: Sequence[StageRecord]) -> list[str]:
    """Return commands that show a trajectory, a pool's tree and figures, for the last stages that have them."""
    commands = []
    for record in records:
        if "rollouts" in record.outputs and (
            row := next(run.rows(record.outputs["rollouts"]).rows(("rollout_key",)), None)
        ):
            commands.append(("rollouts", f"treadle show {row['rollout_key']}"))
        if "pools" in record.outputs and (row := _edited(run, record)):
            commands.append(("pools", f"treadle show {row['rollout_key']}"))
            commands.append(("tree", f"treadle lineage {row['question_key']}"))
        if "summary" in record.outputs:
            commands.append(("page", f"treadle report --out {run.run_id}.html"))
            commands.append(("viewer", "treadle view"))
    return list(dict(commands).values())


def _edited(run: Run, record: StageRecord) -> dict[str, Any] | None:
    """Return a right trajectory that repaired a wrong one, else any edited one, else any."""
    found: dict[str, Any] | None = None
    for number, row in enumerate(run.rows(record.outputs["pools"]).rows(_EXAMPLE_COLUMNS)):
        if row["operator"] in _REPAIRS and row["correct"]:
            return row
        if found is None or (row["edit_text"] and not found["edit_text"]):
            found = row
        if number > _MAX_SCANNED:
            break
    return found


_EXAMPLE_COLUMNS = ("rollout_key", "question_key", "operator", "correct", "edit_text")
_REPAIRS = ("self_correct", "hint_step", "hint_tail", "reflect")
_MAX_SCANNED = 1_000
