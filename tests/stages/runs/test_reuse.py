"""Finished work is reused job by job: what a change does not touch is asked of no model again.

Each case makes a result, changes something, and makes it again: requests are counted at a scripted server, and the
artifact is held against that of a fresh run.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.rollouts.pools_agent import Agent
from support.rollouts.pools_bench import PoolsBench
from support.rollouts.rollouts_bench import Bench, server, work_requests
from support.servers.scripted_server import Fault, Item, RecordedRequest
from support.sweep import sampled
from support.tables.given_questions import TOKENIZER, give_questions

from treadle.core.errors import JobsPending, TreadleError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.helping import help_instance
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.environments.settings import ENVIRONMENT_VERSION

Row = dict[str, Any]
NUM = 6


def question(number: int, **changes: Any) -> Row:
    row = {"question_key": f"k{number}", "question": f"What is thing {number}?", "answers": ["1"], "dataset": "first"}
    return {**row, "source_row": number + 1, **changes}


QUESTIONS = [question(number) for number in range(NUM)]


def edited(rows: Sequence[Row], number: int, **changes: Any) -> list[Row]:
    """Return the questions with another row; like its key, a question's key follows from its content."""
    key = (
        f"{rows[number]['question_key']}x" if changes.keys() & {"question", "answers"} else rows[number]["question_key"]
    )
    return [{**row, "question_key": key, **changes} if row is rows[number] else row for row in rows]


def answer(request: RecordedRequest) -> Item:
    """Return an answer containing the rollout's seed, so that different rollouts have different rows."""
    return f"<think>t</think><answer>\\boxed{{{request.body['seed']}}}</answer>"


def failing_on_the_last_question(broken: Sequence[bool]) -> Callable[[RecordedRequest], Item]:
    """`answer`, but for the last question as long as `broken` is not empty."""

    def reply(request: RecordedRequest) -> Item:
        is_last = f"thing {NUM - 1}?" in TOKENIZER.decode(request.body["prompt"])
        return Fault.status(500) if broken and is_last else answer(request)

    return reply


class Twice:
    """A run in a folder or an object store whose rollouts are made, and remade after a change."""

    def __init__(self, root: Path | str) -> None:
        self.run = Run.create(root, "r", {}, {})
        self.bench = Bench.of(self.run)

    async def make(self, url: str, rows: Sequence[Row], **changes: Any) -> StageRecord:
        give_questions(self.run, rows)
        return await self.bench.make(url, **changes)


async def requests_again(
    tmp_path: Path, rows: Sequence[Row], before: Row | None = None, after: Row | None = None, root: str = ""
) -> int:
    """Return the number of requests for a result with other questions or settings; check that it equals a fresh one."""
    async with server(answer) as scripted:
        twice, fresh = Twice(root or tmp_path / "twice"), Twice(tmp_path / "fresh")
        await twice.make(scripted.url, QUESTIONS, **(before or {}))
        num_before = len(work_requests(scripted))
        again = await twice.make(scripted.url, rows, **(after or before or {}))
        num_again = len(work_requests(scripted)) - num_before
        made = await fresh.make(scripted.url, rows, **(after or before or {}))
    assert again.outputs["rollouts"] == made.outputs["rollouts"]
    assert not list(twice.run.storage.keys(twice.run.key("journal"))), "it costs no space"
    return num_again


K2 = {"options": {"samples_per_question": 2}}
K4 = {"options": {"samples_per_question": 4}}


@pytest.mark.parametrize(
    ("rows", "num_again"),
    [
        pytest.param([*QUESTIONS, question(9)], 2, id="a question appended"),
        pytest.param([question(9), *QUESTIONS], 2, id="a question inserted before all"),
        pytest.param([*QUESTIONS, question(9, split="heldout")], 2, id="appended in another split"),
        pytest.param(edited(QUESTIONS, 2, question="What is that thing?"), 2, id="one word edited"),
        pytest.param(edited(QUESTIONS, 2, choices=["one", "two"]), 2, id="choices added"),
        pytest.param(edited(QUESTIONS, 2, format="assertion"), 2, id="another format, so another prompt"),
        pytest.param(edited(QUESTIONS, 2, answers=["2"]), 0, id="a gold answer edited"),
        pytest.param(edited(QUESTIONS, 2, domain="math"), 0, id="a domain relabelled"),
        pytest.param(edited(QUESTIONS, 2, dataset="second"), 0, id="a data set relabelled"),
        pytest.param(edited(QUESTIONS, 2, meta='{"a": 1}', source_file="g"), 0, id="a field that nothing reads"),
        pytest.param(QUESTIONS[::-1], 0, id="the order changed"),
        pytest.param(QUESTIONS[:3] + QUESTIONS[4:], 0, id="a question removed"),
    ],
)
async def test_other_questions_send_only_new_requests(tmp_path: Path, rows: list[Row], num_again: int) -> None:
    assert await requests_again(tmp_path, rows, K2) == num_again


