"""A model server and its clients in virtual time: how a limit of requests in flight behaves, without waiting.

`simulate` runs workers that ask one request after another, with the pool's limit in front of the server: a request
takes a slot or waits for one, a refused one frees its slot and comes again after a pause. Seconds are of a made-up
clock.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from treadle.core.llm.limit import InFlightLimit


@dataclass(slots=True)
class Server:
    """Takes at most `most` requests and refuses further ones, or serves `lanes` at once and lets further ones wait.

    Attributes:
        answer_s: Draws the length of one answer.
        most: Requests that it holds; None means any number.
        lanes: Answers at one time; None means as many as are asked for.
        lost: Share of requests that it refuses whatever it holds.
    """

    answer_s: Callable[[random.Random], float]
    most: int | None = None
    lanes: int | None = None
    lost: float = 0.0
    held: int = 0
    free_at: list[float] = field(default_factory=list)

    def take(self, now: float, chance: random.Random) -> float | None:
        """Accept a request; returns when it is answered, or None if it is refused."""
        if (self.most is not None and self.held >= self.most) or chance.random() < self.lost:
            return None
        self.held += 1
        begin = now
        if self.lanes is not None:
            free = heapq.heappop(self.free_at) if len(self.free_at) >= self.lanes else now
            begin = max(now, free)
        end = begin + self.answer_s(chance)
        if self.lanes is not None:
            heapq.heappush(self.free_at, end)
        return end


@dataclass(slots=True)
class Event:
    """What the limit saw: one request that was answered or refused.

    Attributes:
        at: When.
        sent_at: When the request was sent.
        answered: Whether it was answered.
        held: Requests that the server held just before.
        limit: The limit just after.
    """

    at: float
    sent_at: float
    answered: bool
    held: int
    limit: int


def simulate(
    server: Server,
    *,
    num_requests: int,
    workers: int,
    cap: int = 1024,
    think_s: Callable[[random.Random], float] = lambda chance: 0.0,
    seed: int = 0,
    travel_s: float = 0.001,
) -> list[Event]:
    """Send this number of requests (refused ones count); return their outcomes, in order."""
    chance, order = random.Random(seed), itertools.count()
    limit, in_flight = InFlightLimit(cap), 0
    waiting: deque[int] = deque()
    tries = [0] * workers
    events: list[Event] = []
    queue: list[tuple[float, int, str, int, float]] = [
        (0.0, next(order), "ask", worker, 0.0) for worker in range(workers)
    ]

    def push(at: float, what: str, worker: int, sent_at: float = 0.0) -> None:
        heapq.heappush(queue, (at, next(order), what, worker, sent_at))

    def dispatch_requests(now: float) -> None:
        nonlocal in_flight
        while waiting and in_flight < limit.value:
            in_flight += 1
            push(now + travel_s, "arrive", waiting.popleft(), now)

    while len(events) < num_requests:
        now, _, what, worker, sent_at = heapq.heappop(queue)
        if what == "ask":
            waiting.append(worker)
        elif what == "arrive":
            end = server.take(now, chance)
            push(now + travel_s if end is None else end, "refused" if end is None else "leave", worker, sent_at)
        elif what == "leave":
            server.held -= 1
            push(now + travel_s, "answered", worker, sent_at)
        elif what == "answered":
            limit.answered(in_flight, sent_at, now)
            tries[worker], in_flight = 0, in_flight - 1
            push(now + think_s(chance), "ask", worker)
            events.append(Event(now, sent_at, True, server.held, limit.value))
        else:
            limit.refused(in_flight - 1)
            in_flight -= 1
            tries[worker] += 1
            push(now + min(30.0, 0.5 * 2.0 ** (tries[worker] - 1)) * chance.uniform(0.5, 1.0), "ask", worker)
            events.append(Event(now, sent_at, False, server.held, limit.value))
        dispatch_requests(now)
    return events
