"""The preset `smoke` end to end: a search service, a scripted agent and judges, one command, the whole evaluation."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.runs.command_line import Desk, Done
from support.servers.served_index import served
from support.tables.score_tables import parts_of

from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.retriever.config import EncoderSettings, IndexSettings
from treadle.retriever.open_index import open_index

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
AXES = ("score", "efficiency", "conciseness", "successful_execution", "reasoning_length")
ONE_SANDBOX = ("--set", "environment.python.sandbox={packages=[],pool_size=1}", "--set", "scores.symbolic=false")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    shutil.copytree(CONFIGS, tmp_path / "configs")
    return Desk(tmp_path)


def figures(desk: Desk, run_id: str) -> dict[tuple[str, str], Any]:
    rows = desk.rows(run_id, "1/report", "summary")
    return {(row["dataset"], row["figure"]): (row["value"], row["low"], row["high"]) for row in rows}


def report_folder(desk: Desk, run_id: str) -> Path:
    record = Run.open(desk.folder / "outputs", run_id).record(Address(1, "report"))
    assert record is not None
    return desk.folder / "outputs" / record.outputs["summary"].folder


async def searches(url: str) -> tuple[int, int]:
    """Return the number of queries that a service has answered, and how many of them its cache answered."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        lines = [line.rsplit(" ", 1) for line in (await response.text()).splitlines()]
    asked = sum(
        float(count) for name, count in lines if name.startswith('treadle_retriever_requests_total{route="search"')
    )
    (cached,) = (float(count) for name, count in lines if name == "treadle_retriever_cached_queries_total")
    return round(asked), round(cached)


@pytest.mark.covers("evaluation-30")
async def test_one_command_runs_the_evaluation_and_a_second_run_uses_caches(desk: Desk) -> None:
    async def treadle(*more: str) -> Done:
        return (await asyncio.to_thread(desk.treadle, *command, *more)).succeeded()

    settings = IndexSettings(
        engine="dense", corpus=(CONFIGS / "smoke/corpus.jsonl",), encoder=EncoderSettings(type="hashing"),
        cache_folder=desk.folder / "cache",
    )  # fmt: skip
    with open_index(settings) as index:
        async with served(index) as url:
            command = ("eval", "configs/smoke.toml", "--retriever", url, *ONE_SANDBOX)
            done = await treadle("--run", "first")
            asked, cached = await searches(url)
            assert asked > cached
            again = await treadle("--run", "first", "--json")
            assert all(record["reused"] for record in again.json()) and await searches(url) == (asked, cached)
            await treadle("--run", "second")
            assert await searches(url) == (2 * asked, asked + cached)
    # Trajectories.
    rollouts = desk.rows("first", "1/rollouts@agent", "rollouts")
    assert len(rollouts) == 5 and {row["status"] for row in rollouts} == {"answered"}
    assert any("<search>" in row["text"] for row in rollouts) and any("<python>" in row["text"] for row in rollouts)
    # Metrics, after a verdict on what rules do not call right and votes on every trajectory with calls.
    scores = desk.rows("first", "1/scores@agent", "scores")
    judged = [row for row in scores if row["domain"] == "math" and not parts_of(row)["em"]]
    assert judged and all((row["scorer"], row["judge_status"]) == ("judge", "parsed") for row in judged)
    assert all(row["votes_yes"] + row["votes_no"] == 10 for row in scores if row["calls_requested"])
    # The radar with all its axes, and the table.
    values = figures(desk, "first")
    assert all(values["all", axis][0] is not None for axis in AXES)
    assert b"<svg" in (report_folder(desk, "first") / "radar.svg").read_bytes()
    lines = [line.split()[:2] for line in done.out.splitlines()]
    assert all(["agent", dataset] in lines for dataset in ("world-compute", "world-lookup", "all"))
    # The same numbers, to the last digit.
    assert figures(desk, "second") == values
    # The same for the preset alone, as documented, with its own index and sandboxes.
    alone = await asyncio.to_thread(desk.treadle, "eval", "configs/smoke.toml", "--run", "smoke")
    assert alone.succeeded().err.count("1/report: ") == 1 and figures(desk, "smoke") == values