@pytest.mark.parametrize(
    ("before", "after", "num_again"),
    [
        pytest.param(K2, K4, 2 * NUM, id="more samples"),
        pytest.param(K4, K2, 0, id="fewer samples"),
        pytest.param({"options": {"max_questions": 2}}, {"options": {"max_questions": 5}}, 3, id="more questions"),
        pytest.param({"options": {"max_questions": 5}}, {"options": {"max_questions": 2}}, 0, id="fewer questions"),
        pytest.param({"options": {"max_questions": 4}}, {"options": {"datasets": ["first"]}}, 2, id="by data set"),
        pytest.param({"options": {"split": "train"}}, {}, 0, id="another split"),
        pytest.param({}, {"options": {"max_error_rate": 0.5}}, 0, id="a limit of failures"),
        pytest.param({}, {"environment": {"system_prompt": "Be brief."}}, NUM, id="another prompt"),
        pytest.param({}, {"options": {"sampling": {"temperature": 0.5}}}, NUM, id="another temperature"),
        pytest.param({}, {"model": {"model": "scripted", "revision": "b"}}, NUM, id="other weights"),
        pytest.param({}, {"seed": 1}, NUM, id="another seed"),
    ],
)
async def test_other_settings_send_only_affected_requests(
    tmp_path: Path, before: Row, after: Row, num_again: int
) -> None:
    assert await requests_again(tmp_path, QUESTIONS, before, after) == num_again


async def test_unselected_question_sends_no_request(tmp_path: Path) -> None:
    rows = [*QUESTIONS, question(9, dataset="other")]
    assert await requests_again(tmp_path, rows, {"options": {"datasets": ["first"]}}) == 0


@pytest.mark.parametrize("shards", sampled([1, 3], [3]))
async def test_reuse_works_on_an_object_store_and_with_shards(tmp_path: Path, object_root: str, shards: int) -> None:
    rows, settings = edited(QUESTIONS, 1, question="What else?"), {"options": {"shards": shards}}
    assert await requests_again(tmp_path, rows, settings, root=object_root) == 1


async def test_reused_row_keeps_the_telemetry_of_its_original_attempt(tmp_path: Path) -> None:
    twice = Twice(tmp_path)
    async with server(answer) as scripted:
        first = await twice.make(scripted.url, QUESTIONS)
        second = await twice.make(scripted.url, edited(QUESTIONS, 0, question="What else?")[::-1])
    told = [
        {row["rollout_key"]: row for row in pq.read_table(tmp_path / made.telemetry["rollout_telemetry"]).to_pylist()}
        for made in (first, second)
    ]
    new = twice.bench.rows(second)[-1]["rollout_key"]
    assert told[1].pop(new)["attempt"] == 2
    assert len(told[1]) == NUM - 1 and all(told[0][key] == row for key, row in told[1].items())
    tokens = sum(row["completion_tokens"] for row in twice.bench.rows(second))
    assert second.metrics["completion_tokens"] == tokens, "the metrics are of all that the result is made of"


async def test_result_without_telemetry_is_reused_without_inventing_any(tmp_path: Path) -> None:
    twice = Twice(tmp_path)
    async with server(answer) as scripted:
        first = await twice.make(scripted.url, QUESTIONS)
        (tmp_path / first.telemetry["rollout_telemetry"]).unlink()
        second = await twice.make(scripted.url, QUESTIONS[1:])
        assert len(work_requests(scripted)) == NUM
    assert pq.read_table(tmp_path / second.telemetry["rollout_telemetry"]).num_rows == 0


async def test_force_resends_every_request(tmp_path: Path) -> None:
    twice = Twice(tmp_path)
    async with server(answer) as scripted:
        await twice.make(scripted.url, QUESTIONS)
        await asyncio.to_thread(execute, twice.bench.instance(scripted.url), twice.run, force=True)
        assert len(work_requests(scripted)) == 2 * NUM


async def test_work_of_an_unfinished_attempt_is_reused_after_editing_questions(tmp_path: Path) -> None:
    """There is no result yet: paid requests are only in the journal."""
    twice, broken = Twice(tmp_path), [True]
    reply = failing_on_the_last_question(broken)
    async with server(reply) as scripted:
        with pytest.raises(TreadleError):
            await twice.make(scripted.url, QUESTIONS)
        num_before = len(work_requests(scripted))
        broken.clear()
        rows = edited(QUESTIONS, 0, question="What else?")
        again = await twice.make(scripted.url, rows, options={"samples_per_question": 2})
        num_again = len(work_requests(scripted)) - num_before
        fresh = await Twice(tmp_path / "fresh").make(scripted.url, rows, options={"samples_per_question": 2})
    assert num_again == 2 * NUM - (NUM - 2)
    assert again.outputs == fresh.outputs


