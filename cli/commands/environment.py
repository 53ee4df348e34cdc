"""Define `treadle environment`: serve environments over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from treadle.cli.options import say
from treadle.core.errors import ConfigError


@click.group(
    short_help="Serve environments over HTTP.", epilog="Example:  treadle environment serve ledger --port 8080"
)
def environment() -> None:
    """Serve environments to trainers that act in them over HTTP."""


@environment.command(epilog="Example:  treadle environment serve ledger my_envs.py:Guess --max-processes 64")
@click.argument("types", nargs=-1, metavar="[TYPE]...")
@click.option(
    "--config",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="TOML file with tables [service] and [environments.NAME].",
)
@click.option("--host", help="Address to listen on; non-loopback addresses need --token-env. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="0 picks a free port. [default: 8080]")
@click.option("--token-env", metavar="NAME", help="Environment variable with the token that callers must send.")
@click.option("--max-instances", type=click.IntRange(min=1), help="Most live instances. [default: 4096]")
@click.option("--max-processes", type=click.IntRange(min=1), help="Most processes of instances. [default: 256]")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key, as in service.idle_timeout_s=600."
)
def serve(types: tuple[str, ...], files: tuple[Path, ...], overrides: tuple[str, ...], **service: Any) -> None:
    """Serve environments of each TYPE, and those of --config, until SIGTERM or Ctrl-C.

    A TYPE is a shipped one such as ledger, my_envs.py:Guess, package.module:Guess, the name of an entry point, or a
    folder such as environments/appworld with AppworldEnv in appworld_env.py; callers send it, without its folder, as
    `env_type`. The routes are those of AgentEvolver's environment service, and
    /metrics, /instances and /docs. Types that are not shipped run in a process per instance.
    """
    from treadle.core.config import load_config

    try:
        from treadle.environments.service.server import serve as serve_environments
        from treadle.environments.service.settings import EnvironmentServiceConfig, served_names
    except ImportError as error:
        raise ConfigError(
            f"the service needs the package {error.name}; install treadle with its extra retriever-service"
        ) from None
    given = {name: value for name, value in service.items() if value is not None}
    data = {"service": given, "environments": {name: {"type": one} for name, one in served_names(types).items()}}
    config = load_config(EnvironmentServiceConfig, files, overrides, data=data)
    serve_environments(
        config.service,
        config.environments,
        # AgentEvolver's launcher waits for these words; unlike there, requests are answered by now.
        lambda url: click.echo(f"Starting server on {url} (page: {url}/docs); Ctrl-C stops it"),
    )
    say("stopped: all instances were released")
