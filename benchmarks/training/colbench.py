"""Train SmolLM2 by SWEET-RL and its baselines on programs for a human, and compare all with their start.

    python -m benchmarks.training.colbench [--seeds 0 1 2] [--heldout 200] [--folder FOLDER] [--json]

Needs the engines `serve`, `sft` and `trl` (`treadle env install`). Each seed is the run of configs/colbench-small.toml
over tasks of its own: the start learns right dialogues of a rule-based tutor, critic and policies learn from rollouts
of the start, and hidden tests decide on held-out tasks. Intervals are of 95 %, over the tasks of all seeds. Running it
again resumes the runs; `treadle report` and `treadle view` show them with their curves.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean

from benchmarks.parts.figures import Figure, add_json_option, publish
from benchmarks.parts.solved import change_figures, pooled, solved_figures
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.demo.demos import program_tables
from treadle.demo.dialogue_results import dialogues_of
from treadle.demo.embedded_model import embedded_tokenizer
from treadle.demo.programs.tasks import write_programs
from treadle.eval.statistics import wilson_interval

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "colbench-small.toml"
TREADLE = Path(sys.executable).with_name("treadle")
START, POLICY = "start", "policy"
BASELINES = ("rft", "dialogue")
RUN = "colbench"
NUM_TAUGHT, NUM_TRAIN = 450, 160
"""Tasks of the tutor's dialogues, and other tasks to train on, per seed."""
LEAST_ACCURACY = 0.7
"""Smallest share of held-out pairs that the critic has to order rightly."""
LEAST_PAIRS = LEAST_TASKS = 200
"""Smallest number of held-out pairs, and of held-out tasks, that the figures have to be over."""


def run_seed(folder: Path, seed: int, options: argparse.Namespace) -> Run:
    """Run one seed in a folder of its own, or resume it, and return its run."""
    written = write_programs(folder / "world", taught=NUM_TAUGHT, train=NUM_TRAIN, heldout=options.heldout, seed=seed)
    tokenizer = embedded_tokenizer(lambda line: print(line, file=sys.stderr))
    places = folder / "places.toml"
    source = program_tables(written.questions.absolute())["questions"]["sources"][0]
    places.write_text(
        f"seed = {seed}\n"
        f"models.tutor.server.tokenizer = {json.dumps(str(tokenizer))}\n"
        f"models.human.server.tokenizer = {json.dumps(str(tokenizer))}\n"
        "[[questions.sources]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in source.items())
    )
    root = folder / "root"
    command = [str(TREADLE), "run", str(CONFIG), str(places), "--run", RUN, "--root", str(root)]
    command += [part for change in options.set for part in ("--set", change)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return Run.open(root, RUN)


def critic_figures(runs: Sequence[Run]) -> list[Figure]:
    """Return how often the critics order held-out pairs of dialogues rightly."""
    records = [run.record(Address(1, "dpo", "critic")) for run in runs]
    metrics = [record.metrics for record in records if record is not None]
    num_pairs, num_right = (sum(one[name] for one in metrics) for name in ("held_out_pairs", "held_out_right"))
    accuracy = num_right / num_pairs
    low, high = wilson_interval(accuracy, num_pairs)
    return [
        Figure(name="critic: held-out pairs", value=num_pairs, unit="pairs", at_least=LEAST_PAIRS),
        Figure(name="critic: accuracy on them", value=accuracy, at_least=LEAST_ACCURACY),
        Figure(name="critic: accuracy, lower end", value=low, at_least=0.5),
        Figure(name="critic: accuracy, upper end", value=high),
    ]


def main() -> None:
    """Run all seeds, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one run each")
    parser.add_argument("--heldout", type=int, default=80, help="held-out tasks per seed")
    parser.add_argument("--folder", type=Path, default=Path("outputs/colbench-small"), help="where runs are kept")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the runs")
    add_json_option(parser)
    options = parser.parse_args()
    runs = [run_seed(options.folder / f"seed-{seed}", seed, options) for seed in options.seeds]
    figures = critic_figures(runs)
    dialogues = {model: pooled(runs, partial(dialogues_of, model=model)) for model in (START, POLICY, *BASELINES)}
    for model, by_task in dialogues.items():
        figures += solved_figures(model, by_task, LEAST_TASKS)
        passed = fmean(one.score or 0.0 for one in chain.from_iterable(by_task.values()))
        figures.append(Figure(name=f"{model}: tests passed", value=passed))
        if model != START:
            # An interval above 0, not at it.
            at_least = 1e-9 if model == POLICY else None
            figures += change_figures(f"{model} minus start", dialogues[START], by_task, at_least)
    publish(figures, options.json)


if __name__ == "__main__":
    main()
