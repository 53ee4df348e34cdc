"""Address the instances of stages."""

from __future__ import annotations

import re
from dataclasses import dataclass

from treadle.core.errors import ConfigError

_PHASE = re.compile(r"phase-([1-9]\d{0,3})")
_STAGE = r"[a-z][a-z_]*"
_ADDRESS = re.compile(
    rf"(?P<iteration>[1-9]\d{{0,3}})/(?P<stage>{_STAGE})(?:@(?P<qualifier>[A-Za-z0-9][A-Za-z0-9._-]*))?"
)


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """The address `<iteration>/<stage>[@<phase or model>]` of a stage instance, such as `1/rollouts@base`."""

    iteration: int
    stage: str
    qualifier: str | None = None

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address; raise ConfigError if it is not valid."""
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"{text!r} is not a stage instance; write <iteration>/<stage>[@<model>], as in 1/rollouts@base"
            )
        return cls(int(match["iteration"]), match["stage"], match["qualifier"])

    def __str__(self) -> str:
        return f"{self.iteration}/{self.stage}" + (f"@{self.qualifier}" if self.qualifier else "")


def is_stage_name(name: str) -> bool:
    """Return whether a stage may have a name: addresses have no other."""
    return re.fullmatch(_STAGE, name) is not None


def phase_name(phase: int) -> str:
    """Return the name of a phase in addresses and rows, such as `phase-2`."""
    return f"phase-{phase}"


def phase_of(name: str | None) -> int | None:
    """Return the number of the phase with this name; None if it is not a phase's name."""
    match = _PHASE.fullmatch(name or "")
    return int(match[1]) if match else None
