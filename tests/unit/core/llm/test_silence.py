"""Silent servers: their silence does not count as time of the waiting work. Virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from support.rollouts.model_pool import request
from support.servers import own_clock

from treadle.core.errors import DeadlineExceeded, EndpointUnavailable
from treadle.core.llm.client import HttpClient
from treadle.core.llm.config import EndpointSettings, ModelSettings
from treadle.core.llm.heartbeat import Heartbeat
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import Completion
from treadle.core.work_clock import WorkClock, timed_work


@dataclass
class Server:
    """Answers after `answer_s` of the loop's time, or never (None); while frozen nothing it was sent is worked at.

    `swallows`: what reaches it while it is frozen is lost. `frozen` are spans of the loop's time.
    """

    answer_s: Callable[[int], float | None]
    models_s: Callable[[int], float] = lambda _: 0.0
    """Seconds for an answer to GET /models, by their number."""
    frozen: tuple[tuple[float, float], ...] = ()
    swallows: bool = False
    asked_at: list[float] = field(default_factory=list)
    num_questions: int = 0

    async def post(self, *_: object, **__: object) -> tuple[int, dict[str, str], bytes]:
        loop = asyncio.get_running_loop()
        number, arrived = len(self.asked_at), loop.time()
        self.asked_at.append(arrived)
        wanted_s = self.answer_s(number)
        if wanted_s is None:
            await loop.create_future()
        assert wanted_s is not None
        while wanted_s > 0:
            begin, end = next((span for span in self.frozen if span[1] > loop.time()), (float("inf"), float("inf")))
            worked_s = min(wanted_s, max(0.0, begin - loop.time()))
            await asyncio.sleep(worked_s)
            wanted_s -= worked_s
            if wanted_s > 0:
                if self.swallows:
                    await loop.create_future()
                await asyncio.sleep(end - loop.time())
        answer = {
            "choices": [{"text": "said", "finish_reason": "stop", "token_ids": [1]}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1},
        }
        return 200, {}, orjson.dumps(answer)

    async def get(self, *_: object, **__: object) -> tuple[int, dict[str, str], bytes]:
        self.num_questions += 1
        await asyncio.sleep(self.models_s(self.num_questions - 1))
        now = asyncio.get_running_loop().time()
        for begin, end in self.frozen:
            if begin <= now < end:
                await asyncio.sleep(end - now)
        return 200, {}, b"{}"


def checked_heartbeat(models_s: float) -> Callable[..., None]:
    """Return a Heartbeat's __init__ after a preflight with this latency of the model list."""
    plain = Heartbeat.__init__

    def init(self: Heartbeat, *args: Any, **settings: Any) -> None:
        plain(self, *args, **settings)
        self.took(models_s)

    return init


def ask_at(
    server: Server, monkeypatch: pytest.MonkeyPatch, *limits_s: float, **settings: Any
) -> list[tuple[Any, float, float]]:
    """Ask once for each limit, one after the other: the answer or error, the loop's time, and that of the work."""
    for method in ("get", "post"):
        monkeypatch.setattr(HttpClient, method, getattr(server, method))
    endpoint = EndpointSettings(url="http://127.0.0.1:9/v1")
    model = ModelSettings.model_validate({"model": "m", "endpoints": (endpoint,), **settings})

    async def one(pool: ModelPool, clock: WorkClock, limit_s: float) -> tuple[Any, float, float]:
        try:
            said: Any = await pool.complete(request(), session="s", deadline=clock.time() + limit_s)
        except (DeadlineExceeded, EndpointUnavailable) as error:
            said = error
        return said, asyncio.get_running_loop().time(), clock.time()

    async def work() -> list[tuple[Any, float, float]]:
        async with ModelPool("base", model) as pool:
            with timed_work() as clock:
                return [await one(pool, clock, limit_s) for limit_s in limits_s]

    return own_clock.run(work())


def test_endless_answer_of_a_live_server_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    ((said, at, _),) = ask_at(Server(lambda _: None), monkeypatch, 30.0)
    assert isinstance(said, DeadlineExceeded) and 30.0 <= at < 31.0


