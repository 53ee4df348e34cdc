"""List the commands of `treadle` that run servers."""

from __future__ import annotations

import click

from treadle.cli.commands.companions import companions
from treadle.cli.commands.engines import serve, tutor
from treadle.cli.commands.environment import environment
from treadle.cli.commands.experience import experience
from treadle.cli.commands.prefect import prefect
from treadle.cli.commands.retriever import retriever

SERVERS: tuple[click.Command, ...] = (serve, tutor, retriever, environment, experience, companions, prefect)
"""Commands in the order in which `treadle --help` lists them."""
