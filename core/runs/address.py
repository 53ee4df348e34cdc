"""Address the instances of stages."""

from __future__ import annotations

import re
from dataclasses import dataclass

from treadle.core.errors import ConfigError

_ADDRESS = re.compile(
    r"(?P<iteration>[1-9]\d{0,3})/(?P<stage>[a-z][a-z_]*)(?:@(?P<qualifier>[A-Za-z0-9][A-Za-z0-9._-]*))?"
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
