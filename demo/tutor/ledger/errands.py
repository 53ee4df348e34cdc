"""Find the ledger tasks that a text asks for: their kinds, and the holders of their accounts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from treadle.environments.ledger.assignment import TEXTS, Kind

_HOLDER = "[A-Z][a-z]{1,20}"


@dataclass(frozen=True, slots=True)
class Errand:
    """A task of the ledger.

    Attributes:
        kind: Kind of task.
        owner: Holder of the orders that it is about.
        giver: Holder who transfers the amount to the owner's account first; empty if no transfer is asked for.
    """

    kind: Kind
    owner: str
    giver: str = ""

    @property
    def text(self) -> str:
        """Text of the request to the agent."""
        return TEXTS[self.kind].format(owner=self.owner, giver=self.giver)

    @property
    def holders(self) -> tuple[str, ...]:
        """Holders of all accounts that the task needs."""
        return (self.giver, self.owner) if self.giver else (self.owner,)


def _pattern(text: str) -> re.Pattern[str]:
    seen: set[str] = set()
    out = []
    for place, part in enumerate(re.split(r"\{(\w+)\}", text)):
        if place % 2 == 0:
            out.append(r"\s+".join(map(re.escape, part.split(" "))))
        else:
            out.append(f"(?P={part})" if part in seen else f"(?P<{part}>{_HOLDER})")
            seen.add(part)
    return re.compile("".join(out))


_PATTERNS: dict[Kind, re.Pattern[str]] = {kind: _pattern(text) for kind, text in TEXTS.items()}


def read_errands(text: str) -> list[Errand]:
    """Return the tasks that a text asks for, in the order of the text."""
    found = [(match.start(), Errand(kind, **match.groupdict())) for kind, match in _matches(text)]
    return [errand for _, errand in sorted(found, key=lambda one: one[0])]


def _matches(text: str) -> list[tuple[Kind, re.Match[str]]]:
    return [(kind, match) for kind, pattern in _PATTERNS.items() for match in pattern.finditer(text)]