async def test_finished_shards_reopen_for_other_questions(tmp_path: Path) -> None:
    twice, broken = Twice(tmp_path), [True]
    reply = failing_on_the_last_question(broken)
    settings = {"options": {"shards": 3}}
    async with server(reply) as scripted:
        with pytest.raises(TreadleError):
            await twice.make(scripted.url, QUESTIONS, **settings)
        num_before = len(work_requests(scripted))
        broken.clear()
        rows = [*QUESTIONS[:-1], *(question(number) for number in range(10, 16))]
        again = await twice.make(scripted.url, rows, **settings)
        assert len(work_requests(scripted)) - num_before == 6
        assert again.outputs == (await Twice(tmp_path / "fresh").make(scripted.url, rows)).outputs


async def test_helper_sees_rows_of_the_earlier_result_as_finished(tmp_path: Path) -> None:
    twice = Twice(tmp_path)
    async with server(answer) as scripted:
        await twice.make(scripted.url, QUESTIONS)
        rows = [*QUESTIONS[1:], question(8), question(9)]
        num_before = len(work_requests(scripted))
        # How many of the two new questions the budget lets be asked depends on their shards: one at most.
        with pytest.raises(TreadleError, match="max_total_tokens"):
            await twice.make(scripted.url, rows, options={"shards": 3, "max_total_tokens": 1})
        assert len(work_requests(scripted)) - num_before < 2
        helped = twice.bench.instance(scripted.url, options={"shards": 3})
        assert await asyncio.to_thread(help_instance, helped, twice.run)
        assert len(work_requests(scripted)) - num_before == 2
        again = await twice.make(scripted.url, rows)
        assert len(work_requests(scripted)) - num_before == 2
        assert again.outputs == (await Twice(tmp_path / "fresh").make(scripted.url, rows)).outputs


@pytest.mark.parametrize(("change", "num_again"), [({"version": 9}, 1), ({"journal_format": 9}, NUM)])
async def test_newer_stage_version_reads_the_journal_unless_its_format_changed(
    tmp_path: Path, change: dict[str, int], num_again: int
) -> None:
    twice, broken = Twice(tmp_path), [True]
    reply = failing_on_the_last_question(broken)
    async with server(reply) as scripted:
        with pytest.raises(TreadleError):
            await twice.make(scripted.url, QUESTIONS)
        num_before = len(work_requests(scripted))
        broken.clear()
        instance = twice.bench.instance(scripted.url)
        newer = replace(instance, stage=replace(instance.stage, **change))
        await asyncio.to_thread(execute, newer, twice.run)
        assert len(work_requests(scripted)) - num_before == num_again
        newest = replace(instance, stage=replace(instance.stage, version=10))
        assert not (await asyncio.to_thread(execute, newest, twice.run)).reused
        assert len(work_requests(scripted)) - num_before == num_again, "the result is written again from itself"


async def test_raised_environment_version_resends_every_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lever of a maintainer who changes what a row means; the stage's version alone would ask nothing."""
    twice = Twice(tmp_path)
    async with server(answer) as scripted:
        with monkeypatch.context() as earlier:
            earlier.setattr("treadle.environments.settings.ENVIRONMENT_VERSION", ENVIRONMENT_VERSION - 1)
            instance = twice.bench.instance(scripted.url)
            give_questions(twice.run, QUESTIONS)
            stage = replace(instance.stage, version=ENVIRONMENT_VERSION - 1)
            await asyncio.to_thread(execute, replace(instance, stage=stage), twice.run)
        again = await twice.make(scripted.url, QUESTIONS)
        assert not again.reused and len(work_requests(scripted)) == 2 * NUM
    assert {row["environment_digest"] for row in twice.bench.rows(again)} == {instance.settings.environment.digest()}


@pytest.mark.parametrize(
    "version", ["treadle.environments.settings.ENVIRONMENT_VERSION", "treadle.datagen.pools.jobs.CONTENT_VERSION"]
)
async def test_raised_pool_content_version_reruns_all_pools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    rows, settings = (
        [question(number, domain="math") for number in range(2)],
        {"options": {"rounds": 0, "judge_math": False}},
    )
    bench = PoolsBench(tmp_path, rows)
    async with server(pool_reply) as scripted:
        with monkeypatch.context() as earlier:
            earlier.setattr(version, 0)
            await bench.make(scripted.url, **settings)
        num_before = len(scripted.requests)
        instance = bench.instance(scripted.url, **settings)
        newer = replace(instance, stage=replace(instance.stage, version=99))
        await asyncio.to_thread(execute, newer, bench.run)
        texts = "".join(request.text for request in scripted.requests[num_before:])
    assert set(re.findall(r"thing \d\?", texts)) == {"thing 0?", "thing 1?"}


