"""Train a fine-tuned SmolLM2 with reinforcement learning on this machine, with the real reward and real tools.

    python -m benchmarks.training.reinforcement [--scenarios correctness efficiency] [--seeds 0 1 2] [--json]

Needs the engines `serve`, `sft` and `trl` (`treadle env install`). Every seed makes its own world, start checkpoint,
selection and training, as configured in benchmarks/reinforcement*.toml, in a run of its own in `--folder`. Running it
again resumes these runs. Scenario `correctness` starts from an under-tuned policy, `efficiency` from a policy that was
tuned to waste calls.

Rewards are those of the training rollouts: per question, the mean reward of its group when it was first and when it was
last trained on, and the change between them. Held-out questions are answered greedily by both policies. Intervals are
95 %: Wilson for shares, and for changes the normal interval of their mean over questions, per seed and over all seeds.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.parts.figures import Figure, add_json_option, publish
from benchmarks.parts.world_runs import run_seed
from treadle.core.plots import COLOUR, LIGHT, draw_svg
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.demo.results import first_and_last_rewards
from treadle.eval.statistics import Z_95, wilson_interval
from treadle.rl.training.curves import moving_mean
from treadle.stages.report import telemetry_rows

COMMON = Path(__file__).with_suffix(".toml")
SCENARIOS = ("correctness", "efficiency")
PHASE = Address(1, "rl", "phase-1")
MODELS = ("tuned", "reinforced")
PANELS = ("reward", "score", "calls")


def table(run: Run, address: Address, kind: str) -> Iterable[dict[str, Any]]:
    """Return the rows of an instance's output."""
    record = run.record(address)
    assert record is not None
    return run.rows(record.outputs[kind]).rows()


def held_out(run: Run, model: str) -> dict[str, tuple[bool, int]]:
    """Map each question to whether the model was right and how many calls it requested."""
    rows = table(run, Address(1, "scores", model), "scores")
    return {row["question_key"]: (bool(row["correct"]), row["calls_requested"]) for row in rows}


def changes_of(run: Run) -> dict[str, list[float]]:
    """Return changes per question: reward of training questions, accuracy and calls of held-out questions."""
    before, after = (held_out(run, model) for model in MODELS)
    shared = sorted(before.keys() & after.keys())
    rewards = first_and_last_rewards(table(run, PHASE, "rl_rollouts"))
    held = {
        what: [float(after[key][place]) - float(before[key][place]) for key in shared]
        for what, place in (("accuracy", 0), ("calls per question", 1))
    }
    return {"reward": [last - first for first, last in rewards], **held}


def figures_of_seed(name: str, run: Run, changes: Mapping[str, Sequence[float]]) -> list[Figure]:
    """Return rewards on training questions, accuracy and calls on held-out ones, and the cost of training."""
    rewards = first_and_last_rewards(table(run, PHASE, "rl_rollouts"))
    figures = [
        Figure(name=f"{name}: reward, first", value=fmean(first for first, _ in rewards)),
        Figure(name=f"{name}: reward, last", value=fmean(last for _, last in rewards)),
    ]
    for model in MODELS:
        answered = held_out(run, model)
        accuracy = fmean(right for right, _ in answered.values())
        figures += _interval(f"{name}: {model}: accuracy", accuracy, *wilson_interval(accuracy, len(answered)))
        calls = fmean(asked for _, asked in answered.values())
        figures.append(Figure(name=f"{name}: {model}: calls per question", value=calls, unit="calls"))
    figures += _changes(name, changes)
    record = run.record(PHASE)
    assert record is not None
    figures.append(Figure(name=f"{name}: steps", value=record.metrics["steps"], unit="steps"))
    figures.append(Figure(name=f"{name}: training", value=record.metrics["seconds"], unit="s", at_most=3600.0))
    return figures


def _changes(name: str, changes: Mapping[str, Sequence[float]]) -> list[Figure]:
    return [figure for what, values in changes.items() for figure in _change(f"{name}: change of {what}", values)]


def _change(name: str, changes: Sequence[float]) -> list[Figure]:
    mean, half = fmean(changes), Z_95 * stdev(changes) / math.sqrt(len(changes))
    return _interval(name, mean, mean - half, mean + half)


def _interval(name: str, mean: float, low: float, high: float) -> list[Figure]:
    return [
        Figure(name=name, value=mean),
        Figure(name=f"{name}, from", value=low),
        Figure(name=f"{name}, to", value=high),
    ]


def curves_of(run: Run) -> dict[str, list[float]]:
    """Map each panel to its values by step."""
    record = run.record(PHASE)
    assert record is not None
    return {panel: [step[panel] for step in telemetry_rows(record, run, "rl_log")] for panel in PANELS}


def picture(scenarios: Mapping[str, Sequence[Mapping[str, Sequence[float]]]]) -> bytes:
    """Draw a row of panels per scenario: each seed's moving mean over steps, and the mean of the seeds."""

    def draw(figure: Any) -> None:
        axes = figure.subplots(len(scenarios), len(PANELS), squeeze=False, sharex=True)
        for row, (scenario, seeds) in zip(axes, scenarios.items(), strict=True):
            for axis, panel in zip(row, PANELS, strict=True):
                curves = [moving_mean(seed[panel]) for seed in seeds]
                for curve in curves:
                    axis.plot(range(1, len(curve) + 1), curve, color=LIGHT, linewidth=1)
                means = [fmean(values) for values in zip(*curves, strict=True)]
                axis.plot(range(1, len(means) + 1), means, color=COLOUR, linewidth=2)
            row[0].set_ylabel(scenario)
        for axis, panel in zip(axes[0], PANELS, strict=True):
            axis.set_title(panel)
        for axis in axes[-1]:
            axis.set_xlabel("step")

    return draw_svg(draw, width=8.0, height=2.2 * len(scenarios))


def main() -> None:
    """Run all scenarios and seeds and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", choices=SCENARIOS, nargs="+", default=list(SCENARIOS), help="scenarios to train")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one run each")
    parser.add_argument("--folder", type=Path, default=Path("outputs/reinforcement"), help="where runs are kept")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the run")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the curves of all runs, as SVG")
    add_json_option(parser)
    options = parser.parse_args()
    figures = []
    curves: dict[str, list[dict[str, list[float]]]] = defaultdict(list)
    for scenario in options.scenarios:
        configs = [COMMON, COMMON.with_stem(f"{COMMON.stem}_{scenario}")]
        pooled: dict[str, list[float]] = defaultdict(list)
        for seed in options.seeds:
            run = run_seed(configs, options.folder / f"{scenario}-{seed}", seed, changes=options.set)
            curves[scenario].append(curves_of(run))
            changes = changes_of(run)
            figures += figures_of_seed(f"{scenario}, seed {seed}", run, changes)
            for what, values in changes.items():
                pooled[what] += values
        if len(options.seeds) > 1:
            figures += _changes(f"{scenario}, all seeds", pooled)
    if options.picture:
        options.picture.write_bytes(picture(curves))
    publish(figures, options.json)


if __name__ == "__main__":
    main()
