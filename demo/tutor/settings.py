"""Define the tutor's settings."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from treadle.core.errors import ConfigError
from treadle.demo.tutor.policy import STRONG, ErrorRates

Persona = Literal["strong", "noisy"]
FaultKind = Literal["500", "429", "reset", "hang", "malformed"]
FAULT_KINDS: tuple[FaultKind, ...] = typing.get_args(FaultKind)

MODEL = "treadle-tutor"
"""Served model name. The suffixes `-strong` and `-noisy` select the persona, `-judge` … the role."""

_ROLES = (
    "strong", "noisy", "planner", "sequential", "judge", "gullible-judge", "critic", "refiner", "summarizer", "asker",
    "guesser", "human", "clerk", "explorer", "task-writer", "grader", "attributor", "lesson-writer", "lesson-checker",
    "page-writer", "page-guesser", "page-human",
)  # fmt: skip
MODELS = (MODEL, *(f"{MODEL}-{name}" for name in _ROLES))

DESCRIPTION = "rule-based stand-in for the sample world, not a language model"


@dataclass(frozen=True, slots=True)
class TutorSettings:
    """Settings of one tutor server.

    Attributes:
        persona: Behaviour of the plain model name: strong (right and lean) or noisy (error patterns at `rates`).
        rates: Error rates of the noisy policy.
        tokenizer: Folder of the tokenizer for prompt and completion ids; None for the byte tokenizer.
        max_model_len: Context length in tokens.
        latency_s: Fixed part of every answer's delay.
        jitter_s: Upper end of the seeded part of the delay.
        rate_limit_per_s: Requests per second above which the server answers 429; 0 for no limit.
        faults: Share of requests that get a fault, by kind.
        fault_seed: Selects which requests get a fault.
        request_log: JSON Lines file with one line per arriving request and one per answer.
    """

    persona: Persona = "strong"
    rates: ErrorRates = field(default_factory=ErrorRates)
    tokenizer: Path | None = None
    max_model_len: int = 32768
    latency_s: float = 0.0
    jitter_s: float = 0.0
    rate_limit_per_s: float = 0.0
    faults: Mapping[FaultKind, float] = field(default_factory=dict)
    fault_seed: int = 0
    request_log: Path | None = None

    def rates_for(self, model: str) -> ErrorRates:
        """Return the error rates of a served model name."""
        persona = model.removeprefix(f"{MODEL}-") if model in (f"{MODEL}-strong", f"{MODEL}-noisy") else self.persona
        return self.rates if persona == "noisy" else STRONG


def parse_rates(text: str) -> ErrorRates:
    """Parse `redundant=0.3,early=0.1` on top of the default rates; raise ConfigError."""
    given = _parse_shares(text, tuple(item.name for item in fields(ErrorRates)), "--rates")
    return replace(ErrorRates(), **given)


def parse_faults(text: str) -> dict[FaultKind, float]:
    """Parse `500=0.02,429=0.02,reset=0.01,hang=0.001,malformed=0.01`; raise ConfigError."""
    given = _parse_shares(text, FAULT_KINDS, "--faults")
    if sum(given.values()) > 1:
        raise ConfigError(f"--faults {text!r}: the shares add up to more than 1")
    return {kind: given[kind] for kind in FAULT_KINDS if kind in given}


def _parse_shares(text: str, known: tuple[str, ...], flag: str) -> dict[str, float]:
    shares: dict[str, float] = {}
    for part in filter(None, (item.strip() for item in text.split(","))):
        key, _, value = part.partition("=")
        try:
            share = float(value)
        except ValueError:
            share = -1.0
        if key not in known or not 0 <= share <= 1:
            raise ConfigError(
                f"{flag} {part!r}: write name=share with a share of 0 to 1 and a name of {', '.join(known)}"
            )
        shares[key] = share
    return shares
