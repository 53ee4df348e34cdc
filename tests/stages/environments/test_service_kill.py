"""Service, process of an instance and client are killed or frozen at moments of their work.

No step is acted twice, no state is made up, no process or instance stays. TREADLE_SWEEP tries 45 moments for each, and
freezes them for 20 s at each of these.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from support.environments.served_environment import ODD, ServedProcess, is_alive
from support.environments.strict_client import StrictClient
from support.runs.processes import family, remaining, until
from support.sweep import sampled

CLIENT = Path(__file__).parents[2] / "support/environments/retrying_client.py"
NUM_INSTANCES, NUM_STEPS = 3, 30
MOMENTS = range(1, NUM_INSTANCES * NUM_STEPS, 2)
IDLE_S = 1.0
FREEZE_S = 20.0
NUM_AT_ONCE = 16
"""Distance of the moments that one test tries; their scenes run at once."""
TOLD = {"server": {"no connection"}, "worker": {"env_crashed", "env_timeout"}, "client": {"instance_not_found"}}
"""What a client may be told when one of the three was hit."""


@dataclass
class Scene:
    """A service, a client at work, and what was acted."""

    service: ServedProcess
    client: subprocess.Popen[str]
    log: Path

    def acted(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def wait_for(self, num_steps: int) -> None:
        """Wait until so many steps were acted, or the client has ended."""
        until(lambda: len(self.acted()) >= num_steps or self.client.poll() is not None, f"{num_steps} steps")

    def told(self) -> dict[str, tuple[int, str]]:
        said, problem = self.client.communicate(timeout=120)
        assert self.client.returncode == 0, problem
        return {name: (number, code) for name, (number, code) in json.loads(said).items()}

    def check(self, told: dict[str, tuple[int, str]], allowed: set[str]) -> None:
        """No step was acted twice or out of order, and every answered one was acted."""
        acted = self.acted()
        assert [line for line, count in Counter(acted).items() if count > 1] == []
        for name, (number, code) in told.items():
            own = [line for line in acted if line.startswith(f"{name}.")]
            assert own == [f"{name}.{place}" for place in range(len(own))]
            assert number <= len(own) <= number + 1, "a step without a reply may have been acted"
            assert code in allowed | {""} and (code or number == NUM_STEPS)


@contextlib.contextmanager
def playing(tmp_path: Path, idle_timeout_s: float = 600.0) -> Iterator[Scene]:
    """Run a service, and a client that plays in it."""
    limits = [f"service.idle_timeout_s={idle_timeout_s}", "service.sweep_interval_s=0.2", "service.close_timeout_s=0.5"]
    with ServedProcess(ODD, *(part for limit in limits for part in ("--set", limit))) as service:
        log = tmp_path / "acted"
        command = [sys.executable, str(CLIENT), service.url, str(log), str(NUM_INSTANCES), str(NUM_STEPS)]
        client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            yield Scene(service, client, log)
        finally:
            client.kill()
            client.communicate()


async def pids_of(url: str) -> list[int]:
    async with aiohttp.ClientSession() as session:
        found = await StrictClient(session, url).instances()
    return [one["pid"] for one in found.values() if one["pid"]]


async def until_empty(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        client = StrictClient(session, url)
        while await client.instances() or await client.metric("treadle_environment_processes"):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("moment", sampled(MOMENTS, {11}))
def test_killed_server_leaves_no_process_and_no_step_is_acted_twice(tmp_path: Path, moment: int) -> None:
    with playing(tmp_path) as scene:
        scene.wait_for(moment)
        below = family(scene.service.process.pid)
        assert len(below) >= 2
        scene.service.process.kill()
        scene.check(scene.told(), TOLD["server"])
        until(lambda: not remaining(below), "no process of the service is left")


@pytest.mark.parametrize("moment", sampled(MOMENTS, {21}))
async def test_killed_process_of_an_instance_ends_that_one_alone(tmp_path: Path, moment: int) -> None:
    with playing(tmp_path) as scene:
        scene.wait_for(moment)
        for pid in (await pids_of(scene.service.url))[:1]:
            with contextlib.suppress(ProcessLookupError):  # It has done all its steps meanwhile.
                os.kill(pid, signal.SIGKILL)
        told = await asyncio.to_thread(scene.told)
        scene.check(told, TOLD["worker"])
        broken = [name for name, (_, code) in told.items() if code]
        async with aiohttp.ClientSession() as session:
            client = StrictClient(session, scene.service.url)
            assert len(broken) <= 1 and list(await client.instances()) == broken
            assert await client.metric("treadle_environment_processes") == 0


@pytest.mark.parametrize("moment", sampled(MOMENTS, {5}))
async def test_instances_of_a_killed_client_end_by_their_idle_limit(tmp_path: Path, moment: int) -> None:
    with playing(tmp_path, IDLE_S) as scene:
        scene.wait_for(moment)
        scene.client.kill()
        await until_empty(scene.service.url)
        scene.check({}, set())
        assert scene.acted()


@pytest.mark.sweep
@pytest.mark.parametrize("victim", ["server", "worker", "client"])
@pytest.mark.parametrize("first", range(1, NUM_AT_ONCE, 2))
async def test_frozen_for_a_while(tmp_path: Path, victim: str, first: int) -> None:
    async def each(moment: int) -> None:
        (folder := tmp_path / str(moment)).mkdir()
        await asyncio.to_thread(asyncio.run, play_frozen(folder, victim, moment))

    # Several at once, as they sleep most of the time.
    await asyncio.gather(*map(each, range(first, MOMENTS.stop, NUM_AT_ONCE)))


async def play_frozen(folder: Path, victim: str, moment: int) -> None:
    with playing(folder, FREEZE_S / 4 if victim == "client" else 600.0) as scene:
        scene.wait_for(moment)
        pids = {"server": [scene.service.process.pid], "client": [scene.client.pid]}.get(victim) or (
            await pids_of(scene.service.url)
        )[:1]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(FREEZE_S)
        if victim == "client":
            await until_empty(scene.service.url)
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGCONT)
        told = await asyncio.to_thread(scene.told)
        # Time for which the server was stopped counts for none of its limits: its client notices nothing.
        scene.check(told, TOLD[victim] if victim != "server" else set())
        # Later, the frozen one may have had no step left.
        assert victim != "worker" or moment > NUM_STEPS or "env_timeout" in {code for _, code in told.values()}
