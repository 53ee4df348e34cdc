"""Train with verl, on the GPUs of one or more machines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from treadle.core.engines.events import EventFile
from treadle.rl.config import RlOptions
from treadle.rl.training.plan import RlPlan
from treadle.rl.training_engine import RlEngine
from treadle.rl.verl.config import VerlFiles, verl_overrides

_PLACEHOLDER_FOLDER = Path("/training")


class VerlEngine(RlEngine):
    """verl: the policy is sharded over the GPUs of all nodes, and vLLM samples on them."""

    environment: ClassVar[str] = "verl"

    critic: bool = False
    """Whether to train a critic and take its generalised advantages (PPO, with gamma and lambda 1), instead of
    comparing rewards within a group."""
    critic_learning_rate: float = Field(default=1e-5, gt=0.0)
    """Learning rate of the critic."""
    critic_warmup_ratio: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of all steps in which the critic's learning rate rises from 0."""

    @property
    def has_critic(self) -> bool:
        """See `RlEngine`."""
        return self.critic

    def fewest_devices(self, options: RlOptions) -> int:
        """Return the number of GPUs over which vLLM shards the policy."""
        return options.tensor_parallel

    def check_options(self, options: RlOptions) -> None:
        """Raise ValueError for keys that are not passed through, and for `devices` on several nodes."""
        super().check_options(options)
        if options.num_nodes > 1 and options.devices:
            raise ValueError(
                "`devices` has no effect with num_nodes above 1, because Ray assigns the GPUs; leave it out"
            )

    def check_plan(self, plan: RlPlan) -> None:
        """Generate verl's configuration; raise ConfigError for what it does not support."""
        names = ("job", "rows", "validation", "model", "output", "loop", "metrics")
        verl_overrides(plan, VerlFiles(**{name: _PLACEHOLDER_FOLDER / name for name in names}))

    def check(self, job: Mapping[str, Any], events: EventFile) -> None:
        """See `RlEngine`."""
        from treadle.rl.engine.verl import commands

        commands.check(dict(job), events)

    def train(self, job: dict[str, Any], events: EventFile) -> None:
        """See `RlEngine`."""
        from treadle.rl.engine.verl import commands

        commands.train(job, events)

    def finish(self, job: Mapping[str, Any], events: EventFile) -> None:
        """See `RlEngine`."""
        from treadle.rl.engine.verl import commands

        commands.finish(dict(job), events)
