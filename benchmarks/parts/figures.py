"""Represent benchmark results as figures with target bounds, and print them as a table or JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number. Ratios to a floor from the same run are preferred, since machines differ."""

    name: str
    value: float
    unit: str = ""
    """Unit of the value; empty for a ratio."""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def is_reached(self) -> bool:
        """True if the bounds hold, or there are none."""
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )

    def bound(self) -> str:
        """Return the bounds as text."""
        words = [f"at most {self.at_most:g}"] if self.at_most is not None else []
        words += [f"at least {self.at_least:g}"] if self.at_least is not None else []
        return ", ".join(words)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--json`, which every benchmark has."""
    parser.add_argument("--json", action="store_true", help="one line of JSON with all figures, for scripts")


def publish(figures: Sequence[Figure], as_json: bool) -> None:
    """Print the figures: one line of JSON, or a table."""
    print(json.dumps([asdict(figure) for figure in figures]) if as_json else table(figures))


def table(figures: Sequence[Figure]) -> str:
    """Format one line per figure: name, value with unit, bound, and whether it was reached."""
    rows = [
        (
            figure.name,
            f"{figure.value:,.4g}" if abs(figure.value) < 1000 else f"{figure.value:,.0f}",
            figure.unit or "x",
            figure.bound(),
            "" if not figure.bound() else "reached" if figure.is_reached else "MISSED",
        )
        for figure in figures
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(5)]
    return "\n".join(
        f"{row[0]:{widths[0]}}  {row[1]:>{widths[1]}} {row[2]:{widths[2]}}  {row[3]:{widths[3]}}  {row[4]}".rstrip()
        for row in rows
    )
