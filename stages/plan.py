"""Define the view of a configuration from which stages derive their settings and inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from treadle.core.config import Section
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import Address
from treadle.environments.mixture import Environments
from treadle.environments.scorers.base import Scorer
from treadle.environments.settings import EnvironmentSettings

T_Section = TypeVar("T_Section", bound=Section)


@dataclass(frozen=True, slots=True)
class SampledModel:
    """Model that an instance samples from.

    Attributes:
        name: Name of the model under `models`.
        model: Settings of the model, with the weights that the instance samples from.
        checkpoints: Instance of this run whose checkpoint has these weights; empty for weights from outside the run.
    """

    name: str
    model: ModelSettings
    checkpoints: tuple[Address, ...] = ()


class Plan(Protocol):
    """Configuration in one iteration: names of checkpoints refer to those of the iteration."""

    @property
    def seed(self) -> int:
        """Seed of the run."""
        ...

    @property
    def models(self) -> Mapping[str, ModelSettings]:
        """Models by name."""
        ...

    def environments(self) -> Environments:
        """Return the environments that tasks of the configured sources belong to, by name.

        Raises ConfigError for a name that no table has.
        """
        ...

    def environment(self, name: str) -> EnvironmentSettings:
        """Return an environment by its name, even if no tasks belong to it; raise ConfigError for an unknown one."""
        ...

    def scorers(self) -> Mapping[str, Scorer]:
        """Return the scorers that sources and benchmarks of questions name, by name.

        Shipped scorers that read only the answer or the outcome of a rollout are left out. Raises ConfigError, which
        lists the known names, for an unknown name.
        """
        ...

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages that the flow runs in addition to `questions`."""
        ...

    @property
    def policy(self) -> str:
        """Name of the model that is trained."""
        ...

    def mixture(self) -> dict[str, Any]:
        """Return the fields of `MixedSettings`: `environments`, with the digests of their search corpora.

        Raises DataError for a missing file.
        """
        ...

    def section(self, name: str, kind: type[T_Section]) -> T_Section:
        """Return a table of the configuration; raise TypeError if it is no instance of the class `kind`."""
        ...

    def options(self, address: Address, kind: type[T_Section]) -> T_Section:
        """Return the table of an instance with its overrides; raise ConfigError for unknown keys in them."""
        ...

    def overridden(self, address: Address, table: T_Section) -> T_Section:
        """Return a table with the overrides of an instance; raise ConfigError for unknown keys in them."""
        ...

    def overrides(self, address: Address) -> Mapping[str, Any]:
        """Return the keys that are overridden for an instance."""
        ...

    def compared_models(self) -> tuple[str, ...]:
        """Return the models whose rollouts the flow collects; raise ConfigError if there is none."""
        ...

    def starting_policy(self, iteration: int) -> Address | None:
        """Return the checkpoint that an iteration starts from; None if it starts from no checkpoint of the run."""
        ...

    def sampled(self, address: Address) -> SampledModel:
        """Return the model that an instance with this qualifier samples from."""
        ...

    def check_checkpoint(self, made: Address, where: str) -> None:
        """Raise ConfigError if this configuration has no instance `made`; `where` is the key that names `made`."""
        ...
