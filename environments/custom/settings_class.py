"""Make the settings section of an environment class from its annotated attributes."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Self

from pydantic import create_model, model_validator

from treadle.agent.dialects.base import Dialect
from treadle.agent.dialects.free import FreeDialect
from treadle.core.class_settings import attribute_fields
from treadle.environments.custom.base import Environment
from treadle.environments.settings import EnvironmentSettings


def settings_class(environment: type[Environment]) -> type[EnvironmentSettings]:
    """Return a section with a key for each annotated attribute. Raises ConfigError for one without a default."""
    fields = attribute_fields(environment, EnvironmentSettings.model_fields)
    made: type[EnvironmentSettings] = create_model(
        f"{environment.__name__}Settings", __base__=_CustomSettings, __doc__=inspect.getdoc(environment), **fields
    )
    made.environment = environment
    return made


class _CustomSettings(EnvironmentSettings):
    """Settings of an environment class."""

    environment: ClassVar[type[Environment]]

    @model_validator(mode="after")
    def _check_calls_can_be_read(self) -> Self:
        if self.tools and isinstance(self.environment.dialect, FreeDialect):
            raise ValueError(
                f"{self.environment.__name__} reads no calls, so its tools would never run: set dialect = "
                "FunctionsDialect() in the class, or remove environment.tools"
            )
        return self

    @property
    def turn_dialect(self) -> Dialect:
        """See `EnvironmentSettings`."""
        return self.environment.dialect

    @property
    def role_names(self) -> tuple[str, ...]:
        """See `EnvironmentSettings`."""
        return self.environment.roles

    @property
    def version(self) -> int:
        """See `EnvironmentSettings`."""
        return self.environment.version

    def digest_parts(self, form: str | None) -> dict[str, Any]:
        """See `EnvironmentSettings`."""
        return {"system": self.environment.system}
