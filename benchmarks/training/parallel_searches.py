"""Compare parallel with sequential searches of one fine-tuned SmolLM2 on held-out comparisons.

    python -m benchmarks.training.parallel_searches [--seeds 0 1 2] [--questions 200] [--latency-s 0.2 1 3] [--json]

Needs the engines `serve` and `sft` (`treadle env install`). Each seed is the run of `treadle demo gap` over a world of
its own. Then the same model answers `--timed` of its questions again for each latency, with one rollout in flight and a
search service that is slower by this time, for the wall time per question. `--tutor-only` puts the tutor in place of
the model: it shows that the measurement works, and nothing of a model. Running it again resumes the runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.parts.delayed_search import TREADLE, delayed_search
from benchmarks.parts.figures import Figure, add_json_option, publish
from treadle.core.config import load_config
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.core.tables import MODEL_FOLDER
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.demos import DEMOS, GAP_WORLD
from treadle.demo.embedded_model import embedded_tokenizer
from treadle.demo.planning_results import PARALLEL, SEQUENTIAL, AnsweredQuestion, Answers, answers_of, paired_accuracy
from treadle.demo.world import World
from treadle.demo.world_files import write_world
from treadle.eval.statistics import ratio_interval, wilson_interval
from treadle.tasks.config import TreadleConfig

GAP = DEMOS["gap"]
MOST_DIFFERENCE = 0.05
"""Largest distance of the ends of the interval of the difference in accuracy from 0."""
LEAST_FALL = 0.25
"""Smallest fall in turns, and in wall time if a search takes 3 s."""
NUM_SAMPLES = 10_000
"""Samples of the bootstrap."""


def inline(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {inline(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value)


class Seed:
    """The runs of one seed in a folder of its own."""

    def __init__(self, folder: Path, seed: int, options: argparse.Namespace) -> None:
        self.folder, self.seed, self.options = folder, seed, options
        self.model = "tutor" if options.tutor_only else "tuned"
        folder.mkdir(parents=True, exist_ok=True)
        self.world = write_world(
            folder / "world",
            documents=options.documents,
            questions=GAP_WORLD.num_questions,
            heldout_questions=options.questions,
            tiers=GAP_WORLD.tiers,
            seed=seed,
        )
        say = lambda line: print(line, file=sys.stderr)  # noqa: E731
        self.tokenizer = write_byte_tokenizer(folder / "bytes") if options.tutor_only else embedded_tokenizer(say)

    def answers(self) -> tuple[Run, Answers]:
        """Return the run of the demo over this world, and the answers of its model."""
        return self._run("whole", {**self._tables(self.world), **(GAP.tutor_only if self.options.tutor_only else {})})

    def timed(self, trained: Run, latency_s: float) -> Answers:
        """Return the answers with one rollout in flight and slower searches."""
        with delayed_search(self.world.corpus, latency_s) as url:
            tables = self._tables(self.world)
            service = {"search": {"service": {"endpoints": [{"url": url}]}}}
            tables |= {"environments": dict.fromkeys(GAP_WORLD.environments, service)}
            tables |= {"flow": {"stages": ["rollouts", "scores"], "models": [self.model]}}
            limits = {"max_concurrent": 1, "max_questions_per_dataset": self.options.timed}
            if self.options.tutor_only:
                tables |= {"rollouts": {**GAP.tutor_only["rollouts"], **limits}}
            else:
                tables |= {"rollouts": limits}
                tables["models"]["tuned"] = {"server": {"model": str(self._checkpoint(trained))}}
            tables["overrides"] = {f"1/rollouts@{self.model}": {"split": "heldout"}}
            return self._run(f"latency-{latency_s:g}", tables)[1]

    def _tables(self, world: World) -> dict[str, Any]:
        return {"seed": self.seed, **GAP_WORLD.tables(world), **GAP.tokenizer_tables(self.tokenizer)}

    def _checkpoint(self, run: Run) -> Path:
        record = run.record(Address(1, "sft"))
        assert record is not None
        return Path(run.rows(record.outputs["checkpoint"]).folder(MODEL_FOLDER))

    def _run(self, name: str, tables: dict[str, Any]) -> tuple[Run, Answers]:
        text = "\n".join(f"{key} = {inline(value)}" for key, value in tables.items())
        (places := self.folder / f"{name}.toml").write_text(f"{text}\n")
        base = self.folder / "gap.toml"
        base.write_text(_without(GAP.config.read_text(), tables))
        root = self.folder / "root"
        command = [str(TREADLE), "run", str(base), str(places), "--run", name, "--root", str(root)]
        command += [part for change in self.options.set for part in ("--set", change)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        run = Run.open(root, name)
        config = load_config(TreadleConfig, (base, places), self.options.set)
        return run, answers_of(run, self.model, config.named_environments())


def _without(text: str, tables: dict[str, Any]) -> str:
    """Return the demo's configuration without overrides that belong to stages which the run does not have."""
    return text.split('[overrides."1/rollouts@tutor"]')[0] if "overrides" in tables else text


