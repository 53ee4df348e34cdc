"""Play the agents of the ledger by rule: the clerk, who works on a task, and the explorer, who explores without one."""

from __future__ import annotations

from dataclasses import replace

from treadle.demo.tutor.conversation import Conversation
from treadle.demo.tutor.ledger.desk import Desk, Order, Record
from treadle.demo.tutor.ledger.errands import Errand, read_errands
from treadle.demo.tutor.ledger.lessons import has_lesson
from treadle.demo.tutor.ledger.solution import (
    NUM_CANCELLED,
    as_line,
    call,
    next_change,
    next_look_up,
    open_before,
    right_answer,
)
from treadle.demo.tutor.policy import ErrorRates
from treadle.demo.tutor.seeded_draws import Draws

_WITH_LESSON = 0.3
"""Factor of the rates of errors if the prompt holds a lesson for the kind of task."""
_ACCOUNTS = ("A1", "A2", "A3", "A4", "A5", "A6")
_NUM_EXPLORED = 3


def clerk_turn(conversation: Conversation, rates: ErrorRates, draws: Draws) -> str:
    """Return the clerk's next call: `submit` with answer 0 if it finds no task, or would repeat a call.

    The clerk errs at the rates `wrong` (takes a wrong order or sum), `redundant` (looks at the account again) and
    `early` (answers before it has changed anything). A lesson about the task makes errors rarer.
    """
    errands, desk = read_errands(conversation.user), _desk(conversation)
    if not errands:
        return as_line(call("submit", answer=0))
    errand = errands[0]
    if has_lesson(conversation.user, errand.kind):
        patterns = ("wrong", "redundant", "early")
        rates = replace(rates, **{name: getattr(rates, name) * _WITH_LESSON for name in patterns})
    wanted = next_look_up(errand, desk) or _next_act(errand, desk, rates, draws)
    return as_line(call("submit", answer=0) if wanted in desk.asked else wanted)


def _next_act(errand: Errand, desk: Desk, rates: ErrorRates, draws: Draws) -> Record:
    """Return the next call once all look-ups are done: a change, the answer, or an error."""
    if (resumed := _resumed(errand, desk)) is not None:
        return resumed
    if not desk.cancelled and (slip := _slip(errand, desk, rates, draws)) is not None:
        return slip
    change = next_change(errand, desk)
    if change is None:
        wrong = errand.kind == "sum_open" and draws.happens("wrong", rates.wrong)
        answer = sum(one.amount for one in desk.orders_of(errand.owner) or ()) if wrong else right_answer(errand, desk)
        return call("submit", answer=answer)
    if draws.happens("wrong", rates.wrong):
        return _with_another_order(errand, desk, change, draws)
    return change


def _slip(errand: Errand, desk: Desk, rates: ErrorRates, draws: Draws) -> Record | None:
    """Return an error before the first change: a needless look-up or an answer; None if the clerk makes neither."""
    account = desk.accounts[errand.owner]
    looked = any(one["call"] == "get_account" for one in desk.asked)
    if not looked and draws.happens("redundant", rates.redundant):
        return call("get_account", account=account)
    if draws.happens("early", rates.early):
        return call("submit", answer=desk.balances[account])
    return None


def _resumed(errand: Errand, desk: Desk) -> Record | None:
    """Return the call that follows after an order was chosen, rightly or not; None if no order was chosen yet."""
    if errand.kind == "pay_cheapest" and desk.paid:
        return call("submit", answer=desk.balances[desk.accounts[errand.owner]])
    if errand.kind == "cancel_small" and len(desk.cancelled) >= NUM_CANCELLED:
        return call("submit", answer=NUM_CANCELLED)
    if errand.kind == "cover" and desk.moved:
        amount = desk.moved[-1][2]
        order = next((one for one in open_before(errand, desk) if one.amount == amount), None)
        if order is not None and order.id not in desk.paid:
            return call("pay_order", order=order.id)
        return call("submit", answer=amount)
    return None


def _with_another_order(errand: Errand, desk: Desk, change: Record, draws: Draws) -> Record:
    """Return the change with a wrong open order in place of the right one; unchanged if there is no other."""

    def is_right(order: Order) -> bool:
        return change.get("order") == order.id or change.get("amount") == order.amount

    others = [one for one in open_before(errand, desk) if one.status == "open" and not is_right(one)]
    if not others:
        return change
    other = draws.choose("order", others)
    return {**change, "amount": other.amount} if "amount" in change else {**change, "order": other.id}


def explorer_turn(conversation: Conversation, draws: Draws) -> str:
    """Return the explorer's next call: it looks at some accounts and their orders, then submits the answer 0."""
    desk = _desk(conversation)
    looked = {one.get("account") for one in desk.asked if one["call"] == "get_account"}
    listed = {one.get("account") for one in desk.asked if one["call"] == "list_orders"}
    if pending := [account for account in _ACCOUNTS if account in looked - listed]:
        return as_line(call("list_orders", account=pending[0]))
    if len(looked) >= _NUM_EXPLORED:
        return as_line(call("submit", answer=0))
    account = draws.choose("account", [one for one in _ACCOUNTS if one not in looked])
    return as_line(call("get_account", account=account))


def _desk(conversation: Conversation) -> Desk:
    return Desk.read(*(text for _, text in conversation.messages))
