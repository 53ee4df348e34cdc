"""Find the API keys that a configuration reads, and keep secrets out of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from treadle.core.llm.config import EndpointSettings, ModelSettings
from treadle.core.untrusted.secrets import is_secret_name, refuse_secrets
from treadle.tasks.config import TreadleConfig


def key_variables(config: TreadleConfig) -> set[str]:
    """Return the environment variables that the configuration reads API keys from, and passes to companions."""
    named = {variable for model in config.models.values() for variable in model.secret_variables}
    asked = [getattr(rule, "model", None) for rule in (config.rl.reward, config.rl.credit)]
    named |= {variable for model in asked if isinstance(model, ModelSettings) for variable in model.secret_variables}
    environments = (config.environment, *config.environments.values())
    searches = [search for one in environments if (search := one.search_tool) is not None]
    endpoints: list[EndpointSettings] = []
    for search in searches:
        endpoints += [*search.encoder.endpoints, *(search.service.endpoints if search.service else ())]
    named |= {endpoint.api_key_env for endpoint in endpoints if endpoint.api_key_env}
    for search in searches:
        if search.web is not None and search.web.provider is not None:
            named.update(search.web.provider.api_key_envs)
    companions = (entry for one in config.companions for entry in one.env if "=" not in entry)
    return named | {entry for entry in companions if is_secret_name(entry)}


def check_secrets(config: TreadleConfig, *data: Any) -> None:
    """Raise ConfigError if JSON-able data contains a secret from the environment."""
    refuse_secrets(_texts(list(data)), named=key_variables(config))


def _texts(tree: Any) -> Iterator[str]:
    """Yield all strings in JSON-able data, including keys."""
    if isinstance(tree, Mapping):
        tree = [*tree.keys(), *tree.values()]
    if isinstance(tree, list):
        for item in tree:
            yield from _texts(item)
    elif isinstance(tree, str):
        yield tree
