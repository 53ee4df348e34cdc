"""Make the tasks of the ledger from seeds, and measure how far a book fulfils them.

A task has a text, a state of the book to reach, and one solution of three to six calls, the last of which submits the
answer. The solution of a task that was made by exploring a book is the calls of its reference.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from treadle.environments.ledger.book import Account, Book, CallError

SUBMIT = "submit"
"""Name of the call that ends an episode; its only argument is `answer`."""
_SIDE_EFFECT_FACTOR = 0.5

GoldCall = tuple[str, Mapping[str, Any]]
Kind = Literal["pay_cheapest", "sum_open", "cover", "cancel_small"]
TEXTS: Mapping[Kind, str] = {
    "pay_cheapest": "Pay the cheapest open order of {owner}; of equally cheap ones the first listed. "
    "Then submit the account's new balance in cents.",
    "sum_open": "Submit the total of {owner}'s open orders in cents. Change nothing.",
    "cover": "{giver} pays for {owner}: transfer the amount of {owner}'s dearest open order from "
    "{giver}'s account to {owner}'s, pay that order, and submit the amount in cents.",
    "cancel_small": "Cancel the two cheapest open orders of {owner}, and submit 2.",
}
"""Kind of task -> template of its text, with placeholders for the holders of the accounts."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task on the book that is made from its seed.

    Attributes:
        text: What the agent is asked to do.
        answer: What the agent has to submit; None if only the state of the book counts.
        solution: Calls that fulfil it, as names and arguments; those that the book refuses change nothing.
        kind: Kind of task; None for one that was made by exploring a book.
    """

    seed: int
    text: str
    answer: object
    solution: Sequence[GoldCall]
    kind: Kind | None = None

    @classmethod
    def make(cls, seed: int) -> Assignment:
        """Return the task of a seed."""
        draw = random.Random(f"assignment {seed}")
        return draw.choice(_TEMPLATES)(seed, Book.make(seed), draw)

    @classmethod
    def referenced(cls, seed: int, text: str, reference: Sequence[str]) -> Assignment:
        """Return a task that was made by exploring the book of a seed; the turns of `reference` have its solution."""
        calls = [call for turn in reference for call in calls_in(turn)]
        answers = [arguments.get("answer") for name, arguments in calls if name == SUBMIT]
        return cls(seed, text, answers[-1] if answers else None, calls)

    def score(self, book: Book, answer: object) -> float | None:
        """Return the share of the task that is done, from 0 to 1; 1 only if nothing else was changed.

        Each order and account that the solution changes counts equally, and so does the answer. If anything else was
        changed, the score is halved. None if the solution neither changes nor submits anything.
        """
        before, after = _facts(Book.make(self.seed)), _facts(self._solved())
        now = _facts(book)
        wanted = [name for name in after if after[name] != before[name]]
        reached = sum(now[name] == after[name] for name in wanted)
        total = len(wanted)
        if self.answer is not None:
            total += 1
            reached += answer == self.answer and not isinstance(answer, bool)
        if not total:
            return None
        elsewhere = any(now[name] != before[name] for name in now if name not in wanted)
        return reached / total * (_SIDE_EFFECT_FACTOR if elsewhere else 1.0)

    def _solved(self) -> Book:
        book = Book.make(self.seed)
        for name, arguments in self.solution:
            if name != SUBMIT:
                with contextlib.suppress(CallError):
                    book.call(name, arguments)
        return book


def calls_in(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls in a turn, as names and arguments: lines that are JSON objects whose `call` is a string."""
    found: list[tuple[str, dict[str, Any]]] = []
    for line in text.splitlines():
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(value, dict) and isinstance(value.get("call"), str):
            found.append((value.pop("call"), value))
    return found


def _facts(book: Book) -> dict[str, object]:
    balances: dict[str, object] = {account.id: account.balance for account in book.accounts.values()}
    return balances | {order.id: order.status for order in book.orders.values()}


def _two_accounts(book: Book, draw: random.Random) -> tuple[Account, Account]:
    first, second = draw.sample(sorted(book.accounts), 2)
    return book.accounts[first], book.accounts[second]


def _look_up(account: Account) -> list[GoldCall]:
    return [("find_account", {"holder": account.holder}), ("list_orders", {"account": account.id})]


def _pay_cheapest(seed: int, book: Book, draw: random.Random) -> Assignment:
    account, _ = _two_accounts(book, draw)
    order = min(book.orders_of(account.id, "open"), key=lambda order: (order.amount, order.id))
    left = account.balance - order.amount
    calls = [*_look_up(account), ("pay_order", {"order": order.id}), (SUBMIT, {"answer": left})]
    return Assignment(seed, TEXTS["pay_cheapest"].format(owner=account.holder), left, calls, "pay_cheapest")


def _sum_open(seed: int, book: Book, draw: random.Random) -> Assignment:
    account, _ = _two_accounts(book, draw)
    total = sum(order.amount for order in book.orders_of(account.id, "open"))
    text = TEXTS["sum_open"].format(owner=account.holder)
    return Assignment(seed, text, total, [*_look_up(account), (SUBMIT, {"answer": total})], "sum_open")


def _cover(seed: int, book: Book, draw: random.Random) -> Assignment:
    giver, owner = _two_accounts(book, draw)
    order = max(book.orders_of(owner.id, "open"), key=lambda order: (order.amount, order.id))
    if [one.amount for one in book.orders_of(owner.id, "open")].count(order.amount) > 1:
        return _sum_open(seed, book, draw)  # two orders are the dearest
    calls: list[GoldCall] = [
        ("find_account", {"holder": giver.holder}),
        *_look_up(owner),
        ("transfer", {"source": giver.id, "target": owner.id, "amount": order.amount}),
        ("pay_order", {"order": order.id}),
        (SUBMIT, {"answer": order.amount}),
    ]
    text = TEXTS["cover"].format(giver=giver.holder, owner=owner.holder)
    return Assignment(seed, text, order.amount, calls, "cover")


def _cancel_small(seed: int, book: Book, draw: random.Random) -> Assignment:
    account, _ = _two_accounts(book, draw)
    first, second = sorted(book.orders_of(account.id, "open"), key=lambda order: (order.amount, order.id))[:2]
    if sum(order.amount <= second.amount for order in book.orders_of(account.id, "open")) > 2:
        return _sum_open(seed, book, draw)  # more than two are the cheapest
    text = TEXTS["cancel_small"].format(owner=account.holder)
    cancelled: list[GoldCall] = [("cancel_order", {"order": order.id}) for order in (first, second)]
    calls = [*_look_up(account), *cancelled, (SUBMIT, {"answer": 2})]
    return Assignment(seed, text, 2, calls, "cancel_small")


_TEMPLATES: Sequence[Callable[[int, Book, random.Random], Assignment]] = (
    _pay_cheapest,
    _sum_open,
    _cover,
    _cancel_small,
)
