"""Define the type `service`."""

from __future__ import annotations

from typing import Any

from treadle.environments.custom.kind import CustomType
from treadle.environments.remote.environment import ServiceEnvironment
from treadle.environments.remote.settings import ServiceSettings
from treadle.environments.types import Traits


class ServiceType(CustomType):
    """Type of environments that a service holds."""

    def __init__(self) -> None:
        self.name = "service"
        self.settings = ServiceSettings
        self._environment = ServiceEnvironment

    def traits(self, settings: Any) -> Traits:
        """See `EnvironmentType`."""
        return Traits(resume=settings.resume, brings_tasks=True, explores=True)
