"""Define the command `demo`."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treadle.cli.options import root_option, say, set_option
from treadle.cli.shown_runs import run_shown, shown_companions, shown_flow_run

if TYPE_CHECKING:
    from treadle.cli.views.progress import ProgressView
    from treadle.core.runs.run import Run
    from treadle.tasks.config import TreadleConfig


@click.command(short_help="Run a small end-to-end demo on this machine.", epilog="Example:  treadle demo --prefect")
@click.argument("name", type=click.Choice(["flywheel", "gap", "colbench", "evolve"]), default="flywheel")
@click.option("--fresh", is_flag=True, help="Start a new demo run instead of continuing the last one.")
@click.option("--frontend", is_flag=True, help="colbench: pages in place of programs. Nothing is trained.")
@click.option("--tutor-only", is_flag=True, help="Run only the tutor: no models, training or engines (9 GB).")
@click.option(
    "--prefect", "with_prefect", is_flag=True, help="Run in Prefect; without a server, a temporary one is started."
)
@set_option
@root_option
def demo(
    name: str,
    fresh: bool,
    frontend: bool,
    tutor_only: bool,
    with_prefect: bool,
    overrides: tuple[str, ...],
    root: str | Path,
) -> None:
    """Train a small model on what the flywheel makes, and measure what it learned.

    `flywheel` creates a fictional world with questions about it. A rule-based tutor answers some of them with search
    and Python, its mistakes are repaired, and right trajectories become rows to train on. SmolLM2-135M is fine-tuned on
    them, then trained by reinforcement learning, and answers held-out questions before and after each, with the same
    tools.

    `gap` compares plans of parallel searches with one search after the other: SmolLM2-135M, fine-tuned on the tutor's
    trajectories of both kinds, answers the same 40 held-out comparisons either way.

    `colbench` lets SmolLM2-135M write programs for a human, played by rule, who answers questions about what a request
    leaves open. It is fine-tuned on the tutor's dialogues, then trained by SWEET-RL: a critic that sees the hidden
    program ranks messages, and the model learns from pairs of them. Hidden tests decide. With --frontend, the tutor
    writes web pages for a human who sees pictures of them; nothing is trained.

    `evolve` lets an agent make its own tasks: one explores the accounts of a ledger, another writes tasks about what it
    found, a third tries them out. SmolLM2-135M, fine-tuned on a clerk's rollouts, is trained on them by reinforcement
    learning, with hints from experience and credit for single steps. Held-out tasks are at an environment service.

    If a demo is stopped or killed, run it again and it continues.

    Each step shows its progress and the time left. vLLM, LLaMA-Factory and TRL are installed once, in 5 to 9 minutes.
    """
    from treadle.cli.views.demo_summary import print_demo_end
    from treadle.cli.views.progress import ProgressView
    from treadle.core.errors import ConfigError, RunError
    from treadle.demo.quickstart import chosen_demo, demo_configuration
    from treadle.demo.steps import DEMO_STEPS, DemoSteps
    from treadle.tasks.catalog import flow_instances
    from treadle.tasks.planning.run_setup import open_run

    if not isinstance(root, Path):
        raise ConfigError("the demo writes its world next to its run: give a local folder as --root")
    name, command = chosen_demo(name, frontend=frontend, tutor_only=tutor_only)
    run_id, config = demo_configuration(name, root, fresh=fresh, tutor_only=tutor_only, overrides=overrides, notify=say)
    with ExitStack() as stack:
        # New models are checked against their servers, which may be companions.
        stack.enter_context(shown_companions(config, ProgressView()))
        try:
            opened = open_run(root, run_id, config)
        except RunError as error:
            raise RunError(f"{error}; or start over with: {command} --fresh") from error
        timed = not (tutor_only or overrides)
        view = ProgressView(steps=DemoSteps(flow_instances(config), opened, timed=timed, steps=DEMO_STEPS[name]))
        server = None
        if with_prefect or os.environ.get("PREFECT_API_URL"):
            from treadle.tasks.prefect.available_server import available_server

            server = stack.enter_context(available_server(say))
        _make_demo(opened, config, view, as_flow=server is not None)
        print_demo_end(opened, view.records, config, name)
        if server is not None and view.url:
            click.echo(f"the flow run in Prefect: {server.url_after_exit(view.url)}")


def _make_demo(run: Run, config: TreadleConfig, view: ProgressView, *, as_flow: bool) -> None:
    """Run all instances of the demo, with or without a flow run."""
    from treadle.tasks.catalog import flow_instances
    from treadle.tasks.run_instances import run_instances

    if as_flow and _made_in_flow_run(run, config, view):
        return
    with run_instances(flow_instances(config), run, config, notify=view.tell) as scheduled_instances:
        for scheduled in scheduled_instances:
            run_shown(scheduled, run, view)


def _made_in_flow_run(run: Run, config: TreadleConfig, view: ProgressView) -> bool:
    """Run all instances of the demo in a flow run; return False, after a message, if Prefect fails."""
    from treadle.core.untrusted.sanitize import one_line
    from treadle.tasks.prefect.available_server import is_prefect_error

    try:
        with shown_flow_run(view):
            from treadle.flows.flywheel import flywheel

            flywheel(run_id=run.run_id, config=config, root=run.storage.location())
    except Exception as error:
        if not is_prefect_error(error):
            raise
        say(f"continuing without Prefect, which failed: {one_line(str(error) or type(error).__name__)}")
        view.records.clear()  # finished results are reported again, as reused
        return False
    return True
