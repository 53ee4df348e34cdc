"""The labelled pairs of mathematical answers, and math-verify's verdicts on them.

As a program it prints, as JSON, which pairs plain math-verify finds equal: `python tests/support/math_pairs.py`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

GOLDEN = Path(__file__).parents[1] / "unit" / "golden"
PAIRS = GOLDEN / "math_pairs.tsv"
VERIFIED = GOLDEN / "math_pairs_verified.json"
"""Verdicts of plain math-verify in the order of the pairs, and its version; `make sweep` compares them with its own."""


class Pair(NamedTuple):
    """A prediction and a gold answer, and whether they are the same answer."""

    kind: str
    equal: bool
    prediction: str
    gold: str


def labelled_pairs() -> list[Pair]:
    """Read the table; its lines contain raw LaTeX without escapes."""
    header, *lines = PAIRS.read_text(encoding="utf-8").splitlines()
    assert header.split("\t") == ["kind", "verdict", "prediction", "gold"]
    rows = [line.split("\t") for line in lines]
    return [Pair(kind, {"equal": True, "unequal": False}[verdict], left, right) for kind, verdict, left, right in rows]


def _verify() -> Callable[[Pair], bool]:
    from math_verify import parse, verify

    def found_equal(pair: Pair) -> bool:
        try:
            return bool(verify(parse(f"${pair.gold}$"), parse(f"${pair.prediction}$")))
        except Exception:  # noqa: BLE001 - what it cannot compare, it does not find equal
            return False

    return found_equal


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    verdicts = "".join("=" if equal else "x" for equal in map(_verify(), labelled_pairs()))
    json.dump({"version": version("math-verify"), "verdicts": verdicts}, sys.stdout)
