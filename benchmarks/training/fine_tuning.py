"""Fine-tune SmolLM2 on the flywheel's rows on this machine, and compare base and tuned on held-out questions.

    python -m benchmarks.training.fine_tuning [--seeds 0 1 2] [--tiers 0] [--set sft.max_rows=400] [--json]

Needs the engines `serve` and `sft` (`treadle env install`). Every seed makes its own world, pools (the tutor's noisy
persona), rows, checkpoint and rollouts with real tools, as configured in benchmarks/training/fine_tuning.toml, in a run
of its own in `--folder`. Running it again resumes these runs. The intervals are Wilson's; over all seeds each held-out
question counts as one trial.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.parts.figures import Figure, add_json_option, publish
from benchmarks.parts.world_runs import run_seed
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.demo.results import ModelCounts, counts_by_model
from treadle.eval.statistics import wilson_interval

CONFIG = Path(__file__).with_suffix(".toml")
MODELS = ("base", "tuned")


def training(run: Run) -> dict[str, Any]:
    """Return the metrics of the stage `sft`."""
    record = run.record(Address(1, "sft"))
    assert record is not None
    return dict(record.metrics)


def figures_of(
    per_seed: dict[int, dict[str, ModelCounts]], trained: dict[int, dict[str, Any]], bounded: bool
) -> list[Figure]:
    """Return accuracy per seed and overall, valid answers and calls overall, and training times."""
    figures = []
    for model in MODELS:
        found = [tallies_of[model] for tallies_of in per_seed.values()]
        for seed, tally in zip(per_seed, found, strict=True):
            figures.append(Figure(name=f"{model}, seed {seed}: accuracy", value=tally.num_right / tally.num_rollouts))
        whole = sum(found, ModelCounts())
        accuracy = whole.num_right / whole.num_rollouts
        low, high = wilson_interval(accuracy, whole.num_rollouts)
        bound = 0.9 if model == "tuned" and bounded else None
        figures.append(Figure(name=f"{model}: accuracy", value=accuracy, at_least=bound))
        figures.append(Figure(name=f"{model}: accuracy, lower end", value=low))
        figures.append(Figure(name=f"{model}: accuracy, upper end", value=high))
        figures.append(Figure(name=f"{model}: ended with an answer", value=whole.num_valid / whole.num_rollouts))
        figures.append(Figure(name=f"{model}: calls", value=whole.num_calls, unit="calls"))
        if whole.num_calls:
            ran = 1 - whole.num_failed_calls / whole.num_calls
            figures.append(Figure(name=f"{model}: calls that ran without an error", value=ran))
    for seed, metrics in trained.items():
        seconds, bound = metrics["seconds"], 600.0 if bounded else None
        figures.append(Figure(name=f"seed {seed}: training", value=seconds, unit="s", at_most=bound))
    return figures


def main() -> None:
    """Run all seeds and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one run each")
    parser.add_argument("--tiers", type=int, nargs="+", default=[0], help="kinds of questions: 0 one call, 1 several")
    parser.add_argument("--folder", type=Path, default=Path("outputs/fine-tuning"), help="where runs are kept")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the run")
    add_json_option(parser)
    options = parser.parse_args()
    per_seed, trained = {}, {}
    for seed in options.seeds:
        run = run_seed([CONFIG], options.folder / f"seed-{seed}", seed, tiers=options.tiers, changes=options.set)
        per_seed[seed], trained[seed] = counts_by_model(run, MODELS), training(run)
    publish(figures_of(per_seed, trained, bounded=options.tiers == [0]), options.json)


if __name__ == "__main__":
    main()
