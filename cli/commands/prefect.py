"""Define `treadle prefect`: run a Prefect server and workers, and deploy Treadle's flows."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from treadle.cli.options import say

folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True, resolve_path=True),
    default=".",
    show_default="the current one",
    help="Working directory of flow runs; relative roots and configuration files are resolved against it.",
)
notify_option = click.option(
    "--notify-block",
    metavar="TYPE/NAME",
    help="Send notifications of failed and crashed flow runs through this block, such as slack-webhook/my-hook.",
)
pool_option = click.option("--pool", help="Work pool of type process.  [default: local-process]")
queue_option = click.option(
    "--queue", "queues", multiple=True, help="Queue that the worker polls; repeatable.  [default: all]"
)
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), help="Maximum number of concurrent flow runs.  [default: no limit]"
)


@click.group(short_help="Watch and start runs in the Prefect UI.", epilog="Example:  treadle prefect up --port 4300")
def prefect() -> None:
    """Watch and start runs in the Prefect UI."""


@prefect.command(epilog="Example:  treadle prefect up --folder .")
@folder_option
@click.option(
    "--port", type=click.IntRange(1, 65535), default=4200, show_default=True, help="Port of the server and UI."
)
@click.option(
    "--database",
    metavar="URL",
    help="postgresql://USER:PASSWORD@HOST/NAME, no SQLite file.  [env: PREFECT_SERVER_DATABASE_CONNECTION_URL]",
)
@queue_option
@limit_option
@notify_option
def up(
    folder: Path,
    port: int,
    database: str | None,
    queues: tuple[str, ...],
    limit: int | None,
    notify_block: str | None,
) -> None:
    """Start a Prefect server and a worker with everything set up, until Ctrl-C.

    Creates or updates work pool, queues, deployments and automations. The database and logs are kept in $PREFECT_HOME,
    or in the folder `prefect` of Treadle's cache.
    """
    from treadle.tasks.prefect.deployments import POOL
    from treadle.tasks.prefect.prefect_home import prefect_home
    from treadle.tasks.prefect.server import database_url, running_server

    _known_queues(queues)
    home = prefect_home()
    if found := home.running():
        until = f", until {found.doing} ends" if found.doing else ""
        click.echo(f"already running: {found.api_url.removesuffix('/api')} (process {found.pid}){until}")
        return
    say("starting the Prefect server (about ten seconds, longer the first time)")
    with running_server(home, port, database_url(database), say) as server:
        os.environ.update(server.env)
        lines = _set_up(folder, POOL, notify_block)
        server.start_worker(queues, limit)
        click.echo(f"Prefect is up: {server.ui_url}")
        for line in (f"flow runs work in {folder}", *lines, f"logs: {home.folder / 'logs'}"):
            click.echo(f"  {line}")
        click.echo(f"  the UI asks for a password: it is the text in {home.password_file}")
        click.echo("in another terminal:")
        click.echo('  eval "$(treadle prefect env)"                             (the server\'s address and password)')
        click.echo("  treadle run CONFIG.toml --run first                       (a flow run in that terminal)")
        click.echo(
            "  prefect deployment run flywheel/full --param run_id=first --param config_file=CONFIG.toml --watch"
        )
        click.echo("stop all with Ctrl-C")
        server.watch()


@prefect.command(short_help="Set up a Prefect server of your own.", epilog="Example:  treadle prefect deploy")
@folder_option
@pool_option
@notify_option
def deploy(folder: Path, pool: str | None, notify_block: str | None) -> None:
    """Set up work pool, queues, deployments and automations on the server of PREFECT_API_URL.

    Needs no checkout: flow runs import the installed package. Run it again to update them.
    """
    from treadle.tasks.prefect.deployments import POOL

    _check_server()
    for line in _set_up(folder, pool or POOL, notify_block):
        click.echo(line)
    option = f" --pool {shlex.quote(pool)}" if pool else ""
    click.echo(f"start a worker with: treadle prefect worker{option}")


@prefect.command(short_help="Print address and password of the server.", epilog="Example:  treadle prefect env")
def env() -> None:
    """Print shell commands that set the address and password of the server of `up` for this user's programs.

    Evaluate the output and do not show it: it contains the password.
    """
    from treadle.core.errors import ConfigError
    from treadle.tasks.prefect.prefect_home import PASSWORD, prefect_home

    home = prefect_home()
    running = home.running()
    if running is None:
        raise ConfigError(f"no Prefect server runs from {home.folder}; start one with: treadle prefect up")
    click.echo(f"export PREFECT_API_URL={shlex.quote(running.api_url)}")
    if (password := home.stored_password()) is not None:
        click.echo(f"export {PASSWORD}={shlex.quote(password)}")


@prefect.command(short_help="Start a worker.", epilog="Example:  treadle prefect worker --queue gpu --limit 1")
@pool_option
@queue_option
@limit_option
def worker(pool: str | None, queues: tuple[str, ...], limit: int | None) -> None:
    """Run flow runs of Treadle's deployments from the server of PREFECT_API_URL, until Ctrl-C.

    Flow runs of any other deployment are refused, because a deployment can make a worker run arbitrary programs.
    """
    from treadle.tasks.prefect.deployments import POOL

    _check_server()
    _known_queues(queues)
    from treadle.tasks.prefect.worker import run_worker

    run_worker(pool or POOL, queues, limit)


def _check_server() -> None:
    """Raise ConfigError unless PREFECT_API_URL names a server that can be used."""
    from treadle.core.errors import ConfigError
    from treadle.tasks.doctor import require_prefect

    url = os.environ.get("PREFECT_API_URL")
    if not url:
        raise ConfigError("PREFECT_API_URL is not set; set it to your server's, or start one with: treadle prefect up")
    require_prefect(url)


def _known_queues(queues: tuple[str, ...]) -> None:
    from treadle.core.errors import ConfigError
    from treadle.tasks.prefect.deployments import QUEUES

    if unknown := sorted(set(queues) - QUEUES.keys()):
        raise ConfigError(f"there is no queue {unknown[0]!r}; the queues are {', '.join(QUEUES)}")


def _set_up(folder: Path, pool: str, notify_block: str | None) -> list[str]:
    """Set up everything on the server of PREFECT_API_URL; return lines about it for the user."""
    from treadle.core.errors import EngineError
    from treadle.tasks.prefect.automations import install_automations
    from treadle.tasks.prefect.deployments import QUEUES, deploy, deployments

    try:
        deploy(folder, pool)
        lines = install_automations(notify_block)
    except ImportError as error:
        raise EngineError(
            f"Prefect cannot be used ({error}); install it with: pip install 'treadle[orchestration]'"
        ) from error
    return [f"{len(deployments())} deployments in pool {pool}, queues {', '.join(QUEUES)}", *lines]