def test_long_answer_is_still_cut_off_while_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(lambda number: 0.2 if number < 20 else None)
    *short, (said, at, _) = ask_at(server, monkeypatch, *[5.0] * 20, 10.0)
    assert all(isinstance(answer, Completion) for answer, _, _ in short)
    assert isinstance(said, DeadlineExceeded) and 14.0 <= at < 15.0


@pytest.mark.parametrize("models_s", [0.7, 2.9, 4.0, 12.0, 25.0])
@pytest.mark.parametrize("is_checked", [True, False])
def test_endless_answer_of_a_server_with_a_slow_model_list_is_a_timeout(
    monkeypatch: pytest.MonkeyPatch, is_checked: bool, models_s: float
) -> None:
    server = Server(lambda _: None, models_s=lambda _: models_s)
    if is_checked:  # The preflight finds out how slow it is.
        monkeypatch.setattr(Heartbeat, "__init__", checked_heartbeat(models_s))
    ((said, _, _),) = ask_at(server, monkeypatch, 4.0)
    assert isinstance(said, DeadlineExceeded)
    # If this latency is unknown, the first requests look like a silence.
    assert len(server.asked_at) <= (1 if is_checked or models_s < 3.0 else 3)


def test_long_answer_of_a_server_with_a_slow_model_list_is_requested_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for models_s in (0.7, 2.9):
        server = Server(lambda number: 1.0 if number < 8 else 30.0, models_s=lambda _, s=models_s: s)
        *_, (said, at, worked) = ask_at(server, monkeypatch, *[60.0] * 9, hedge_floor_s=None)
        assert isinstance(said, Completion) and (at, worked) == pytest.approx((38.0, 38.0))
        assert len(server.asked_at) == 9


def test_server_that_freezes_once_is_not_considered_slow() -> None:
    async def work() -> list[float]:
        async def ask() -> None: ...

        heartbeat, patience = Heartbeat(ask), []
        for seconds in (0.1, 0.1, 15.0, 0.1, 2.0, 2.0):
            heartbeat.took(seconds)
            patience.append(heartbeat.silence_limit_s)
        return patience

    assert own_clock.run(work()) == pytest.approx([3.0, 3.0, 3.0, 3.0, 8.0, 8.0])


def test_unanswered_probe_counts_from_the_last_response_after_it() -> None:
    async def work() -> tuple[float | None, float | None]:
        loop = asyncio.get_running_loop()

        async def ask() -> None:
            await loop.create_future()

        heartbeat = Heartbeat(ask)
        with timed_work() as clock:
            watch = heartbeat.watch(clock.limit(None))
            await asyncio.sleep(2.0)  # The probe was sent after one second.
            heartbeat.heard()
            await asyncio.sleep(2.9)
            before = heartbeat.silent_since
            await asyncio.sleep(0.7)
            after = heartbeat.silent_since
            heartbeat.unwatch(watch)
        await heartbeat.close()
        return before, after and after - loop.time()

    before, after = own_clock.run(work())
    assert before is None and after == pytest.approx(-3.6)


@pytest.mark.parametrize("answers_before", [0, 20])
def test_formerly_frozen_server_gets_no_duplicate_of_a_held_request(
    monkeypatch: pytest.MonkeyPatch, answers_before: int
) -> None:
    # Answers take eight seconds, longer than `hedge_floor_s`; it is frozen for six in the middle of one.
    begin = 8.0 * answers_before + 1.0
    server = Server(lambda _: 8.0, frozen=((begin, begin + 6.0),))
    *_, (said, at, worked) = ask_at(server, monkeypatch, *[12.0] * (answers_before + 1))
    assert isinstance(said, Completion) and at == pytest.approx(begin + 13.0)
    assert worked <= begin + 8.0 and len(server.asked_at) == answers_before + 1


def test_timeout_after_a_freeze_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(lambda _: 18.0, frozen=((1.0, 7.0),))
    ((said, _, _),) = ask_at(server, monkeypatch, 12.0)
    # It might have lost the first one.
    assert isinstance(said, DeadlineExceeded) and len(server.asked_at) == 2


