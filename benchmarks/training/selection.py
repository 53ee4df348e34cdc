"""Measure selection (sums, fronts, crowding, choice), alone and as a stage, compared with pairwise comparison.

    python -m benchmarks.training.selection [--questions 100000] [--rollouts 16] [--json]

Target: at least 200,000 trajectories per second from arrays to the chosen questions, and the same fronts as those by
definition, from comparing all pairs. Comparing pairs is quadratic, so it runs on `--pairs` of the questions only. The
stage reads artifacts of short rows, with their hashes, and writes rows, report and picture.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.parts.figures import Figure, add_json_option, publish
from tests.parity.et_agent.selection import Record, quadratic_fronts
from treadle.core.config import Section
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.core.tables import Table
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.tables import SCORES
from treadle.rl.selection.choice import choose
from treadle.rl.selection.dispersion import DispersionSums
from treadle.rl.selection.entry import SELECTION_STAGE
from treadle.rl.selection.methods.pareto_fronts import rank_questions
from treadle.rl.selection.settings import SelectionOptions, SelectionSettings

BATCH_ROLLOUTS = 1_024
F1 = np.round(np.linspace(0, 1, 12), 6)


class RolloutArrays(NamedTuple):
    """Results of the rollouts, question by question."""

    questions: np.ndarray
    calls: np.ndarray
    correctness: np.ndarray
    domains: list[str]


def make_rollouts(num_questions: int, num_rollouts: int) -> RolloutArrays:
    """Make rollouts: half of the questions are math with a share of right answers each, the others qa with F1."""
    generator = np.random.default_rng(0)
    is_math = np.repeat(np.arange(num_questions) % 2 == 0, num_rollouts)
    share = np.repeat(generator.random(num_questions), num_rollouts)
    total = num_questions * num_rollouts
    graded = F1[generator.integers(0, len(F1), total)]
    return RolloutArrays(
        np.repeat(np.arange(num_questions), num_rollouts),
        generator.poisson(np.repeat(3 * generator.random(num_questions), num_rollouts)),
        np.where(is_math, generator.random(total) < share, graded).astype(np.float64),
        ["math" if number % 2 == 0 else "qa" for number in range(num_questions)],
    )


def measure_choice(made: RolloutArrays, options: SelectionOptions) -> float:
    """Return seconds from arrays to the chosen questions."""
    keys = [f"{number:016x}" for number in range(len(made.domains))]
    none_selected = np.zeros(len(keys), bool)
    started = time.perf_counter()
    sums = DispersionSums()
    for start in range(0, len(made.questions), BATCH_ROLLOUTS):
        part = slice(start, start + BATCH_ROLLOUTS)
        sums.add(made.questions[part], made.calls[part], made.correctness[part])
    choose(keys, sums.totals(), made.domains, options=options, held_out=none_selected, selected_before=none_selected)
    return time.perf_counter() - started


def measure_pairs(made: RolloutArrays, num_questions: int) -> tuple[float, float, bool]:
    """Return seconds of the sweep and of comparing all pairs, and whether their ranks agree."""
    sums = DispersionSums()
    sums.add(made.questions, made.calls, made.correctness)
    found = sums.totals()
    tool, corr = found.score_tool[:num_questions], found.score_corr[:num_questions]
    records = [Record(f"{n:016x}", "", (), (), float(tool[n]), float(corr[n])) for n in range(len(tool))]
    started = time.perf_counter()
    ranks = rank_questions(tool, corr, [record.id for record in records]).rank.tolist()
    sweeping = time.perf_counter() - started
    started = time.perf_counter()
    quadratic_fronts(records)
    comparing = time.perf_counter() - started
    return sweeping, comparing, ranks == [record.rank for record in records]


def rows_of(table: Table, made: RolloutArrays, num_rollouts: int) -> Iterator[dict[str, Any]]:
    """Yield rows of `questions`, `rollouts` or `scores`. Rollout texts are short; selection does not read them."""
    empty: dict[pa.DataType, Any] = {pa.string(): "", pa.bool_(): True, pa.float64(): 0.0}
    base = {field.name: [] if pa.types.is_list(field.type) else empty.get(field.type, 0) for field in table.schema}
    if table.kind == "questions":
        open_facts = {"format": None, "scorer": None, "search": None, "environment": "default", "payload": "{}"}
        for number, domain in enumerate(made.domains):
            asked = {"question_key": f"{number:016x}", "question": f"What is {number}?", "answers": [str(number)]}
            yield base | asked | {"dataset": "world", "domain": domain, "split": "train"} | open_facts
        return
    digest = QuestionSettings().digest()
    for place, number in enumerate(made.questions.tolist()):
        row = base | {"rollout_key": f"{place:016x}", "question_key": f"{number:016x}", "dataset": "world"}
        row |= {"domain": made.domains[number], "model": "phase-1", "status": "answered"}
        row |= {"sample_index": place % num_rollouts, "calls_executed": int(made.calls[place]), "error": None}
        own = {"environment": "default", "environment_digest": digest}
        yield row | ({"score": float(made.correctness[place])} if table.kind == "scores" else own)


def measure_stage(made: RolloutArrays, num_rollouts: int, options: SelectionOptions) -> tuple[float, float]:
    """Return seconds of the stage on artifacts in a process of its own, and its peak memory in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder), "benchmark", {}, {})
        for table in (QUESTIONS, ROLLOUTS, SCORES):
            _put(run, table, made, num_rollouts)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return pool.submit(run_stage, folder, options.model_dump()).result()


