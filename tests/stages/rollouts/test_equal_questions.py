"""Questions that ask the same share their rollouts: each is sampled once, and scored with each question's gold answers.

The server ignores seeds and answers each request differently, so a second or mixed sample would be another row.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.rollouts.rollouts_bench import Bench, server, work_requests
from support.servers.scripted_server import Fault, Item, RecordedRequest, Reply
from support.tables.given_questions import TOKENIZER, give_questions

from treadle.core.runs.bound_inputs import bind_inputs, open_inputs
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.tasks.estimate.reuse import reuse_of

ASKED = {"question": "What is thing 0?", "split": "heldout"}
TWINS = [
    {"question_key": "a", "answers": ["1"], "dataset": "first", **ASKED},
    {"question_key": "b", "answers": ["2"], "dataset": "second", **ASKED},
]
OTHER = {"question_key": "c", "question": "What is thing 1?", "answers": ["1"], "dataset": "first"}
COUNTED = ("num_turns", "prompt_tokens", "completion_tokens")


def ignoring_seeds() -> Callable[[RecordedRequest], Item]:
    """Three turns, each numbered by its request. The first request is answered last but one."""
    number = itertools.count()

    def reply(request: RecordedRequest) -> Item:
        if not request.body.get("stop"):
            return "x"
        prompt, index = TOKENIZER.decode(request.body["prompt"]), next(number)
        for turn in ("T0", "T1"):
            if f"{turn}-" not in prompt:
                return Reply(f"<think>{turn}-{index}</think> ", delay_s=0.05 * (index == 0))
        return Reply(f"<answer>\\boxed{{{index}}}</answer>")

    return reply


def bench_of(root: Path, rows: list[dict[str, Any]]) -> Bench:
    bench = Bench.of(Run.create(root, "r", {}, {}))
    give_questions(bench.run, rows)
    return bench


def settings(num_samples: int, **options: Any) -> dict[str, Any]:
    return {
        "environment": {"on_unmarked": "continue"},
        "model": {"hedge_floor_s": None},
        "options": {"samples_per_question": num_samples, **options},
    }


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("max_concurrent", [1, 64])
async def test_equal_questions_are_sampled_once_at_any_concurrency(
    tmp_path: Path, max_concurrent: int, shards: int
) -> None:
    bench = bench_of(tmp_path, TWINS)
    async with server(ignoring_seeds()) as scripted:
        record = await bench.make(scripted.url, **settings(3, max_concurrent=max_concurrent, shards=shards))
        assert len(work_requests(scripted)) == 3 * 3
    rows = bench.rows(record)
    own = {"rollout_key", "question_key", "dataset"}
    texts = [{name: value for name, value in row.items() if name not in own} for row in rows]
    assert texts[:3] == texts[3:] and len({row["text"] for row in rows}) == 3
    assert [(row["question_key"], row["dataset"]) for row in rows] == [("a", "first")] * 3 + [("b", "second")] * 3
    assert len({row["rollout_key"] for row in rows}) == 6
    assert record.metrics["num_rollouts"] == record.metrics["status_answered"] == 6
    assert {name: record.metrics[name] for name in COUNTED} == {
        name: sum(row[name] for row in rows[:3]) for name in COUNTED
    }, "the metrics count what was asked"
    measured = pq.read_table(tmp_path / record.telemetry["rollout_telemetry"]).to_pylist()
    assert [row["rollout_key"] for row in measured] == [row["rollout_key"] for row in rows]


class Shown:
    """Progress as it was reported."""

    def __init__(self) -> None:
        self.started: list[tuple[int, int, str]] = []
        self.advanced = 0

    def start(self, total: int, done: int, unit: str) -> None:
        self.started.append((total, done, unit))

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        self.advanced += count


async def test_progress_and_estimates_count_equal_questions_once(tmp_path: Path) -> None:
    bench, shown = bench_of(tmp_path, [*TWINS, OTHER]), Shown()
    async with server(ignoring_seeds()) as scripted:
        instance = bench.instance(scripted.url, **settings(2))
        said = reuse_of(instance, bench.run, open_inputs(bench.run, bind_inputs(instance, bench.run)))
        await asyncio.to_thread(execute, instance, bench.run, progress=shown)
    assert said is not None and (said.num_jobs, said.num_open) == (4, 4)
    assert (shown.started, shown.advanced) == ([(4, 0, "rollouts")], 4)


async def test_budget_counts_finished_equal_questions_once(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, TWINS)
    async with server(ignoring_seeds()) as scripted:
        first = await bench.make(scripted.url, **settings(1))
        spent = first.metrics["prompt_tokens"] + first.metrics["completion_tokens"]
        # Enough for the finished rollout and another one, but not for twice the finished one.
        await bench.make(scripted.url, **settings(2, max_concurrent=1, max_total_tokens=2 * spent + 50))
        assert len(work_requests(scripted)) == 6


async def test_adding_or_removing_a_duplicate_samples_nothing_again(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, TWINS[:1])
    async with server(ignoring_seeds()) as scripted:
        first = await bench.make(scripted.url, **settings(1))
        texts = {row["text"] for row in bench.rows(first)}
        for rows in (TWINS, TWINS[1:], TWINS[::-1]):
            give_questions(bench.run, rows)
            made = await bench.make(scripted.url, **settings(1))
            assert [row["question_key"] for row in bench.rows(made)] == [row["question_key"] for row in rows]
            assert {row["text"] for row in bench.rows(made)} == texts
        assert len(work_requests(scripted)) == 3
    assert pq.read_table(tmp_path / made.telemetry["rollout_telemetry"]).num_rows == 2


async def test_unfinished_work_fails_for_each_equal_question(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, [*TWINS, OTHER])

    def reply(request: RecordedRequest) -> Item:
        is_twin = "thing 0?" in TOKENIZER.decode(request.body["prompt"])
        return Fault.status(500) if is_twin else "<think>t</think><answer>\\boxed{1}</answer>"

    async with server(reply) as scripted:
        made = await bench.make(scripted.url, accept_failures=True, options={"max_error_rate": 0.5})
    assert [row["status"] for row in bench.rows(made)] == ["failed", "failed", "answered"]
