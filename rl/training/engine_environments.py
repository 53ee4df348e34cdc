"""Prepare the environments of a training for an engine's process, which runs elsewhere and sends no web requests.

Documented in docs/behaviour/rl.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.agent.tools.search_config import SearchToolSettings
from treadle.core.config import Section, is_operational
from treadle.core.errors import ConfigError
from treadle.core.store.keyed_store import KeyedStore
from treadle.core.store.roots import is_object_store
from treadle.environments.mixture import Environments, table_of
from treadle.environments.settings import EnvironmentSettings


@dataclass(frozen=True, slots=True)
class EngineEnvironments:
    """Environments for an engine's process, by name.

    Attributes:
        settings: Name of an environment -> its settings as JSON-able data.
        web_records: Name of an environment that searches the web -> digest of the web record that it replays.
    """

    settings: Mapping[str, Mapping[str, Any]]
    web_records: Mapping[str, str]


def engine_environments(
    environments: Environments, store: Callable[[str], KeyedStore], folder: Path
) -> EngineEnvironments:
    """Return the environments as an engine opens them; records of the web are written to `folder`.

    Raises ConfigError as `local_environment` does, and TreadleError if stored entries of the web cannot be read.
    """
    from treadle.rl.groups.web_snapshot import replayed

    settings, records = {}, {}
    for name, environment in environments.items():
        replaying, record = replayed(environment, store, folder / name)
        settings[name] = local_environment(replaying, table_of(name))
        if record:
            records[name] = record
    return EngineEnvironments(settings, records)


def check_environments(environments: Environments) -> None:
    """Raise ConfigError for settings that are not supported in training."""
    for name, environment in environments.items():
        local_environment(environment, table_of(name))


def local_environment(settings: EnvironmentSettings, table: str = "environment") -> dict[str, Any]:
    """Return the environment's settings for an engine's process; `table` is its key, for messages.

    Paths are absolute, because the process runs in another folder. Raises ConfigError for settings that are not
    supported in training.
    """
    if settings.summarizer is not None:
        raise ConfigError(
            f"{table}.{settings.summarizer_key}: rl does not support it, because the policy reads documents itself; "
            "leave it out"
        )
    search = settings.search_tool
    if search is not None:
        if search.prepared is not None and not search.prepared.is_absolute():
            raise ConfigError(f"{table}.search.prepared: rl needs an absolute path: {search.prepared.absolute()}")
        _check_route(search, table)
    dumped: dict[str, Any] = _absolute(settings).model_dump(mode="json")
    return dumped


def _check_route(search: SearchToolSettings, table: str) -> None:
    """Raise ConfigError if the search route is chosen per question, because training rows do not have the route."""
    if search.web is not None and search.uses_web and search.route == "auto" and search.has_local:
        raise ConfigError(
            f'{table}.search.route = "auto": rl searches for all questions in one place; set local, web or both'
        )


def _absolute(section: Any) -> Any:
    """Return a section of settings with absolute paths in its operational keys, which its digest leaves out.

    Paths in other keys are unchanged, because changes of these keys would change the digest.
    """
    changed: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            changed[name] = _absolute(value)
        elif is_operational(field) and isinstance(value, Path):
            changed[name] = _absolute_path(value)
        elif is_operational(field) and isinstance(value, tuple):
            changed[name] = tuple(_absolute_path(one) if isinstance(one, Path) else one for one in value)
    return section.model_copy(update=changed)


def _absolute_path(path: Path) -> Path:
    """Return an absolute path, or the path itself if it is an object store's URL."""
    return path if is_object_store(path) else path.expanduser().absolute()
