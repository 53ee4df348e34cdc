"""Print what commands that run stages show before they begin and when they are done."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from treadle.agent.tools.settings import ToolSettings
from treadle.cli.views.figures import estimate_view, figures_view, report_view, sentences_view
from treadle.cli.views.tables import console, plan_table, run_options, timeouts_text
from treadle.core.config import Section
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run, run_exists
from treadle.core.runs.stage import Instance
from treadle.core.untrusted.sanitize import one_line, sanitize, sanitized_json
from treadle.environments.scorers.base import Scorer
from treadle.environments.settings import DEFAULT_TYPE, EnvironmentSettings
from treadle.tasks.catalog import semantic_of
from treadle.tasks.config import TreadleConfig
from treadle.tasks.estimate.estimates import estimates
from treadle.tasks.estimate.preview import preview
from treadle.tasks.planning.flow_part import FlowPart
from treadle.tasks.planning.plan import changed_keys, keys_set, plan
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

    As JSON, print the records; that of the report includes its scores.
    """
    if as_json:
        click.echo(sanitized_json([_with_summary(run, record) for record in records]))
        return
    for record in records:
        if (report := stage_report(record, run)) is not None:
            console().print("\n", report_view(record.address, report), sep="", end="")
        if "summary" in record.outputs:
            _print_summary(run, record)
    for record in records:
        if line := timeouts_text(run, record):
            click.echo(line, err=True)
    _print_unknown_to_tutor(run, records)
    click.echo()
    _print_places(run, records)


def _print_unknown_to_tutor(run: Run, records: Sequence[StageRecord]) -> None:
    """Warn if the tutor was asked unknown questions: its wrong answers to them say nothing about the questions."""
    from treadle.demo.tutor.settings import DESCRIPTION, MODEL

    semantic = run.info.semantic
    models = [semantic["models"].get(name, {}).get("model", "") for name in semantic["flow"]["models"]]
    table = next((record.outputs["questions"] for record in records if "questions" in record.outputs), None)
    if table is None or not any(model.startswith(MODEL) for model in models):
        return
    from treadle.demo.world_templates import recognise

    asked = [row["question"] for row in islice(run.rows(table).rows(("question",)), _MAX_SCANNED)]
    if unknown := sum(recognise(question) is None for question in asked):
        click.echo(
            f"\n{MODEL} is a {DESCRIPTION}: {unknown:,} of {len(asked):,} questions are not from the sample world, so "
            "its answers to them mean nothing; use another model for these"
        )


def print_demo_end(run: Run, records: Sequence[StageRecord], models: Sequence[str]) -> None:
    """Print the results of the demo's pools, training and models, write its report page, and print all folders."""
    from treadle.demo.results import differences, outcome
    from treadle.tasks.page.build import report_page, write_page

    out = console()
    for record in records:
        if (report := stage_report(record, run)) is not None:
            shown = report_view if record.stage == "rl" else sentences_view  # its curves are worth showing
            out.print("\n", shown(record.address, report), sep="", end="")
    out.print(figures_view([outcome(run, models), differences(run, models)]))
    page = Path(run.storage.location()).absolute() / f"{run.run_id}.html"
    write_page(page, report_page([run]))
    click.echo(sanitize(f"\nreport: {page} (open it in a browser)\n"))
    _print_places(run, records)


def _with_summary(run: Run, record: StageRecord) -> dict[str, Any]:
    from treadle.report.layout import summary_lines

    fields = record.model_dump(mode="json")
    if "summary" in record.outputs:
        fields["summary"] = [line.as_dict() for line in summary_lines(run.rows(record.outputs["summary"]).rows())]
    return fields


