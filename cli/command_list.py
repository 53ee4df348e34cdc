"""List the commands of `treadle`."""

from __future__ import annotations

import click

from treadle.cli.commands.demo import demo
from treadle.cli.commands.diff import diff
from treadle.cli.commands.engines import doctor, env, serve, tutor
from treadle.cli.commands.eval import evaluate
from treadle.cli.commands.export import export
from treadle.cli.commands.gc import gc
from treadle.cli.commands.import_files import import_
from treadle.cli.commands.init import init
from treadle.cli.commands.inspect import lineage, show, status, verify
from treadle.cli.commands.prefect import prefect
from treadle.cli.commands.report import report
from treadle.cli.commands.retriever import retriever
from treadle.cli.commands.run import run, stage
from treadle.cli.commands.view import view
from treadle.cli.commands.web import web
from treadle.cli.commands.work import work

COMMANDS: tuple[click.Command, ...] = (
    init, demo, run, evaluate, stage, work, status, show, view, lineage, diff, verify, report, export, import_,
    gc, prefect, web, doctor, env, serve, tutor, retriever,
)  # fmt: skip
"""Commands in the order in which `treadle --help` lists them."""
