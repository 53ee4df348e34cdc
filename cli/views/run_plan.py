"""Print what a run would do, and which keys of its configuration are set or changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from treadle.agent.tools.settings import ToolSettings
from treadle.cli.views.figures import estimate_view
from treadle.cli.views.tables import console, plan_table
from treadle.core.config import Section
from treadle.core.runs.run import Run, run_exists
from treadle.core.runs.stage import Instance
from treadle.core.untrusted.sanitize import one_line, sanitize, sanitized_json
from treadle.environments.mixture import table_of
from treadle.environments.scorers.base import Scorer
from treadle.environments.settings import DEFAULT_TYPE, EnvironmentSettings
from treadle.tasks.catalog import semantic_of
from treadle.tasks.config import TreadleConfig, environments_in_use
from treadle.tasks.estimate.estimates import estimates
from treadle.tasks.estimate.preview import preview
from treadle.tasks.planning.flow_part import FlowPart
from treadle.tasks.planning.plan import changed_keys, keys_set, plan


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
        for name, environment in environments_in_use(config).items():
            _print_environment(table_of(name), environment)
        for name, scorer in config.scorers.items():
            lines = [f"part {part}: {line}" for part, line in scorer.PARTS.items()]
            _print_keys(f"parts and keys of {scorer.type} (under scorers.{name}):", lines + own_keys(scorer, Scorer))
    elif changed:
        _print_keys("keys that differ from those of the run:", changed)
    if refused:
        click.echo("\nthe run refuses these changes, because they change results; use a new run id")


def _print_environment(table: str, environment: EnvironmentSettings) -> None:
    is_shipped = environment.type == DEFAULT_TYPE  # its keys are in the reference
    if not is_shipped and (keys := own_keys(environment, EnvironmentSettings)):
        _print_keys(f"keys of {environment.type} (under {table}):", keys)
    for name, tool in environment.tools.items():
        lines = [
            f"{schema.name}: {sanitized_json(schema.as_openai()['function'])}" for schema in tool.known_schemas(name)
        ]
        lines += own_keys(tool, ToolSettings)
        _print_keys(f"tools and keys of {tool.type} (under {table}.tools.{name}):", lines)


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
