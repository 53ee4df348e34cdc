"""Define the families of programs: what is asked for, the two details that are hidden, and the code that they decide.

A request names the first detail without its value, and does not mention the second one. The first detail is a number,
the second one of three options, so the right program cannot be written from the request alone. An option is the name
of a function that the program calls. So the agent only needs to copy what the human reveals, which a small model learns
in minutes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

THINGS = (
    "apples", "bags", "beds", "bells", "bikes", "birds", "boats", "books", "bowls", "cakes", "cards", "cars", "cats",
    "chairs", "clocks", "coats", "coins", "cups", "desks", "dogs", "doors", "drums", "eggs", "fans", "farms", "flags",
    "forks", "games", "gates", "gloves", "goats", "hats", "horses", "jars", "keys", "kites", "lamps", "leaves",
    "maps", "masks",
)  # fmt: skip
"""Plural nouns that programs are about; every fifth of them is only used in the held-out split."""
NUMBERS = range(12, 90)
"""Values of the hidden number: all of two digits, and too many to be guessed."""


@dataclass(frozen=True, slots=True)
class Family:
    """Programs that differ in their thing and in the two hidden details.

    Attributes:
        name: Beginning of the names of its functions.
        parameter: Name of the only parameter.
        purpose: Description of the requested program, with the place `{things}`.
        number: Name of the hidden number.
        bodies: Option -> the expression that the function returns, with the place `{number}`.
    """

    name: str
    parameter: str
    purpose: str
    number: str
    bodies: Mapping[str, str]

    @property
    def options(self) -> tuple[str, ...]:
        """The three values of the other hidden detail."""
        return tuple(self.bodies)

    def signature(self, thing: str) -> str:
        """Return the first line of a function, without its colon."""
        return f"def {self.name}_{thing}({self.parameter})"

    def request(self, thing: str) -> str:
        """Return the human's first request, for a program about a thing."""
        return f"I need {self.signature(thing)}: {self.purpose.format(things=thing)}, with a {self.number}."

    def program(self, thing: str, number: int, option: str) -> str:
        """Return the source of the program with these details."""
        return f"{self.signature(thing)}:\n    return {self.bodies[option].format(number=number)}"


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family(
            name="score",
            parameter="xs",
            purpose="the score of my {things} xs",
            number="bonus",
            bodies={"max": "max(xs) + {number}", "min": "min(xs) + {number}", "sum": "sum(xs) + {number}"},
        ),
        Family(
            name="check",
            parameter="xs",
            purpose="a check of my {things} xs",
            number="limit",
            bodies={
                "any": "any(x > {number} for x in xs)",
                "all": "all(x > {number} for x in xs)",
                "sum": "sum(x > {number} for x in xs)",
            },
        ),
        Family(
            name="code",
            parameter="n",
            purpose="the code of n {things}",
            number="shift",
            bodies={"bin": "bin(n + {number})", "oct": "oct(n + {number})", "hex": "hex(n + {number})"},
        ),
        Family(
            name="column",
            parameter="s",
            purpose="the column s of my {things}",
            number="width",
            bodies={"center": "s.center({number})", "ljust": "s.ljust({number})", "rjust": "s.rjust({number})"},
        ),
        Family(
            name="label",
            parameter="s",
            purpose="the label s of my {things}",
            number="suffix",
            bodies={
                "upper": 's.upper() + "{number}"',
                "lower": 's.lower() + "{number}"',
                "title": 's.title() + "{number}"',
            },
        ),
    )
}
"""Families by name."""

_SIGNATURE = re.compile(rf"\bdef ({'|'.join(FAMILIES)})_([a-z]{{1,20}})\((?:xs|n|s)\)")
_PROGRAM = re.compile(_SIGNATURE.pattern + r":\n    return ([^\n]{1,60})")


@dataclass(frozen=True, slots=True)
class Details:
    """Everything that determines a program.

    Attributes:
        family: Family of the program.
        thing: What it is about.
        number: The hidden number.
        option: The other hidden detail.
    """

    family: Family
    thing: str
    number: int
    option: str

    @property
    def program(self) -> str:
        """Source of the program with these details."""
        return self.family.program(self.thing, self.number, self.option)


def read_request(text: str) -> tuple[Family, str] | None:
    """Return the family and the thing of the first signature in a text; None if there is no signature of this world."""
    match = _SIGNATURE.search(text)
    return None if match is None else (FAMILIES[match[1]], match[2])


def read_program(text: str) -> Details | None:
    """Return the details of the first program of this world in a text; None if it has none."""
    for match in _PROGRAM.finditer(text):
        family = FAMILIES[match[1]]
        for option, body in family.bodies.items():
            before, _, after = body.partition("{number}")
            found = re.fullmatch(rf"{re.escape(before)}(\d{{1,4}}){re.escape(after)}", match[3].rstrip())
            if found is not None:
                return Details(family, match[2], int(found[1]), option)
    return None
