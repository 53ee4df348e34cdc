"""The stage `scores` killed while judges are asked: nothing that was answered is asked again, and the same bytes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from support.rollouts.scores_bench import ScoresBench, asked, judged_by, role, server
from support.servers.scripted_server import Item, RecordedRequest
from support.tables.score_tables import called, question, rollout

from treadle.core.runs.address import Address

LIFE = """
import json, sys
from support.rollouts.scores_bench import instance_of
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
execute(instance_of(json.loads(sys.argv[2])), Run.open(sys.argv[1], "test"))
"""
TESTS = Path(__file__).parents[2]
AT_ONCE = 2
VOTES = 3


def given() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Six wrong answers, each with a call: a verdict and three votes on every one."""
    rollouts = []
    for number in range(6):
        segments = [("search", f"<search>{number}</search>"), ("result", "<result>x</result>")]
        segments.append(("answer", f"<answer>wrong {number}</answer>"))
        calls = called(search=1)
        rollouts.append(rollout(f"r{number}", "m1", segments, domain="math", sample_index=number, **calls))
    return [question("m1", ["7"], "math")], rollouts


def settings_of(url: str) -> dict[str, Any]:
    options = {"max_concurrent": AT_ONCE, "redundancy": {"model": "judge", "votes": VOTES}}
    return {**judged_by({"judge": url}, options), "redundancy": role(url)}


def reply_to(request: RecordedRequest) -> str:
    if "wasted" not in request.text:
        return ["Correct", "Incorrect", "neither"][request.body["seed"] % 3]
    return ["yes", "no", "none"][request.body["seed"] % 3]


async def live(root: Path, settings: dict[str, Any]) -> asyncio.subprocess.Process:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", LIFE, str(root), json.dumps(settings)]
    return await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)


async def test_killed_stage_repeats_no_request_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    lives: list[asyncio.subprocess.Process] = []
    kill_at = {4, 11}

    def reply(request: RecordedRequest) -> Item:
        if len(asked(scripted)) in kill_at:
            lives[-1].send_signal(signal.SIGKILL)
        return reply_to(request)

    async with server(reply) as scripted:
        settings = settings_of(scripted.url)
        settings["options"]["max_error_rate"] = 1.0
        disturbed = ScoresBench(tmp_path / "disturbed", *given())
        for _ in range(len(kill_at) + 1):
            lives.append(await live(tmp_path / "disturbed", settings))
            _, complaint = await lives[-1].communicate()
        assert [process.returncode for process in lives] == [-signal.SIGKILL] * 2 + [0], complaint.decode()
        times = Counter((request.body["seed"], request.text) for request in asked(scripted))
        killed = len(asked(scripted))
        undisturbed = ScoresBench(tmp_path / "undisturbed", *given())
        record = await undisturbed.score(settings)
        whole = Counter((request.body["seed"], request.text) for request in asked(scripted)[killed:])
    assert times.keys() == whole.keys() and set(whole.values()) == {1}
    assert sum(times.values()) - len(times) <= AT_ONCE * len(kill_at), "only what was in flight"
    made = disturbed.run.record(Address.parse(record.address))
    assert made is not None
    assert {kind: ref.digest for kind, ref in made.outputs.items()} == {
        kind: ref.digest for kind, ref in record.outputs.items()
    }
