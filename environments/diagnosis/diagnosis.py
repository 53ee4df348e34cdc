"""Describe a problem of a group of rollouts for people and programs, from one object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from treadle.core.untrusted.sanitize import one_line

SHOWN_CHARS = 200
"""Maximum number of characters of a text in an example."""


@dataclass(frozen=True, slots=True)
class Example:
    """A rollout with the problem. Texts are cut, on one line, and without control characters."""

    rollout_key: str
    question: str
    status: str
    text: str
    """End of what the model wrote, or its answer."""
    gold: str = ""
    """Gold answers; empty if they do not matter."""

    def sentence(self) -> str:
        """Return the example as one line of text."""
        gold = f' (gold: "{self.gold}")' if self.gold else ""
        wrote = f'"{self.text}"' if self.text else "nothing"
        return f'{self.rollout_key}: "{self.question}" {self.status}: {wrote}{gold}'


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A problem of a group of rollouts: all those of a model, or those on one data set."""

    address: str
    """Address of the stage instance with the problem: `rollouts`, or their `scores`."""
    rollouts: str
    """Address of the stage instance that made the rollouts."""
    model: str
    dataset: str
    """Data set; empty for all of them."""
    problem: str
    """Name of the problem."""
    summary: str
    """The problem with its numbers, as a sentence."""
    endings: Mapping[str, int]
    """Status -> number of rollouts."""
    asked: str
    """What the model was asked for: the form of answers and calls."""
    causes: tuple[str, ...]
    """Sentences with likely causes and what to do."""
    examples: tuple[Example, ...]

    @property
    def headline(self) -> str:
        """The problem and how the rollouts ended, as a sentence without control characters."""
        place = f"{self.dataset}: " if self.dataset else ""
        text = f"{place}{self.summary} ({endings_text(self.endings)})."
        return one_line(text if place else text[0].upper() + text[1:])

    def sentences(self) -> list[str]:
        """Return the diagnosis as sentences, one per line."""
        return [
            self.headline,
            *self.causes,
            *([f"Asked for: {self.asked}"] if self.asked else []),
            *(f"Example {example.sentence()}" for example in self.examples),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnosis as a JSON-compatible dict."""
        return {**asdict(self), "endings": dict(self.endings)}


def endings_text(endings: Mapping[str, int]) -> str:
    """Return status -> number of rollouts as text."""
    return ", ".join(f"{name} {count:,}" for name, count in endings.items())


def cut_end(text: str) -> str:
    """Return the end of a text for an example."""
    text = one_line(" ".join(text.split()))
    return text if len(text) <= SHOWN_CHARS else "…" + text[1 - SHOWN_CHARS :]


def cut_start(text: str) -> str:
    """Return the beginning of a text for an example."""
    text = one_line(" ".join(text.split()))
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"
