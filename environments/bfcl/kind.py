"""Define the type `bfcl`."""

from __future__ import annotations

from treadle.environments.bfcl.environment import Bfcl
from treadle.environments.bfcl.settings import BfclSettings
from treadle.environments.custom.kind import CustomType


class BfclType(CustomType):
    """Type of environments in which tasks of `bfcl-eval` are played."""

    def __init__(self) -> None:
        self.name = "bfcl"
        self.settings = BfclSettings
        self._environment = Bfcl
