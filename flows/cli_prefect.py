"""The commands `prefect up` and `prefect deploy`: a Prefect server, a worker, and what Treadle sets up there."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from treadle.flows.options import say

folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True, resolve_path=True),
    default=".",
    show_default="the current one",
    help="Where flow runs work: relative roots and configuration files count from there.",
)
notify_option = click.option(
    "--notify-block",
    metavar="TYPE/NAME",
    help="Tell of failed and crashed flow runs through this notification block, as in slack-webhook/my-hook.",
)


@click.group(short_help="Watch and start runs in the Prefect UI.", epilog="Example:  treadle prefect up --port 4300")
def prefect() -> None:
    """Watch and start runs in the UI of Prefect."""


@prefect.command(epilog="Example:  treadle prefect up --folder .")
@folder_option
@click.option("--port", type=click.IntRange(1, 65535), default=4200, show_default=True, help="Of the server and UI.")
@click.option(
    "--database",
    metavar="URL",
    help="postgresql://USER:PASSWORD@HOST/NAME, no SQLite file.  [env: PREFECT_SERVER_DATABASE_CONNECTION_URL]",
)
@click.option("--queue", "queues", multiple=True, help="Queue that the worker takes from, repeatable.  [default: all]")
@click.option("--limit", type=click.IntRange(min=1), help="Flow runs at a time.  [default: any number]")
@notify_option
def up(
    folder: Path,
    port: int,
    database: str | None,
    queues: tuple[str, ...],
    limit: int | None,
    notify_block: str | None,
) -> None:
    """Start a Prefect server and a worker, with everything set up, until Ctrl-C.

    Sets up work pool, queues, deployments and automations; on a server that has them they are brought up to date. The
    database and logs are kept in $PREFECT_HOME, or in the folder `prefect` of Treadle's cache.
    """
    from treadle.core.errors import ConfigError
    from treadle.tasks.prefect.deployments import POOL, QUEUES
    from treadle.tasks.prefect.server import database_url, prefect_home, running_server

    if unknown := sorted(set(queues) - QUEUES.keys()):
        raise ConfigError(f"there is no queue {unknown[0]!r}; there are {', '.join(QUEUES)}")
    home = prefect_home()
    if found := home.running():
        until = f", until {found.doing} ends" if found.doing else ""
        click.echo(f"already running: {found.api_url.removesuffix('/api')} (process {found.pid}){until}")
        return
    say("starting the Prefect server (some ten seconds, longer the first time)")
    with running_server(home, port, database_url(database), say) as server:
        os.environ.update(server.env)
        lines = _set_up(folder, POOL, notify_block)
        server.start_worker(queues, limit)
        click.echo(f"Prefect is up: {server.ui_url}")
        for line in (f"flow runs work in {folder}", *lines, f"logs: {home.folder / 'logs'}"):
            click.echo(f"  {line}")
        click.echo("in another terminal:")
        click.echo(f"  export PREFECT_API_URL={server.api_url}")
        click.echo("  treadle run CONFIG.toml --run first                       (a flow run in that terminal)")
        click.echo(
            "  prefect deployment run flywheel/full --param run_id=first --param config_file=CONFIG.toml --watch"
        )
        click.echo("stop all with Ctrl-C")
        server.watch()


@prefect.command(short_help="Set up a Prefect server of your own.", epilog="Example:  treadle prefect deploy")
@folder_option
@click.option("--pool", help="Work pool of type process.  [default: local-process]")
@notify_option
def deploy(folder: Path, pool: str | None, notify_block: str | None) -> None:
    """Set up pool, queues, deployments and automations on the server of PREFECT_API_URL.

    Needs no checkout: flow runs import the installed package. Run again, it brings them up to date.
    """
    from treadle.core.errors import ConfigError
    from treadle.tasks.doctor import prefect_answers
    from treadle.tasks.prefect.deployments import POOL

    url = os.environ.get("PREFECT_API_URL")
    if not url:
        raise ConfigError("PREFECT_API_URL is not set; set it to your server's, or start one with: treadle prefect up")
    if not prefect_answers(url):
        raise ConfigError(f"the Prefect server of PREFECT_API_URL={url} does not answer")
    for line in _set_up(folder, pool or POOL, notify_block):
        click.echo(line)
    click.echo(f"start a worker with: prefect worker start --pool {shlex.quote(pool or POOL)}")


def _set_up(folder: Path, pool: str, notify_block: str | None) -> list[str]:
    """Everything of ours on the server of PREFECT_API_URL; returns what to tell of it."""
    from treadle.core.errors import EngineError
    from treadle.tasks.prefect.automations import install_automations
    from treadle.tasks.prefect.deployments import DEPLOYMENTS, QUEUES, deploy

    try:
        deploy(folder, pool)
        lines = install_automations(notify_block)
    except ImportError as error:
        raise EngineError(
            f"Prefect cannot be used ({error}); install it with: pip install 'treadle[orchestration]'"
        ) from error
    return [f"{len(DEPLOYMENTS)} deployments in pool {pool}, queues {', '.join(QUEUES)}", *lines]
