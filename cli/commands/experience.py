"""Define `treadle experience`: serve experience over HTTP."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from treadle.cli.options import say
from treadle.core.errors import ConfigError, Interrupted


@click.group(
    short_help="Serve experience from trajectories over HTTP.",
    epilog="Example:  treadle experience serve --config experience.toml",
)
def experience() -> None:
    """Summarise trajectories as experience, and find it again, for trainers that ask over HTTP."""


@experience.command(epilog="Example:  treadle experience serve --config experience.toml --folder pools --port 8001")
@click.option(
    "--config",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="TOML file with [models.NAME], [experience] and [service].",
)
@click.option("--folder", type=click.Path(path_type=Path), help="Folder of the pools. [default: experience]")
@click.option("--host", help="Address to listen on; non-loopback addresses need --token-env. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="0 picks a free port. [default: 8001]")
@click.option("--token-env", metavar="NAME", help="Environment variable with the token that callers must send.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key, as in experience.max_records=5."
)
def serve(files: tuple[Path, ...], overrides: tuple[str, ...], **service: Any) -> None:
    """Serve pools of experience over HTTP until Ctrl-C.

    The routes are /retrieve_task_memory and /summary_task_memory, as AgentEvolver's trainer calls them, and /records,
    /health and /docs. Each workspace is a pool of its own. Without experience.summariser.model nothing is summarised.
    """
    from treadle.core.config import load_config

    try:
        from treadle.rl.experience.service.config import ExperienceServiceConfig
        from treadle.rl.experience.service.server import serve as serve_experience
    except ImportError as error:
        raise ConfigError(
            f"the service needs the package {error.name}; install treadle with its extra retriever-service"
        ) from None
    given = {name: value for name, value in service.items() if value is not None}
    config = load_config(ExperienceServiceConfig, files, overrides, data={"service": given})
    # The service ends only by a signal, after requests in flight have been answered.
    with contextlib.suppress(KeyboardInterrupt):
        serve_experience(config, lambda url: say(f"listening on {url} (page: {url}/docs); Ctrl-C stops it"))
    raise Interrupted("stopped")
