"""Define the options of commands that run stages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treadle.cli.options import json_option, options_object, root_option, set_option

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """Options of commands that run stages."""

    configs: tuple[Path, ...]
    dry_run: bool
    overrides: tuple[str, ...]
    root: str | Path
    as_json: bool
    with_prefect: bool
    accept_failures: bool
    force: bool
    allow_changes: bool


work_options = options_object(
    WorkOptions,
    click.argument("configs", nargs=-1, type=click.Path(path_type=Path, dir_okay=False), metavar="[CONFIG.toml]..."),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Print the plan, its reasons and the estimated cost (--json: also the whole configuration).",
    ),
    set_option,
    root_option,
    json_option,
    click.option("--prefect", "with_prefect", is_flag=True, help="Run as a Prefect flow run (needs PREFECT_API_URL)."),
    click.option(
        "--accept-failures", is_flag=True, help="Write unfinished units as failed rows, and drop invalid ones."
    ),
    click.option(
        "--force", is_flag=True, help="Run again even if nothing changed (`run`: equal work once; imports are kept)."
    ),
    click.option(
        "--allow-changes",
        is_flag=True,
        help="Let the configuration of an existing run change; what the changes affect is made again.",
    ),
)
"""Options of commands that run stages, passed to them as `WorkOptions`."""
