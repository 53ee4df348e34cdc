"""The stage `rollouts` with a search of the web: recorded, resumed, replayed, routed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.rollouts_bench import ANSWER, Bench, server
from support.scripted_server import Item, RecordedRequest
from support.web_rollouts import SmallWeb, exported, recorded, replaying, said, searching

MOSS = "<html><title>Moss</title><body><p>Moss is a small green plant. It grows on stones in the shade.</p></body>"
FERN = "<html><title>Fern</title><body><p>Ferns have fronds. They grow in forests all over the world.</p></body>"
FOUND = {"moss": {"/moss": MOSS, "/fern": FERN}, "fern": {"/fern": FERN, "/gone": "It was here."}}
SEARCH = "<think>t</think><search>moss</search>"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cache of this machine, in which records are unpacked."""
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def bench_of(folder: Path, num_questions: int = 4) -> Bench:
    return Bench(folder / "root", [f"Question {number}?" for number in range(num_questions)])


def searches_once(request: RecordedRequest) -> Item:
    return ANSWER if said(request) else SEARCH


def blocks(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects of the first result of a rollout."""
    text = row["text"].partition("<result>")[2].partition("</result>")[0]
    return [json.loads(line) for line in text.splitlines()]


async def test_a_rollout_searches_the_web_and_a_replay_of_its_record_gives_the_same_rows_offline(
    tmp_path: Path,
) -> None:
    bench = bench_of(tmp_path)
    with SmallWeb(FOUND) as web:
        async with server(searches_once) as scripted:
            made = await bench.make(scripted.url, environment=searching(web.settings()))
        assert web.provider.asked == ["moss"] and sorted(web.site.paths) == ["/fern", "/moss"]
    rows = bench.rows(made)
    first, second = blocks(rows[0])
    assert first["context"] == "Moss is a small green plant. It grows on stones in the shade."
    assert (second["title"], second["id"]) == ("About /fern", 2) and "url" not in second
    (call,) = json.loads(rows[0]["tool_calls"])
    assert call["status"] == "ok" and set(call["sources"]) == {entry.key for entry in recorded(bench.run)}
    folder = exported(bench.run)
    again = bench_of(tmp_path / "again")
    async with server(searches_once) as scripted:
        replayed = await again.make(scripted.url, environment=searching(replaying(folder)))
    stable = [{name: value for name, value in row.items() if name != "environment_digest"} for row in rows]
    for row in (replayed_rows := again.rows(replayed)):
        row.pop("environment_digest")
    assert replayed_rows == stable
