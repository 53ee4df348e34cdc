"""Define the environments of a run: the default one and others by name; each task belongs to one of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treadle.agent.contract import DEFAULT_ENVIRONMENT
from treadle.core.config import Section
from treadle.core.errors import ConfigError, DataError
from treadle.core.llm.config import Sampling
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.registry import AnyEnvironment
from treadle.environments.settings import Digests, EnvironmentRole, EnvironmentSettings

Environments = Mapping[str, EnvironmentSettings]
"""Environments by name; `default` is the table `[environment]`."""

METRIC_PREFIX = "environment."
"""Prefix of the metrics of a record that are about one environment of a mixture."""


class MixedSettings(Section):
    """Base of the settings of stages that work on the tasks of several environments."""

    environment: AnyEnvironment = QuestionSettings()
    """Prompt, tools and limits of the agent, in data generation, training and evaluation; environment of the tasks
    whose source names no other."""
    environments: dict[str, AnyEnvironment] = {}
    """Further environments, by the name that `environment` of a source of questions refers to: docs/guides/mixtures.md.
    """

    def named_environments(self) -> dict[str, EnvironmentSettings]:
        """Return all environments by name, the default one first."""
        return {DEFAULT_ENVIRONMENT: self.environment, **self.environments}

    def environment_of(self, question: Mapping[str, Any]) -> EnvironmentSettings:
        """Return the environment of a row of `questions`; raise DataError if this run does not have it."""
        return find_environment(self.named_environments(), question.get("environment", DEFAULT_ENVIRONMENT))

    def environment_digests(self) -> MixtureDigests:
        """Return the digests of all environments."""
        return MixtureDigests({name: one.digests() for name, one in self.named_environments().items()})

    @property
    def is_mixture(self) -> bool:
        """Whether there are other environments than the default one."""
        return bool(self.environments)

    def named_metrics(self, metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return metrics of environments for a record: those of a mixture as `environment.<name>.<metric>`."""
        if not self.is_mixture:
            return {key: value for one in metrics.values() for key, value in one.items()}
        return {f"{METRIC_PREFIX}{name}.{key}": value for name, one in metrics.items() for key, value in one.items()}


def find_environment(environments: Environments, name: str) -> EnvironmentSettings:
    """Return an environment by its name; raise DataError if this run does not have it."""
    if name not in environments:
        raise DataError(unknown_environment(name, environments))
    return environments[name]


def unknown_environment(name: str, known: Mapping[str, object]) -> str:
    """Return the message for tasks of an environment that a run does not have."""
    return (
        f"tasks belong to the environment {name[:60]!r}, which this run does not have; there are "
        f"{', '.join(sorted(known))}; add [environments.{name[:60]}], or make the questions again"
    )


def environments_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environments by name in the settings of a record or a run, as stored."""
    return {DEFAULT_ENVIRONMENT: settings.get("environment"), **(settings.get("environments") or {})}


def summarizer_of(environments: Environments) -> str | None:
    """Return the name of the model that summarizes search results; None without one.

    Raises ConfigError if two environments name different ones.
    """
    found = {name: one.summarizer for name, one in environments.items() if one.summarizer is not None}
    _check_equal("search.summarizer", found)
    return next(iter(found.values()), None)


def summarizer_sampling_of(environments: Environments) -> Sampling | None:
    """Return the sampling parameters of summaries; None without a summarizer.

    Raises ConfigError if two environments name different ones.
    """
    found = {name: one.summarizer_sampling for name, one in environments.items() if one.summarizer is not None}
    _check_equal("search.summarizer_sampling", found)
    return next(iter(found.values()), None)


def role_models_of(environments: Environments) -> dict[str, EnvironmentRole]:
    """Return the model and sampling of each role that episodes ask.

    Raises ConfigError if two environments give the same role different models or sampling parameters.
    """
    roles: dict[str, EnvironmentRole] = {}
    for role in {role: None for one in environments.values() for role in one.role_models}:
        found = {name: one.role_models[role] for name, one in environments.items() if role in one.role_models}
        _check_equal(f"roles.{role}", found)
        roles[role] = next(iter(found.values()))
    return roles


def _check_equal(key: str, values: Mapping[str, object]) -> None:
    for first, name in itertools.pairwise(values):
        if values[first] != values[name]:
            raise ConfigError(
                f"{key} differs between {table_of(first)} and {table_of(name)}; the environments of a run share it"
            )


def table_of(name: str) -> str:
    """Return the key of an environment's table in the configuration, such as `environments.<name>`."""
    return "environment" if name == DEFAULT_ENVIRONMENT else f"environments.{name}"


@dataclass(frozen=True, slots=True)
class MixtureDigests:
    """Digests of the environments of a run, by name."""

    by_name: Mapping[str, Digests]

    def of(self, question: Mapping[str, Any]) -> str:
        """Return the digest for a row of `questions`; raise DataError for an environment that is not among them."""
        name = question.get("environment", DEFAULT_ENVIRONMENT)
        if name not in self.by_name:
            raise DataError(unknown_environment(name, self.by_name))
        return self.by_name[name].of(question)

    def __contains__(self, digest: object) -> bool:
        return any(digest in digests for digests in self.by_name.values())

    def __str__(self) -> str:
        return ", ".join(digests.plain[:12] for digests in self.by_name.values())