def _print_summary(run: Run, record: StageRecord) -> None:
    from treadle.report.terminal import comparison_table, judges_table, summary_table

    out, rows = console(), list(run.rows(record.outputs["summary"]).rows())
    out.print()
    out.print(summary_table(rows, width=out.width))
    for line in imported_lines(record, run):
        out.print(Text(one_line(line)))
    if (judges := judges_table(rows)) is not None:
        out.print()
        out.print(judges)
    if "comparisons" in record.outputs and record.outputs["comparisons"].num_rows:
        out.print()
        out.print(comparison_table(run.rows(record.outputs["comparisons"]).rows()))


def _print_places(run: Run, records: Sequence[StageRecord]) -> None:
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


def print_plan(
    config: TreadleConfig,
    instances: Sequence[Instance],
    root: str | Path,
    run_id: str,
    force: bool,
    as_json: bool,
    part: FlowPart | None = None,
    *,
    by_name: bool = False,
) -> None:
    """Print what a run would do: each instance and why, its estimated usage, and keys that are set or changed.

    `part`: the instances that would run, if not all; `by_name`: see `plan`.
    """
    made = part.instances if part is not None else None
    steps = plan(instances, root, run_id, part=made, force=force, by_name=by_name)
    run = Run.open(root, run_id) if run_exists(root, run_id) else None
    with preview(instances, steps, run, force=force) as found:
        to_run = [step.address for step in steps if step.action == "run"]
        expected = estimates(instances, run, to_run, force=force, preview=found)
    if as_json:
        whole = {
            "config": config.model_dump(mode="json"),
            "plan": {step.address: step.action for step in steps},
            "why": {step.address: step.why for step in steps},
            "kept": part.kept if part is not None else {},
            "left_out": part.left_out if part is not None else {},
            "reuse": {address: reuse.as_dict() for address, reuse in found.reuses.items()},
            "estimates": [estimate.as_dict() for estimate in expected],
        }
        click.echo(sanitized_json(whole))
        return
    console().print(plan_table(steps))
    for address, reuse in found.reuses.items():
        click.echo(sanitize(f"{address}: {reuse.text()}"))
    if part is not None and part.kept:
        click.echo(f"used as they are: {', '.join(part.kept)}")
    for line in part.lines() if part is not None else ():
        click.echo(sanitize(line))
    for estimate in expected:
        console().print("\n", estimate_view(estimate), sep="", end="")
    changed, refused = changed_keys(config, semantic_of(config) if run else {}, root, run_id)
    if changed is None:
        _print_keys("keys that are set (--json prints all):", keys_set(config))
        is_default = config.environment.type == DEFAULT_TYPE  # its keys are in the reference
        if not is_default and (keys := own_keys(config.environment, EnvironmentSettings)):
            _print_keys(f"keys of {config.environment.type} (under environment):", keys)
        for name, tool in config.environment.tools.items():
            lines = [
                f"{schema.name}: {sanitized_json(schema.as_openai()['function'])}"
                for schema in tool.known_schemas(name)
            ]
            lines += own_keys(tool, ToolSettings)
            _print_keys(f"tools and keys of {tool.type} (under environment.tools.{name}):", lines)
        for name, scorer in config.scorers.items():
            lines = [f"part {part}: {line}" for part, line in scorer.PARTS.items()]
            _print_keys(f"parts and keys of {scorer.type} (under scorers.{name}):", lines + own_keys(scorer, Scorer))
    elif changed:
        _print_keys("keys that differ from those of the run:", changed)
    if refused:
        click.echo("\nthe run refuses these changes, because they change results; use a new run id")


def own_keys(section: Section, base: type[Section]) -> list[str]:
    """Return the keys that a section adds to those of `base`, with values and help."""
    shared = base.model_fields
    helps = {name: text for name, text in type(section).descriptions().items() if name not in shared}
    values = section.model_dump(mode="json", include=set(helps))
    return [
        f"{name} = {sanitized_json(values[name])}" + (f"  {one_line(text)}" if text else "")
        for name, text in helps.items()
    ]


def _print_keys(title: str, lines: Sequence[str]) -> None:
    click.echo(f"\n{title}")
    for line in lines:
        click.echo(f"  {sanitize(line)}")
