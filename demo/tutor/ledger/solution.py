"""Find the next call that a task of the ledger needs, from the calls and results so far."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from treadle.demo.tutor.ledger.desk import Desk, Order, Record
from treadle.demo.tutor.ledger.errands import Errand

NUM_CANCELLED = 2
"""Orders that a task of the kind `cancel_small` cancels; this is its answer, too."""


def call(name: str, **arguments: object) -> Record:
    """Return a call of the API."""
    return {"call": name, **arguments}


def as_line(record: Record) -> str:
    """Return a call as the line of JSON that carries it out."""
    return orjson.dumps(dict(record)).decode()


def next_look_up(errand: Errand, desk: Desk) -> Record | None:
    """Return the next look-up that the task needs; None if all needed accounts and orders are known."""
    for holder in errand.holders:
        if holder not in desk.accounts:
            return call("find_account", holder=holder)
    if desk.orders_of(errand.owner) is None:
        return call("list_orders", account=desk.accounts[errand.owner])
    return None


def next_change(errand: Errand, desk: Desk) -> Record | None:
    """Return the next call that changes something; None if nothing is left to change.

    All look-ups of the task must be done.
    """
    chosen = chosen_orders(errand, desk)
    if errand.kind == "cancel_small":
        left = [order for order in chosen if order.id not in desk.cancelled]
        return call("cancel_order", order=left[0].id) if left else None
    if errand.kind == "sum_open" or not chosen:
        return None
    (order,) = chosen
    if errand.kind == "cover" and not desk.moved:
        source, target = desk.accounts[errand.giver], desk.accounts[errand.owner]
        return call("transfer", source=source, target=target, amount=order.amount)
    return None if order.id in desk.paid else call("pay_order", order=order.id)


def chosen_orders(errand: Errand, desk: Desk) -> list[Order]:
    """Return the orders that the task asks to pay, cancel or add up."""
    candidates = open_before(errand, desk)
    if errand.kind == "sum_open":
        return candidates
    cheapest = sorted(candidates, key=lambda order: order.amount)  # stable: of equal ones the first listed
    if errand.kind == "cover":
        return cheapest[-1:]
    return cheapest[: NUM_CANCELLED if errand.kind == "cancel_small" else 1]


def open_before(errand: Errand, desk: Desk) -> list[Order]:
    """Return the orders of the owner that were open before any call of the agent."""
    done = {*desk.paid, *desk.cancelled}
    return [order for order in desk.orders_of(errand.owner) or () if order.status == "open" or order.id in done]


def right_answer(errand: Errand, desk: Desk) -> int:
    """Return the answer to submit; 0 if it is not known."""
    if errand.kind == "cancel_small":
        return NUM_CANCELLED
    if errand.kind == "pay_cheapest":
        return desk.balances.get(desk.accounts.get(errand.owner, ""), 0)
    return sum(order.amount for order in chosen_orders(errand, desk))


def solution(errand: Errand, desk: Desk) -> Sequence[Record]:
    """Return all calls of a lean solution, with the look-ups first. The orders of the owner must be known."""
    chosen = chosen_orders(errand, desk)
    account = desk.accounts[errand.owner]
    calls = [call("find_account", holder=holder) for holder in errand.holders]
    calls.append(call("list_orders", account=account))
    answer = right_answer(errand, desk)
    if errand.kind == "cancel_small":
        calls += [call("cancel_order", order=order.id) for order in chosen]
    elif errand.kind != "sum_open":
        (order,) = chosen
        if errand.kind == "cover":
            source = desk.accounts[errand.giver]
            calls.append(call("transfer", source=source, target=account, amount=order.amount))
        else:
            answer -= order.amount
        calls.append(call("pay_order", order=order.id))
    return [*calls, call("submit", answer=answer)]
