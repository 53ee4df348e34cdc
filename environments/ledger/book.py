"""Hold accounts and orders, and answer the calls of the ledger's API.

A book is made from a seed alone. A call that cannot be carried out returns an error and changes nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from treadle.agent.tools.schema import ToolSchema

_HOLDERS = ("Ada", "Ben", "Cleo", "Dov", "Ema", "Finn", "Gus", "Hana", "Ida", "Jon", "Kim", "Lena")
_ITEMS = ("desk", "lamp", "chair", "shelf", "rug", "clock", "mirror", "vase")
NUM_ACCOUNTS = 6
_ORDERS_EACH = (2, 4)
Status = Literal["open", "paid", "cancelled", "refunded"]


class CallError(Exception):
    """A call that the book refuses; the message is for the agent."""


@dataclass(slots=True)
class Account:
    """An account.

    Attributes:
        balance: In cents.
    """

    id: str
    holder: str
    balance: int


@dataclass(slots=True)
class Order:
    """An order of an account's holder.

    Attributes:
        amount: In cents.
    """

    id: str
    account: str
    item: str
    amount: int
    status: Status


@dataclass(slots=True)
class Book:
    """Accounts and orders by id."""

    accounts: dict[str, Account] = field(default_factory=dict)
    orders: dict[str, Order] = field(default_factory=dict)

    @classmethod
    def make(cls, seed: int) -> Book:
        """Return the book of a seed; every account has at least two open orders and can pay all of them."""
        draw = random.Random(seed)
        book = cls()
        for number, holder in enumerate(draw.sample(_HOLDERS, NUM_ACCOUNTS)):
            account = Account(f"A{number + 1}", holder, draw.randrange(30_000, 90_000, 500))
            book.accounts[account.id] = account
            for place in range(draw.randint(*_ORDERS_EACH) + 1):
                order_id = f"O{len(book.orders) + 101}"
                status: Status = "open" if place < 2 else draw.choice(("open", "paid"))
                amount = draw.randrange(1_000, 6_000, 100)
                book.orders[order_id] = Order(order_id, account.id, draw.choice(_ITEMS), amount, status)
        return book

    def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one call; return its result, which JSON can represent. Raises CallError."""
        entry = CALLS.get(name)
        if entry is None:
            raise CallError(f"there is no call {name!r}; calls: {', '.join(CALLS)}")
        if error := entry.schema.argument_error(arguments):
            raise CallError(f"{name}: {error}")
        return entry.run(self, **arguments)

    def orders_of(self, account: str, status: str | None = None) -> list[Order]:
        """Return the orders of an account, in the order of their ids."""
        found = [order for order in self.orders.values() if order.account == account]
        return [order for order in found if status is None or order.status == status]


def _account(book: Book, account: str) -> Account:
    if account not in book.accounts:
        raise CallError(f"there is no account {account!r}")
    return book.accounts[account]


def _order(book: Book, order: str, status: Status) -> Order:
    if order not in book.orders:
        raise CallError(f"there is no order {order!r}")
    found = book.orders[order]
    if found.status != status:
        raise CallError(f"order {order} is {found.status}, not {status}")
    return found


def _account_facts(account: Account) -> dict[str, Any]:
    return {"account": account.id, "holder": account.holder, "balance": account.balance}


def _order_facts(order: Order) -> dict[str, Any]:
    facts = {"order": order.id, "account": order.account, "item": order.item}
    return {**facts, "amount": order.amount, "status": order.status}


def find_account(book: Book, holder: str) -> dict[str, Any]:
    """Return the account of a holder."""
    for account in book.accounts.values():
        if account.holder == holder:
            return _account_facts(account)
    raise CallError(f"{holder!r} has no account")


def get_account(book: Book, account: str) -> dict[str, Any]:
    """Return an account with its balance in cents."""
    return _account_facts(_account(book, account))


def list_orders(book: Book, account: str) -> dict[str, Any]:
    """Return all orders of an account; amounts are in cents."""
    return {"orders": [_order_facts(order) for order in book.orders_of(_account(book, account).id)]}


def pay_order(book: Book, order: str) -> dict[str, Any]:
    """Pay an open order from its account."""
    found = _order(book, order, "open")
    account = book.accounts[found.account]
    if account.balance < found.amount:
        raise CallError(f"account {account.id} has {account.balance}, and order {order} costs {found.amount}")
    account.balance -= found.amount
    found.status = "paid"
    return _order_facts(found) | {"balance": account.balance}


def refund_order(book: Book, order: str) -> dict[str, Any]:
    """Refund a paid order to its account."""
    found = _order(book, order, "paid")
    account = book.accounts[found.account]
    account.balance += found.amount
    found.status = "refunded"
    return _order_facts(found) | {"balance": account.balance}


def cancel_order(book: Book, order: str) -> dict[str, Any]:
    """Cancel an open order."""
    found = _order(book, order, "open")
    found.status = "cancelled"
    return _order_facts(found)


def transfer(book: Book, source: str, target: str, amount: int) -> dict[str, Any]:
    """Move cents from one account to another."""
    giver, taker = _account(book, source), _account(book, target)
    if giver is taker:
        raise CallError("source and target are the same account")
    if giver.balance < amount:
        raise CallError(f"account {source} has {giver.balance}, less than {amount}")
    giver.balance -= amount
    taker.balance += amount
    return {"source": _account_facts(giver), "target": _account_facts(taker)}


@dataclass(frozen=True, slots=True)
class BookCall:
    """One call of the API.

    Attributes:
        run: Function that takes the book and the arguments of the call. Raises CallError.
        schema: Description of the call for models.
    """

    run: Callable[..., dict[str, Any]]
    schema: ToolSchema


def _entry(run: Callable[..., dict[str, Any]], **kinds: str) -> BookCall:
    properties: dict[str, dict[str, Any]] = {name: {"type": kind} for name, kind in kinds.items()}
    for one in properties.values():
        if one["type"] == "integer":
            one["minimum"] = 1
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(kinds),
        "additionalProperties": False,
    }
    return BookCall(run, ToolSchema(run.__name__, (run.__doc__ or "").strip(), parameters))


CALLS: Mapping[str, BookCall] = {
    entry.run.__name__: entry
    for entry in (
        _entry(find_account, holder="string"),
        _entry(get_account, account="string"),
        _entry(list_orders, account="string"),
        _entry(pay_order, order="string"),
        _entry(refund_order, order="string"),
        _entry(cancel_order, order="string"),
        _entry(transfer, source="string", target="string", amount="integer"),
    )
}
"""The API: name -> call."""