def run_stage(folder: str, options: dict[str, Any]) -> tuple[float, float]:
    """Run the stage in this process, as in `measure_stage`."""
    instance = Instance(
        address=Address.parse("1/selection"),
        stage=SELECTION_STAGE,
        settings=SelectionSettings(options=SelectionOptions(**options)),
        inputs={kind: (Address(1, kind),) for kind in ("questions", "rollouts", "scores")},
    )
    started = time.perf_counter()
    execute(instance, Run.open(Path(folder), "benchmark"))
    seconds = time.perf_counter() - started
    # The peak from getrusage would include that of the parent process.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return seconds, int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _put(run: Run, table: Table, made: RolloutArrays, num_rollouts: int) -> None:
    def write(context: StageContext) -> dict[str, Any]:
        for row in rows_of(table, made, num_rollouts):
            context.write(table.kind, [row])
        return {}

    stage = Stage(name=table.kind, version=1, settings=Section, produces=(table,), run=write)
    execute(Instance(address=Address(1, table.kind), stage=stage, settings=Section()), run)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=100_000, help="questions of the choice alone")
    parser.add_argument("--rollouts", type=int, default=16, help="rollouts per question")
    parser.add_argument(
        "--staged", type=int, default=40_000, help="questions of the whole stage; memory is compared with a quarter"
    )
    parser.add_argument("--pairs", type=int, default=2_000, help="questions that are compared pair by pair")
    add_json_option(parser)
    options = parser.parse_args()
    chosen = SelectionOptions()
    made = make_rollouts(options.questions, options.rollouts)
    seconds = measure_choice(made, chosen)
    sweeping, comparing, is_equal = measure_pairs(made, options.pairs)
    sizes = (options.staged // 4, options.staged)
    (_, less_mib), (stage_s, more_mib) = (
        measure_stage(make_rollouts(size, options.rollouts), options.rollouts, chosen) for size in sizes
    )
    num_staged, growth = sizes[1] * options.rollouts, (more_mib - less_mib) * 2**20 / (sizes[1] - sizes[0])
    rate, stage_rate = len(made.questions) / seconds, num_staged / stage_s
    publish(
        [
            Figure(name="choice: trajectories per second", value=rate, unit="1/s", at_least=200_000),
            Figure(name="choice: all questions", value=seconds, unit="s", at_most=10.0),
            Figure(name="ranks equal to those of all pairs", value=float(is_equal), unit="of 1", at_least=1.0),
            Figure(name="comparing all pairs relative to the sweep", value=comparing / sweeping),
            Figure(name="stage: trajectories per second", value=stage_rate, unit="1/s"),
            Figure(name="stage: growth of memory per question", value=growth, unit="bytes"),
        ],
        options.json,
    )


if __name__ == "__main__":
    main()
