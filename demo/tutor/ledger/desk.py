"""Read calls of the ledger's API and their results from any text, and keep the accounts and orders that they show."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Record = Mapping[str, Any]
"""A call, or the result of one: a JSON object."""

_MAX_CHARS = 400_000
_MAX_DEPTH = 6
_KEYS = (
    {"call"}, {"orders"}, {"error"}, {"submitted"}, {"source", "target"}, {"account", "holder", "balance"},
    {"order", "account", "amount", "status"},
)  # fmt: skip
"""Sets of keys: a JSON object that has all keys of one set is a call of the ledger's API, or the result of one."""
_DECODER = json.JSONDecoder()


@dataclass(slots=True)
class Order:
    """An order as last seen.

    Attributes:
        amount: In cents.
    """

    id: str
    account: str
    amount: int
    status: str


@dataclass(slots=True)
class Desk:
    """What calls and results have shown.

    Attributes:
        accounts: Holder of an account -> its id.
        balances: Id of an account -> its balance in cents.
        orders: Id of an account -> the orders that were seen of it, by id.
        paid: Ids of orders that a call paid.
        cancelled: Ids of orders that a call cancelled.
        moved: Source, target and cents of each transfer.
        answers: Submitted answers.
        asked: Calls so far, with arguments.
    """

    accounts: dict[str, str] = field(default_factory=dict)
    balances: dict[str, int] = field(default_factory=dict)
    orders: dict[str, dict[str, Order]] = field(default_factory=dict)
    paid: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    moved: list[tuple[str, str, int]] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    asked: list[Record] = field(default_factory=list)

    @classmethod
    def read(cls, *texts: str) -> Desk:
        """Return what the calls and results in texts have shown, read one text after the other."""
        desk = cls()
        for text in texts:
            for record in read_records(text):
                desk.see(record)
        return desk

    def orders_of(self, holder: str) -> list[Order] | None:
        """Return the orders of a holder; None if they were not listed."""
        found = self.orders.get(self.accounts.get(holder, ""))
        return None if found is None else list(found.values())

    def see(self, record: Record) -> None:
        """Update the accounts and orders from a call or a result; what is malformed in it is ignored."""
        try:
            self._see(record)
        except (KeyError, TypeError, ValueError, AttributeError):
            return  # models write malformed calls

    def _see(self, record: Record) -> None:
        if "call" in record:
            self.asked.append(record)
            if record["call"] == "submit":
                self.answers.append(record.get("answer"))
        elif "orders" in record:
            for one in record["orders"]:
                self._order(one)
        elif "source" in record:
            self._account(record["source"])
            self._account(record["target"])
            self._transferred(record)
        elif "holder" in record:
            self._account(record)
        elif "order" in record:
            self._order(record)
            done = {"paid": self.paid, "cancelled": self.cancelled}.get(record["status"])
            if done is not None:
                done.append(record["order"])
            if "balance" in record:
                self.balances[record["account"]] = int(record["balance"])

    def _account(self, facts: Record) -> None:
        holder, account, balance = str(facts["holder"]), str(facts["account"]), int(facts["balance"])
        self.accounts[holder], self.balances[account] = account, balance

    def _order(self, facts: Record) -> None:
        order = Order(str(facts["order"]), str(facts["account"]), int(facts["amount"]), str(facts["status"]))
        self.orders.setdefault(order.account, {})[order.id] = order

    def _transferred(self, result: Record) -> None:
        source, target = str(result["source"]["account"]), str(result["target"]["account"])
        call = next((one for one in reversed(self.asked) if one["call"] == "transfer"), {})
        if isinstance(amount := call.get("amount"), int):
            self.moved.append((source, target, amount))


def read_records(text: str) -> Iterator[Record]:
    """Yield the calls and results in a text, in the order of the text, including those inside of other JSON."""
    yield from _records_in(text[:_MAX_CHARS], 0)


def _records_in(value: object, depth: int) -> Iterator[Record]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, str):
        yield from _records_of(_objects(value), depth)
    elif isinstance(value, dict) and any(keys <= value.keys() for keys in _KEYS):
        yield value
    elif isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _records_in(one, depth + 1)


def _records_of(values: Iterable[object], depth: int) -> Iterator[Record]:
    for value in values:
        yield from _records_in(value, depth + 1)


def _objects(text: str) -> Iterator[object]:
    """Yield the JSON objects in a text that are not inside of another."""
    at = text.find("{")
    while at >= 0:
        try:
            value, at = _DECODER.raw_decode(text, at)
            yield value
        except (ValueError, RecursionError):
            at += 1
        at = text.find("{", at)
