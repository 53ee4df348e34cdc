"""Reinforcement of a fine-tuned SmolLM2 on this machine, with the real reward and real tools.

    python benchmarks/reinforcement.py [--scenarios correctness efficiency] [--seeds 0 1 2] [--json]

Needs the engines `serve`, `sft` and `trl` (`treadle env install`). Every seed makes its own world, start checkpoint,
selection and training, as benchmarks/reinforcement*.toml say, in a run of its own below `--folder`; called again, it
goes on where it was. Scenario `correctness` begins under-tuned; `efficiency` with a policy that learnt to waste calls.

The mean reward is that of the rollouts trained on, over the first and the last quarter of the steps, groups being what
is sampled; held-out questions are answered greedily by both policies. Intervals are 95 %: normal ones of means, of the
difference per question where both policies answered it, and Wilson's of shares.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from figures import Figure, add_json_option, publish
from world_runs import run_seed

from treadle.core.runs import Run
from treadle.core.stage import Address
from treadle.eval.statistics import Z_95, wilson_interval

COMMON = Path(__file__).with_suffix(".toml")
SCENARIOS = ("correctness", "efficiency")
PHASE = Address(1, "rl", "phase-1")
MODELS = ("tuned", "reinforced")


@dataclass(frozen=True)
class Mean:
    """A mean with half the width of its interval."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Of independent values, at least two."""
        return cls(fmean(values), Z_95 * stdev(values) / math.sqrt(len(values)))


def table(run: Run, address: Address, kind: str) -> Iterable[dict[str, object]]:
    """Rows of what an instance made."""
    record = run.record(address)
    assert record is not None
    return run.rows(record.outputs[kind]).rows()


def training_rewards(run: Run) -> tuple[Mean, Mean]:
    """Mean reward over the groups of the first and of the last quarter of the steps."""
    groups: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in table(run, PHASE, "rl_rollouts"):
        if row["reward"] is not None:
            groups[int(str(row["step"])), str(row["group"])].append(float(str(row["reward"])))
    last = max(step for step, _ in groups)
    quarter = max(1, last // 4)
    first = [fmean(rewards) for (step, _), rewards in groups.items() if step <= quarter]
    final = [fmean(rewards) for (step, _), rewards in groups.items() if step > last - quarter]
    return Mean.of(first), Mean.of(final)


def held_out(run: Run, model: str) -> dict[str, tuple[bool, int]]:
    """Question -> whether the model was right, and the calls that it asked for."""
    rows = table(run, Address(1, "scores", model), "scores")
    return {str(row["question_key"]): (bool(row["correct"]), int(str(row["calls_requested"]))) for row in rows}


def figures_of_seed(name: str, run: Run) -> list[Figure]:
    """Reward on training questions, accuracy and calls on held-out ones, and what training took."""
    first, final = training_rewards(run)
    figures = []
    for when, reward in (("first steps", first), ("last steps", final)):
        figures += _interval(
            f"{name}: reward, {when}", reward.mean, reward.mean - reward.half, reward.mean + reward.half
        )
    answers = {model: held_out(run, model) for model in MODELS}
    for model, answered in answers.items():
        accuracy = fmean(right for right, _ in answered.values())
        figures += _interval(f"{name}: {model}: accuracy", accuracy, *wilson_interval(accuracy, len(answered)))
        calls = Mean.of([float(asked) for _, asked in answered.values()])
        figures.append(Figure(name=f"{name}: {model}: calls per question", value=calls.mean, unit="calls"))
    before, after = (answers[model] for model in MODELS)
    shared = sorted(before.keys() & after.keys())
    for what, place in (("accuracy", 0), ("calls per question", 1)):
        change = Mean.of([float(after[key][place]) - float(before[key][place]) for key in shared])
        figures += _interval(
            f"{name}: change of {what}", change.mean, change.mean - change.half, change.mean + change.half
        )
    record = run.record(PHASE)
    assert record is not None
    figures.append(Figure(name=f"{name}: steps", value=record.metrics["steps"], unit="steps"))
    figures.append(Figure(name=f"{name}: training", value=record.metrics["seconds"], unit="s", at_most=3600.0))
    return figures


def _interval(name: str, mean: float, low: float, high: float) -> list[Figure]:
    return [
        Figure(name=name, value=mean),
        Figure(name=f"{name}, from", value=low),
        Figure(name=f"{name}, to", value=high),
    ]


def main() -> None:
    """Run all scenarios and seeds and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--scenarios", choices=SCENARIOS, nargs="+", default=list(SCENARIOS), help="what is to be learnt"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one run each")
    parser.add_argument("--folder", type=Path, default=Path("outputs/reinforcement"), help="where runs are kept")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the run")
    add_json_option(parser)
    options = parser.parse_args()
    figures = []
    for scenario in options.scenarios:
        configs = [COMMON, COMMON.with_stem(f"{COMMON.stem}_{scenario}")]
        for seed in options.seeds:
            run = run_seed(configs, options.folder / f"{scenario}-{seed}", seed, changes=options.set)
            figures += figures_of_seed(f"{scenario}, seed {seed}", run)
    publish(figures, options.json)


if __name__ == "__main__":
    main()
