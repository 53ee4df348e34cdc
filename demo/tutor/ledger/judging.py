"""Judge the work of an agent in the ledger by rule: step by step, or as a whole.

What is right follows from the task, and from the orders that the steps themselves have listed.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from treadle.demo.tutor.conversation import Conversation
from treadle.demo.tutor.ledger.cases import CaseStep, read_case, steps_of
from treadle.demo.tutor.ledger.desk import Desk, Record, read_records
from treadle.demo.tutor.ledger.errands import Errand, read_errands
from treadle.demo.tutor.ledger.solution import call, next_change, next_look_up, right_answer, solution

_MOST_MISSED = 40
_LEAST_MET, _MOST_MET = 60, 100
_PER_NEEDLESS_STEP = 5


def grade_reply(conversation: Conversation) -> str:
    """Return the grade of a rollout: 60 to 100 if the task is done and nothing else was changed, else 0 to 40."""
    case = read_case(conversation)
    errands, steps = read_errands(str(case.get("task", ""))), steps_of(case)
    if not errands:
        return orjson.dumps({"rationale": "This is no task of the ledger.", "score": 0}).decode()
    errand, desk = errands[0], _seen(steps)
    good = step_labels(errand, steps)
    if is_done(errand, desk):
        score = max(_LEAST_MET, _MOST_MET - _PER_NEEDLESS_STEP * good.count(False))
        return orjson.dumps({"rationale": "All that was asked is done.", "score": score}).decode()
    needed = len(solution(errand, desk)) if desk.orders_of(errand.owner) else len(errand.holders) + 2
    score = _MOST_MISSED * min(good.count(True), needed - 1) // needed
    return orjson.dumps({"rationale": "What was asked is not done.", "score": score}).decode()


def label_reply(conversation: Conversation) -> str:
    """Return a line per step of a rollout: GOOD if a lean solution makes all its calls at this point, else BAD."""
    case = read_case(conversation)
    errands, steps = read_errands(str(case.get("task", ""))), steps_of(case)
    labels = step_labels(errands[0], steps) if errands else [False] * len(steps)
    return "\n".join(f"Step {number} judgment: {'GOOD' if good else 'BAD'}" for number, good in enumerate(labels, 1))


def is_done(errand: Errand, desk: Desk) -> bool:
    """Return whether the right answer was submitted, and exactly the changes that the task asks for were made."""
    if not desk.orders_of(errand.owner) or not desk.answers or any(one not in desk.accounts for one in errand.holders):
        return False
    wanted = [one for one in solution(errand, desk) if one["call"] in ("pay_order", "cancel_order", "transfer")]
    changed = [call("pay_order", order=one) for one in desk.paid]
    changed += [call("cancel_order", order=one) for one in desk.cancelled]
    changed += [call("transfer", source=one, target=to, amount=cents) for one, to, cents in desk.moved]
    answer = desk.answers[-1]
    is_right = answer == right_answer(errand, desk) and not isinstance(answer, bool)
    return is_right and sorted(map(str, wanted)) == sorted(map(str, changed))


def step_labels(errand: Errand, steps: Sequence[CaseStep]) -> list[bool]:
    """Return for each step whether it has calls and all of them are due (see `_is_due`)."""
    desk, labels = Desk(), []
    for step in steps:
        calls = [one for one in read_records(step.action) if "call" in one]
        replies = list(read_records(step.observation))
        due = []
        for place, one in enumerate(calls):
            due.append(_is_due(errand, desk, one))
            desk.see(one)
            if place < len(replies):
                desk.see(replies[place])
        labels.append(bool(due) and all(due))
    return labels


def _is_due(errand: Errand, desk: Desk, asked: Record) -> bool:
    """Return whether a call is one that a lean solution makes next; look-ups may come in any order."""
    if asked["call"] == "find_account":
        return asked.get("holder") in errand.holders and asked.get("holder") not in desk.accounts
    if asked["call"] == "list_orders":
        return asked.get("account") == desk.accounts.get(errand.owner) and desk.orders_of(errand.owner) is None
    if next_look_up(errand, desk) is not None:
        return False
    change = next_change(errand, desk)
    if change is None:
        return asked == call("submit", answer=right_answer(errand, desk))
    if errand.kind == "cancel_small" and asked["call"] == "cancel_order":
        due = [one["order"] for one in solution(errand, desk) if one["call"] == "cancel_order"]
        return asked.get("order") in due and asked.get("order") not in desk.cancelled
    return asked == change


def _seen(steps: Sequence[CaseStep]) -> Desk:
    return Desk.read(*(text for step in steps for text in (step.action, step.observation)))
