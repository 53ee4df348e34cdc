"""Write tasks of the ledger from an exploration by rule, in the form of the stage `exploration`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import orjson

from treadle.demo.tutor.conversation import Conversation
from treadle.demo.tutor.ledger.cases import read_case, steps_of
from treadle.demo.tutor.ledger.desk import Desk
from treadle.demo.tutor.ledger.errands import Errand
from treadle.demo.tutor.ledger.solution import NUM_CANCELLED, as_line, chosen_orders, open_before, solution
from treadle.demo.tutor.policy import ErrorRates
from treadle.demo.tutor.seeded_draws import Draws

_NUM_TASKS = 3
_SURE, _UNSURE = 0.95, 0.6


def write_tasks(conversation: Conversation, rates: ErrorRates, draws: Draws) -> str:
    """Return up to three tasks on the accounts that the steps show, without tasks that are already known.

    At the rate `careless` the solution of a task ends with a wrong answer, of which its writer is less sure.
    """
    case = read_case(conversation)
    desk = Desk.read(*(text for step in steps_of(case) for text in (step.action, step.observation)))
    known = case.get("known")
    known_texts = set(map(str, known)) if isinstance(known, list) else set()
    new = [errand for errand in _possible(desk) if errand.text not in known_texts]
    chosen = sorted(new, key=lambda errand: draws.bits(errand.text))[:_NUM_TASKS]
    return orjson.dumps([_task(errand, desk, rates, draws) for errand in chosen]).decode()


def _possible(desk: Desk) -> Iterator[Errand]:
    """Yield tasks whose solution is unique and possible."""
    owners = [holder for holder in desk.accounts if desk.orders_of(holder)]
    for owner in owners:
        if len(open_before(Errand("sum_open", owner), desk)) > 1:
            yield Errand("sum_open", owner)
            yield Errand("pay_cheapest", owner)
        if is_unique(cancel := Errand("cancel_small", owner), desk):
            yield cancel
    for giver, owner in permutations(desk.accounts, 2):
        cover = Errand("cover", owner, giver)
        if owner in owners and is_unique(cover, desk):
            (order,) = chosen_orders(cover, desk)
            if desk.balances[desk.accounts[giver]] >= order.amount:
                yield cover


def is_unique(errand: Errand, desk: Desk) -> bool:
    """Return whether there are enough orders to choose, and no other order costs as much as the last chosen one."""
    chosen = [order.amount for order in chosen_orders(errand, desk)]
    wanted = NUM_CANCELLED if errand.kind == "cancel_small" else 1
    every = [order.amount for order in open_before(errand, desk)]
    return len(chosen) == wanted and every.count(chosen[-1]) == chosen.count(chosen[-1])


def _task(errand: Errand, desk: Desk, rates: ErrorRates, draws: Draws) -> dict[str, Any]:
    *calls, last = solution(errand, desk)
    careless = draws.happens(f"careless {errand.text}", rates.careless)
    if careless:
        last = {**last, "answer": last["answer"] + 1}
    return {
        "query": errand.text,
        "reference": list(map(as_line, [*calls, last])),
        "confidence": _UNSURE if careless else _SURE,
    }