def compared(found: Sequence[Answers]) -> list[Figure]:
    """Return accuracy, turns, calls, tokens and tool times over all seeds, with intervals."""
    figures = []
    for name in (SEQUENTIAL, PARALLEL):
        answered = [one for answers in found for one in answers[name].values()]
        right = sum(one.is_right for one in answered)
        interval = wilson_interval(right / len(answered), len(answered))
        figures += _with_ends(f"{name}: accuracy", right / len(answered), interval)
        figures += _mean(f"{name}: turns", [one.num_turns for one in answered], "turns")
        figures += _mean(f"{name}: calls", [one.num_calls for one in answered], "calls")
        figures += _mean(f"{name}: sampled", [one.completion_tokens for one in answered], "tokens")
        paths_s = [one.critical_path_s for one in answered if one.critical_path_s is not None]
        figures += _mean(f"{name}: critical path of the tools", paths_s, "s")
    paired = paired_accuracy(found)
    assert paired is not None
    low, high = paired.difference.low, paired.difference.high
    figures += [
        Figure(name="difference in accuracy", value=paired.difference.mean),
        Figure(name="difference in accuracy, lower end", value=low, at_least=-MOST_DIFFERENCE),
        Figure(name="difference in accuracy, upper end", value=high, at_most=MOST_DIFFERENCE),
    ]
    return [*figures, *_change("turns", found, lambda one: one.num_turns, -LEAST_FALL)]


def timed_figures(found: Sequence[Answers], latency_s: float) -> list[Figure]:
    """Return the wall time per question in both environments at one latency, and its change."""
    figures = []
    for name in (SEQUENTIAL, PARALLEL):
        seconds = [one.seconds for answers in found for one in answers[name].values() if one.seconds is not None]
        figures += _mean(f"{latency_s:g} s per search, {name}: wall time", seconds, "s")
    bound = -LEAST_FALL if latency_s >= 3.0 else None
    return [
        *figures,
        *_change(f"wall time at {latency_s:g} s per search", found, lambda one: one.seconds or 0.0, bound),
    ]


def _mean(name: str, numbers: Sequence[float], unit: str) -> list[Figure]:
    interval = ratio_interval([(number, 1.0) for number in numbers], num_samples=NUM_SAMPLES, seed=0)
    return _with_ends(name, interval.mean, (interval.low, interval.high), unit)


def _change(
    what: str, found: Sequence[Answers], value: Callable[[AnsweredQuestion], float], at_most: float | None
) -> list[Figure]:
    """Return the relative change of a mean from sequential to parallel, over questions answered in both."""
    pairs = [
        (value(answers[PARALLEL][question]), value(answers[SEQUENTIAL][question]))
        for answers in found
        for question in sorted(answers[SEQUENTIAL].keys() & answers[PARALLEL].keys())
    ]
    ratio = ratio_interval(pairs, num_samples=NUM_SAMPLES, seed=0)
    return _with_ends(f"change in {what}", ratio.mean - 1, (ratio.low - 1, ratio.high - 1), at_most=at_most)


def _with_ends(
    name: str, value: float, ends: tuple[float, float], unit: str = "", at_most: float | None = None
) -> list[Figure]:
    """Return a value and the ends of its 95 % interval."""
    shown = [(name, value, at_most), (f"{name}, lower end", ends[0], None), (f"{name}, upper end", ends[1], None)]
    return [Figure(name=one, value=number, unit=unit, at_most=bound) for one, number, bound in shown]


def main() -> None:
    """Run all seeds and latencies, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one run each")
    parser.add_argument("--questions", type=int, default=200, help="held-out comparisons per seed")
    parser.add_argument("--documents", type=int, default=2000, help="documents per world")
    parser.add_argument("--latency-s", type=float, nargs="*", default=[0.2, 1.0, 3.0], help="seconds added to a search")
    parser.add_argument("--timed", type=int, default=8, help="comparisons per seed and latency")
    parser.add_argument("--tutor-only", action="store_true", help="the tutor in place of the model")
    parser.add_argument("--folder", type=Path, default=Path("outputs/parallel-searches"), help="where runs are kept")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the runs")
    add_json_option(parser)
    options = parser.parse_args()
    seeds = [Seed(options.folder / f"seed-{seed}", seed, options) for seed in options.seeds]
    runs, found = zip(*(one.answers() for one in seeds), strict=True)
    figures = compared(found)
    for latency_s in sorted(options.latency_s):
        timed = [one.timed(run, latency_s) for one, run in zip(seeds, runs, strict=True)]
        figures += timed_figures(timed, latency_s)
    publish(figures, options.json)


if __name__ == "__main__":
    main()