def test_requests_lost_in_repeated_silences_are_retried_a_bounded_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spans = tuple((30.0 * number + 0.5, 30.0 * number + 25.0) for number in range(100))
    server = Server(lambda _: 6.0, frozen=spans, swallows=True)
    ((said, _, _),) = ask_at(server, monkeypatch, 8.0, retry_limit=3, outage_wait_s=1000.0)
    assert isinstance(said, EndpointUnavailable) and len(server.asked_at) == 4


@pytest.mark.parametrize("hedge_floor_s", [2.0, None])
@pytest.mark.parametrize("answers_before", [0, 20])
@pytest.mark.parametrize("frozen_s", [6.0, 40.0, 110.0])
def test_frozen_server_takes_no_time_of_the_work(
    monkeypatch: pytest.MonkeyPatch, frozen_s: float, answers_before: int, hedge_floor_s: float | None
) -> None:
    # Each answer takes a second, and the work has four for the one that the server freezes in.
    begin = answers_before + 0.5
    server = Server(lambda _: 1.0, frozen=((begin, begin + frozen_s),))
    *_, (said, at, worked) = ask_at(server, monkeypatch, *[4.0] * answers_before, 4.0, hedge_floor_s=hedge_floor_s)
    assert isinstance(said, Completion) and at == pytest.approx(begin + frozen_s + 0.5, abs=0.1)
    # What was worked before its last sign of life is known only up to a check.
    assert worked <= answers_before + 1.0 + 0.6
    assert len(server.asked_at) == answers_before + 1


def test_request_lost_in_a_silence_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings in ({}, {"hedge_floor_s": None}):
        server = Server(lambda _: 1.0, frozen=((0.5, 30.0),), swallows=True)
        ((said, at, worked),) = ask_at(server, monkeypatch, 4.0, **settings)
        assert isinstance(said, Completion) and 30.0 < at < 42.0
        assert len(server.asked_at) == 2
        # Of the lost attempt nothing counts, whatever found out that it was lost.
        assert worked == pytest.approx(1.0, abs=0.1)


def test_time_of_an_attempt_replaced_by_a_hedge_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(lambda number: None if number == 20 else 0.2)
    *_, (said, at, worked) = ask_at(server, monkeypatch, *[5.0] * 20, 10.0)
    assert isinstance(said, Completion) and len(server.asked_at) == 22
    assert at > 4.0 + 1.0 and worked == pytest.approx(21 * 0.2, abs=0.1)


def test_black_hole_leaves_the_work_pending_after_the_outage_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings in ({}, {"hedge_floor_s": None}):
        server = Server(lambda _: 1.0, frozen=((0.0, 1e9),))
        ((said, at, worked),) = ask_at(server, monkeypatch, 4.0, outage_wait_s=60.0, **settings)
        assert isinstance(said, EndpointUnavailable) and "no endpoint answers" in str(said)
        assert 60.0 <= at < 72.0 and worked < 4.0


def test_server_that_freezes_at_the_deadline_leaves_the_work_pending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Too late for any check before the deadline.
    server = Server(lambda number: None if number == 0 else 1.0, frozen=((3.9, 20.0),))
    ((said, at, _),) = ask_at(server, monkeypatch, 4.0)
    assert isinstance(said, Completion) and 20.0 < at < 30.0


def test_failed_attempts_and_their_pauses_take_no_time_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(lambda _: 1.0)
    failing = itertools.count()
    answer = server.post

    async def post(*_: object, **__: object) -> tuple[int, dict[str, str], bytes]:
        if next(failing) < 5:
            await asyncio.sleep(3.0)
            return 500, {}, b"{}"
        return await answer()

    server.post = post  # type: ignore[method-assign]
    ((said, at, worked),) = ask_at(server, monkeypatch, 4.0, backoff_base_s=2.0, backoff_max_s=2.0)
    assert isinstance(said, Completion) and at > 15.0
    assert worked == pytest.approx(1.0, abs=0.1)
