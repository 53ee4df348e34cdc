"""Print what a run would do, and which keys of its configuration are set or changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from treadle.cli.views.figures import estimate_view
from treadle.cli.views.keys import print_environment, print_keys, print_scorer
from treadle.cli.views.tables import console, plan_table
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run, run_exists
from treadle.core.runs.stage import Instance
from treadle.core.untrusted.sanitize import sanitize, sanitized_json
from treadle.tasks.catalog import semantic_of
from treadle.tasks.config import TreadleConfig, environments_in_use
from treadle.tasks.estimate.estimates import estimates
from treadle.tasks.estimate.file_rows import rows_of_sources
from treadle.tasks.estimate.preview import preview
from treadle.tasks.planning.flow_part import FlowPart
from treadle.tasks.planning.model_checks import check_tokenizers
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
    allow_changes: bool = False,
) -> None:
    """Print what a run would do: each instance and why, its estimated usage, and keys that are set or changed.

    `part`: the instances that would run, if not all; `by_name`: see `plan`; `allow_changes`: the run would accept
    changed keys.
    """
    made = part.instances if part is not None else None
    steps = plan(instances, root, run_id, part=made, force=force, by_name=by_name)
    run = Run.open(root, run_id) if run_exists(root, run_id) else None
    check_tokenizers(config, run.info.semantic.get("models", {}) if run is not None else ())
    with preview(instances, steps, run, force=force) as found:
        to_run = [step.address for step in steps if step.action == "run"]
        expected = estimates(instances, run, to_run, force=force, preview=found)
    reads = any(step.action == "run" for step in steps if Address.parse(step.address).stage == "questions")
    rows = rows_of_sources(instances) if reads else {}
    if as_json:
        whole = {
            "config": config.model_dump(mode="json"),
            "plan": {step.address: step.action for step in steps},
            "why": {step.address: step.why for step in steps},
            "rows": {name: {"num_rows": one.num_rows, "is_complete": one.is_complete} for name, one in rows.items()},
            "kept": part.kept if part is not None else {},
            "left_out": part.left_out if part is not None else {},
            "reuse": {address: reuse.as_dict() for address, reuse in found.reuses.items()},
            "estimates": [estimate.as_dict() for estimate in expected],
        }
        click.echo(sanitized_json(whole))
        return
    console().print(plan_table(steps))
    for counted in rows.values():
        click.echo(sanitize(counted.text()))
    for address, reuse in found.reuses.items():
        click.echo(sanitize(f"{address}: {reuse.text()}"))
    if part is not None and part.kept:
        click.echo(f"used as they are: {', '.join(part.kept)}")
    for line in part.lines() if part is not None else ():
        click.echo(sanitize(line))
    for name in sorted(config.environments.keys() - environments_in_use(config).keys()):
        click.echo(f'environments.{name} is not used: no source of questions says environment = "{name}"')
    for estimate in expected:
        console().print("\n", estimate_view(estimate), sep="", end="")
    changed, refused = changed_keys(config, semantic_of(config) if run else {}, root, run_id)
    if changed is None:
        print_keys("keys that are set (--json prints all):", keys_set(config))
        for name, environment in environments_in_use(config).items():
            print_environment(name, environment)
        for name, scorer in config.scorers.items():
            print_scorer(name, scorer)
    elif changed:
        print_keys("keys that differ from those of the run:", changed)
    if refused and not allow_changes:
        click.echo("\nthe run refuses these changes, because they change results; use a new run id, or --allow-changes")
