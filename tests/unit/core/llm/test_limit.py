"""The limit of requests in flight at a server: found by its refusals, or by answers that do not come faster."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable

import pytest
from support.servers.simulated_server import Event, Server, simulate

from treadle.core.llm.config import EndpointSettings, ModelSettings, Sampling
from treadle.core.llm.limit import InFlightLimit
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import CompletionRequest
from treadle.demo.tutor import server as tutor_server
from treadle.demo.tutor.faults import RateLimit
from treadle.demo.tutor.server import TutorServer
from treadle.demo.tutor.settings import TutorSettings

LENGTHS: dict[str, Callable[[random.Random], float]] = {
    "equal": lambda chance: 1.0,
    "uniform": lambda chance: chance.uniform(0.5, 1.5),
    "exponential": lambda chance: chance.expovariate(1.0),
    "long tail": lambda chance: chance.lognormvariate(-0.72, 1.2),
}
"""Answers of one second on average."""


def answer(limit: InFlightLimit, in_flight: int) -> bool:
    """Answer without taking any time."""
    return limit.answered(in_flight, 0.0, 0.0)


def test_limit_is_the_load_at_which_consecutive_refusals_occurred() -> None:
    limit = InFlightLimit(256)
    assert limit.value == 64
    for others in range(63, 7, -1):  # 64 were sent, the server holds 8 and refuses the rest
        assert not limit.refused(others)
    assert limit.value == 8
    assert [answer(limit, 8) for _ in range(16)] == [False] * 15 + [True] and limit.value == 9


def test_stable_limit_is_probed_less_and_less_often() -> None:
    limit, answers = InFlightLimit(256), []
    for others in range(63, 7, -1):
        limit.refused(others)
    for _ in range(6):
        count = 1
        while not answer(limit, 8):
            count += 1
        answers.append(count)
        assert limit.value == 9
        for _ in range(4):
            limit.refused(8)
        assert limit.value == 8
    assert answers == [16, 32, 64, 128, 256, 256]


def test_lifted_limit_is_raised_again() -> None:
    limit, answers = InFlightLimit(256), 0
    for others in range(63, 7, -1):
        limit.refused(others)
    while limit.value < 256:
        answer(limit, limit.value)
        answers += 1
    assert answers < 300


def test_occasional_refusals_set_no_limit() -> None:
    chance, limit = random.Random(3), InFlightLimit(256)
    for _ in range(20_000):
        if chance.random() < 0.05:
            limit.refused(limit.value - 1)
        else:
            answer(limit, limit.value)
    assert limit.value >= 240


def test_limit_grows_only_when_reached() -> None:
    limit = InFlightLimit(1024)
    assert not any(answer(limit, 63) for _ in range(1000)) and limit.value == 64
    for _ in range(64):
        answer(limit, limit.value)
    assert limit.value == 256


def found_at(events: list[Event], fewest: float, most: float) -> int:
    """From which request on the limit stays in a range."""
    outside = [number for number, event in enumerate(events, 1) if not fewest <= event.limit <= most]
    return outside[-1] if outside else 0


@pytest.mark.parametrize("length_s", ["equal", "uniform", "exponential"])
@pytest.mark.parametrize("most", [8, 24, 100, 400])
def test_limit_of_a_refusing_server_is_found_in_bounded_requests_and_kept(most: int, length_s: str) -> None:
    server = Server(LENGTHS[length_s], most=most)
    events = simulate(server, num_requests=60 * most + 4000, workers=1024)
    found = found_at(events, 0.8 * most, most + 1)
    assert found <= 64 + 3 * most
    after = events[found:]
    # Never more than one beyond it from then on, and that one for a fiftieth of the requests at most.
    assert {event.limit for event in after} <= {most - 1, most, most + 1}
    assert sum(event.limit > most for event in after) <= len(after) / 50
    assert 1000 * sum(not event.answered for event in after) / len(after) <= 2 + 150 / most
    # And the server is kept full.
    assert sum(event.answered for event in after) >= 0.9 * most * (after[-1].at - after[0].at)


@pytest.mark.parametrize("length_s", ["equal", "uniform", "exponential"])
@pytest.mark.parametrize("lanes", [8, 24, 100, 400])
def test_limit_decreases_without_loss_if_requests_queue_in_the_server(lanes: int, length_s: str) -> None:
    server = Server(LENGTHS[length_s], lanes=lanes)
    events = simulate(server, num_requests=20_000, workers=2048)
    after = events[12 * 1024 :]
    if length_s != "exponential":  # where lengths vary that much a trial may fail by chance
        assert sorted(event.limit for event in after)[len(after) // 2] <= 4 * lanes
    per_s = len(after) / (after[-1].at - after[0].at)
    assert per_s >= 0.93 * lanes and not any(not event.answered for event in events)


@pytest.mark.parametrize("length_s", list(LENGTHS))
@pytest.mark.parametrize("slowdown_at", [0, 300, 1000])
def test_server_that_benefits_from_more_load_gets_all(slowdown_at: int, length_s: str) -> None:
    def answer_s(chance: random.Random) -> float:  # a batching server: each one slower, all together faster
        return LENGTHS[length_s](chance) * (1 + server.held / slowdown_at if slowdown_at else 1)

    server = Server(answer_s)
    events = simulate(server, num_requests=30_000, workers=512, cap=256)
    most = [event for event in events if event.limit == 256]
    assert events[-1].limit == 256 and len(most) >= 0.95 * len(events)


def test_bursts_of_tool_calls_do_not_change_the_limit() -> None:
    server = Server(LENGTHS["uniform"])
    pauses = itertools.cycle([0.0] * 40 + [5.0] * 20)
    events = simulate(server, num_requests=20_000, workers=200, think_s=lambda chance: next(pauses))
    assert all(later.limit >= earlier.limit for earlier, later in itertools.pairwise(events))
    assert events[-1].limit < 4 * 200


def test_increased_server_capacity_is_detected() -> None:
    server = Server(LENGTHS["uniform"], most=8)

    def roomier(chance: random.Random) -> float:
        if server.most == 8 and len(seen) > 3000:
            server.most = 100
        seen.append(server.held)
        return chance.uniform(0.5, 1.5)

    seen: list[int] = []
    server.answer_s = roomier
    events = simulate(server, num_requests=12_000, workers=512)
    assert {event.limit for event in events[2000:3000]} <= {8, 9}
    assert {event.limit for event in events[-2000:]} <= {99, 100, 101}


async def test_rate_limit_of_a_tutor_is_found_and_everything_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    async def sleep(seconds: float) -> None:
        """Pass the tutor's time, which nothing else does: a slow machine would keep within the rate by itself."""
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(tutor_server, "RateLimit", lambda per_s, clock: RateLimit(per_s, lambda: now_s))
    async with TutorServer(TutorSettings(rate_limit_per_s=100.0)) as tutor:
        settings = ModelSettings.model_validate(
            {"model": "treadle-tutor", "endpoints": (EndpointSettings(url=tutor.url),), "hedge_floor_s": None}
        )
        async with ModelPool("policy", settings, sleep=sleep) as pool:
            deadline = asyncio.get_running_loop().time() + 120

            async def ask(number: int) -> None:
                request = CompletionRequest(f"Question {number}", 8, Sampling(), (), number)
                await pool.complete(request, session=str(number), deadline=deadline)

            await asyncio.gather(*(ask(number) for number in range(300)))
    statuses = tutor.counts["statuses"]
    assert statuses["200"] == pool.stats.completions == 300
    # Each one is refused once on average, or less: a refused request waits for its full delay.
    assert pool.stats.retries == {"rate_limit": statuses["429"]} and 0 < statuses["429"] <= 300


def test_halving_trial_ends_immediately_if_the_limit_is_not_reached() -> None:
    limit = InFlightLimit(64)
    for _ in range(57):  # nine tenths of the first 64 take a second
        limit.answered(64, sent_at=1.0, now=2.0)
    for number in range(129):  # then they take three
        assert limit.value == 64
        limit.answered(64, sent_at=10.0 + number, now=13.0 + number)
    assert limit.value == 32
    assert limit.answered(5, sent_at=200.0, now=203.0) and limit.value == 64
