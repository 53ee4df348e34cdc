"""List the commands of `treadle`."""

from __future__ import annotations

from collections.abc import Mapping

import click

from treadle.cli.commands.demo import demo
from treadle.cli.commands.diff import diff
from treadle.cli.commands.engines import doctor, env
from treadle.cli.commands.eval import evaluate
from treadle.cli.commands.export import export
from treadle.cli.commands.gc import gc
from treadle.cli.commands.import_files import import_
from treadle.cli.commands.init import init
from treadle.cli.commands.inspect import lineage, logs, runs, show, status, verify
from treadle.cli.commands.report import report, view
from treadle.cli.commands.run import run, stage
from treadle.cli.commands.web import web
from treadle.cli.commands.work import work
from treadle.cli.server_list import SERVERS

COMMANDS: Mapping[str, tuple[click.Command, ...]] = {
    "Runs": (init, demo, run, evaluate, stage, work, runs, status, logs),
    "Results": (show, view, lineage, diff, verify, report),
    "Data and models": (export, import_, gc, web),
    "Servers": SERVERS,
    "This machine": (doctor, env),
}
"""Commands by group, in the order in which `treadle --help` lists them."""
