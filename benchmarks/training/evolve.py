"""Train SmolLM2 on tasks that agents made by exploring, with hints and attribution and without.

    python -m benchmarks.training.evolve [--seeds 0 1 2] [--heldout 100] [--folder FOLDER] [--json]

Needs the engines `serve`, `sft` and `trl` (`treadle env install`). Each seed is the run of configs/evolve-small.toml:
tasks of a ledger are made by exploring, the start learns right rollouts of a rule-based tutor, and GRPO trains it on
the new tasks. `evolver` does so with hints from experience and credit for single steps; `plain` is a copy of that run
whose training has neither, from the same start, on the same tasks. Held-out tasks are played at an environment
service. Intervals are of 95 %, over the tasks of all seeds. Running it again resumes the runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.parts.figures import Figure, add_json_option, publish
from benchmarks.parts.solved import change_figures, pooled, solved_figures
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.demo.embedded_model import embedded_tokenizer
from treadle.demo.evolve.results import heldout_rollouts
from treadle.demo.evolve.world import LedgerWorld
from treadle.tasks.planning.toml_lines import toml_lines

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "evolve-small.toml"
TREADLE = Path(sys.executable).with_name("treadle")
RUN = "evolve"
START, POLICY = "start", "policy"
EVOLVER, PLAIN = "evolver", "plain"
NEITHER = ('rl.experience.rollout_mode="woexp"', 'rl.credit="outcome"')
"""What distinguishes the training of `plain`."""
TRAINING = Address(1, "rl", "phase-1")
LEAST_TASKS, LEAST_STEPS = 100, 24
"""Smallest number of held-out tasks, and of steps of each training, that the figures have to be over."""


def run_seed(folder: Path, seed: int, options: argparse.Namespace) -> dict[str, Run]:
    """Run both trainings of one seed in a folder of its own, or resume them, and return their runs."""
    _, tables = LedgerWorld(num_train=4 * options.heldout).write(folder / "world")
    tokenizer = str(embedded_tokenizer(lambda line: print(line, file=sys.stderr)))
    for name in ("tutor", "task_writer"):
        tables["models"][name] = {"server": {"tokenizer": tokenizer}}
    places = folder / "places.toml"
    places.write_text("\n".join([f"seed = {seed}", *toml_lines(tables), ""]), encoding="utf-8")
    changes = [part for change in options.set for part in ("--set", change)]
    evolver = _run(folder / EVOLVER, places, changes)
    if not (folder / PLAIN).exists():
        _copy(folder / EVOLVER, folder / PLAIN)
    without = [part for change in NEITHER for part in ("--set", change)]
    return {EVOLVER: evolver, PLAIN: _run(folder / PLAIN, places, [*changes, *without, "--allow-changes"])}


def _run(root: Path, places: Path, arguments: Sequence[str]) -> Run:
    command = [str(TREADLE), "run", str(CONFIG), str(places), "--run", RUN, "--root", str(root), *arguments]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return Run.open(root, RUN)


def _copy(root: Path, to: Path) -> None:
    """Copy a root; its artifacts, which never change, are linked."""
    part = to.with_name(f"{to.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(root, part, ignore=shutil.ignore_patterns("artifacts"))
    shutil.copytree(root / "artifacts", part / "artifacts", copy_function=os.link)
    part.rename(to)


def training_figures(name: str, runs: Iterable[Run]) -> list[Figure]:
    """Return the steps of the shortest training, and the mean rewards of the first and the last third of all steps."""
    num_steps, first, last = [], [], []
    for run in runs:
        record = run.record(TRAINING)
        assert record is not None
        num_steps.append(record.metrics["steps"])
        by_step = rewards_by_step(run.rows(record.outputs["rl_rollouts"]).rows(("step", "reward")))
        third = len(by_step) // 3
        first += by_step[:third]
        last += by_step[-third:]
    return [
        Figure(name=f"{name}: steps", value=min(num_steps), unit="steps", at_least=LEAST_STEPS),
        Figure(name=f"{name}: reward in the first third", value=fmean(first)),
        Figure(name=f"{name}: reward in the last third", value=fmean(last)),
    ]


def rewards_by_step(rows: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return the mean reward of the rollouts of each step, in order."""
    rewards: dict[int, list[float]] = {}
    for row in rows:
        if row["reward"] is not None:
            rewards.setdefault(row["step"], []).append(row["reward"])
    return [fmean(rewards[step]) for step in sorted(rewards)]


def main() -> None:
    """Run all seeds, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one run each")
    parser.add_argument("--heldout", type=int, default=100, help="held-out tasks per seed")
    parser.add_argument("--folder", type=Path, default=Path("outputs/evolve-small"), help="where runs are kept")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the runs")
    add_json_option(parser)
    options = parser.parse_args()
    seeds = [run_seed(options.folder / f"seed-{seed}", seed, options) for seed in options.seeds]
    runs = {name: [made[name] for made in seeds] for name in (EVOLVER, PLAIN)}
    start = pooled(runs[EVOLVER], lambda run: heldout_rollouts(run, START))
    policies = {name: pooled(of_name, lambda run: heldout_rollouts(run, POLICY)) for name, of_name in runs.items()}
    figures = solved_figures(START, start, LEAST_TASKS)
    for name, of_name in runs.items():
        figures += training_figures(name, of_name)
        figures += solved_figures(name, policies[name], LEAST_TASKS)
        figures += change_figures(f"{name} minus start", start, policies[name])
    figures += change_figures("evolver minus plain", policies[PLAIN], policies[EVOLVER])
    publish(figures, options.json)


if __name__ == "__main__":
    main()
