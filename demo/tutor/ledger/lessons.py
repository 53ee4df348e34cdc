"""Write and check lessons about tasks of the ledger by rule, and find them in a prompt.

Request and reply have the form of `treadle.rl.experience`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from treadle.demo.tutor.conversation import Conversation
from treadle.demo.tutor.ledger.cases import read_case
from treadle.demo.tutor.ledger.errands import read_errands
from treadle.environments.ledger.assignment import Kind

_SUCCESS_ABOVE = 0.5
SITUATIONS: Mapping[Kind, str] = {
    "pay_cheapest": "Pay the cheapest open order",
    "sum_open": "Submit the total of open orders",
    "cover": "Pay the dearest order for another holder",
    "cancel_small": "Cancel the two cheapest open orders",
}
"""Kind of task -> when its lessons apply."""
STRATEGIES: Mapping[Kind, str] = {
    "pay_cheapest": "find_account, list_orders, pay_order for the smallest open amount, submit the balance.",
    "sum_open": "find_account, list_orders, add the amounts with status open, submit the sum.",
    "cover": "find_account for both, list_orders, transfer the largest open amount, pay_order, submit the amount.",
    "cancel_small": "find_account, list_orders, cancel_order for the two smallest open amounts, submit 2.",
}
"""Kind of task -> what succeeds."""
WARNINGS: Mapping[Kind, str] = {
    "pay_cheapest": "compare all open amounts before pay_order, and leave out orders that are paid.",
    "sum_open": "leave out the orders that are paid.",
    "cover": "transfer no other amount than that of the dearest open order.",
    "cancel_small": "compare all open amounts before cancel_order, which cannot be undone.",
}
"""Kind of task -> what avoids failures."""


def has_lesson(text: str, kind: Kind) -> bool:
    """Return whether a text holds a lesson for a kind of task."""
    told = " ".join(text.split())
    return STRATEGIES[kind] in told or WARNINGS[kind] in told


def lesson_reply(conversation: Conversation) -> str:
    """Return records about the rollouts in a prompt: a strategy if one succeeded, a lesson if one failed."""
    case = read_case(conversation)
    errands = read_errands(str(case.get("task", "")))
    if not errands:
        return "[]"
    kind = errands[0].kind
    scores = [one["score"] for one in _rollouts(case)]
    records = []
    if any(score > _SUCCESS_ABOVE for score in scores):
        records.append(_record("strategy", kind, STRATEGIES[kind]))
    if any(score <= _SUCCESS_ABOVE for score in scores):
        records.append(_record("lesson", kind, WARNINGS[kind]))
    return orjson.dumps(records).decode()


def check_reply(conversation: Conversation) -> str:
    """Return the verdict on a record: valid if it is one of the lessons above, for the kind of the rollouts' task."""
    case = read_case(conversation)
    record, errands = case.get("record"), read_errands(str(case.get("task", "")))
    valid = isinstance(record, dict) and bool(errands) and has_lesson(str(record.get("advice")), errands[0].kind)
    reason = "It fits the task and its calls." if valid else "It says nothing about this kind of task."
    return orjson.dumps({"reason": reason, "valid": valid}).decode()


def _record(kind: str, task: Kind, advice: str) -> dict[str, str]:
    return {"kind": kind, "situation": SITUATIONS[task], "advice": advice}


def _rollouts(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = case.get("rollouts")
    rollouts = given if isinstance(given, list) else []
    return [one for one in rollouts if isinstance(one, dict) and isinstance(one.get("score"), (int, float))]