async def test_accepted_failure_is_retried_with_the_next_change(tmp_path: Path) -> None:
    twice, broken = Twice(tmp_path), [True]
    reply = failing_on_the_last_question(broken)
    lenient = {"options": {"max_error_rate": 0.5}}
    async with server(reply) as scripted:
        with pytest.raises(JobsPending):
            await twice.make(scripted.url, QUESTIONS, **lenient)
        await twice.make(scripted.url, QUESTIONS, accept_failures=True, **lenient)
        num_before = len(work_requests(scripted))
        broken.clear()
        again = await twice.make(scripted.url, QUESTIONS[1:], **lenient)
        assert len(work_requests(scripted)) - num_before == 1
        assert all(row["status"] == "answered" for row in twice.bench.rows(again))


async def test_later_iteration_reuses_requests_of_an_earlier_one(tmp_path: Path) -> None:
    twice = Twice(tmp_path)
    async with server(answer) as scripted:
        await twice.make(scripted.url, QUESTIONS)
        give_questions(twice.run, [*QUESTIONS, question(9)])
        second = replace(twice.bench.instance(scripted.url), address=Address.parse("2/rollouts@base"))
        record = await asyncio.to_thread(execute, second, twice.run)
        assert len(work_requests(scripted)) == NUM + 1 and len(twice.bench.rows(record)) == NUM + 1


async def test_damaged_result_is_not_reused(tmp_path: Path) -> None:
    twice = Twice(tmp_path)
    async with server(answer) as scripted:
        first = await twice.make(scripted.url, QUESTIONS)
        path = tmp_path / first.outputs["rollouts"].folder / "data/part-00000.parquet"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        second = await twice.make(scripted.url, QUESTIONS[1:])
        assert len(work_requests(scripted)) == 2 * NUM - 1 and len(twice.bench.rows(second)) == NUM - 1


def pool_reply(request: RecordedRequest) -> Item:
    """Return a reply in a role of `pools`; like a model's, it follows from the request alone."""
    seed, task = request.body.get("seed"), Agent.task_of(request)
    if task == "policy":
        return f"<think>I guess {seed}.</think><answer>\\boxed{{{seed}}}</answer>"
    return {
        "preflight": "x",
        "locate": "Step: 1\nAnalysis:",
        "redundancy": "Step: 0",
        "refine": f"K{seed}.</think>",
        "replace": f"<think>Now {seed}.</think><answer>\\boxed{{Paris}}</answer>",
    }.get(task, "The step guesses.")


@pytest.mark.parametrize(
    ("change", "asked_again"),
    [
        pytest.param(lambda rows: [*rows, question(9, domain="math")], {"thing 9?"}, id="a question appended"),
        pytest.param(lambda rows: edited(rows, 1, question="A thing 8?"), {"thing 8?"}, id="one word edited"),
        pytest.param(
            lambda rows: edited(rows, 1, answers=["3"]), {"thing 1?"}, id="a gold answer, by which it is judged"
        ),
        pytest.param(lambda rows: edited(rows, 1, domain="qa"), {"thing 1?"}, id="a domain, which has other hints"),
        pytest.param(lambda rows: edited(rows, 1, dataset="second"), set(), id="a data set relabelled"),
        pytest.param(lambda rows: rows[::-1], set(), id="the order changed"),
        pytest.param(lambda rows: rows[1:], set(), id="a question removed"),
    ],
)
async def test_pools_are_reused_by_question(
    tmp_path: Path, change: Callable[[list[Row]], list[Row]], asked_again: set[str]
) -> None:
    rows = [question(number, domain="math") for number in range(3)]
    changed, settings = change(rows), {"options": {"rounds": 1, "judge_math": False}}
    async with server(pool_reply) as scripted:
        bench, fresh = PoolsBench(tmp_path / "twice", rows), PoolsBench(tmp_path / "fresh", changed)
        first = await bench.make(scripted.url, **settings)
        num_before = len(scripted.requests)
        give_questions(bench.run, changed)
        again = await bench.make(scripted.url, **settings)
        texts = "".join(request.text for request in scripted.requests[num_before:])
        made = await fresh.make(scripted.url, **settings)
    assert set(re.findall(r"thing \d\?", texts)) == asked_again
    assert again.outputs == made.outputs and again.outputs["pool_events"].num_rows
    told = [
        pq.read_table(tmp_path / "twice" / one.telemetry["rollout_telemetry"]).to_pylist() for one in (first, again)
    ]
    kept = [row for row in told[1] if row["attempt"] == 1]
    assert all(row in told[0] for row in kept)
    assert len(told[1]) == again.outputs["pools"].num_rows and bool(kept)
