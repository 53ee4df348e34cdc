"""Make tools of functions and classes of users."""

from __future__ import annotations

from typing import Any

from treadle.agent.tools.settings import ToolSettings
from treadle.core.errors import ConfigError


def settings_of(found: Any) -> type[ToolSettings]:
    """Return the settings class of a function or class. Raises ConfigError if it is neither."""
    raise ConfigError(f"{found!r} is no tool")
