"""Define the interface of engines for RL training, and find engines by name.

Documented in docs/behaviour/rl.md, part "Engine".
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import SerializeAsAny, WrapValidator
from typing_extensions import TypeAliasType

from treadle.core.engines.training_engine import TrainingEngine, require_engine
from treadle.core.registry import Registry


class RlEngine(TrainingEngine):
    """Settings of an engine that trains a policy with rewards, with the methods that train.

    `job` is the content of `job.json`; `job["plan"]` is a `treadle.rl.training.plan.RlPlan` as data.
    """

    module: ClassVar[str] = "treadle.rl.engine"
    section: ClassVar[str] = "rl"

    trains_several_samples: ClassVar[bool] = False
    """Whether a trajectory may consist of several token sequences, which share its advantage."""

    trains_on_hints: ClassVar[bool] = False
    """Whether rollouts may see hints that are cut from their training prompts, and have a separate clipping range."""

    @property
    def has_critic(self) -> bool:
        """True if rewards are compared with a critic's values, instead of with other rewards of the group."""
        return False

    @property
    def cancels_rollouts(self) -> bool:
        """True if the engine can cancel the rollouts that a group does not need (`rl.oversample`)."""
        return False

    def fewest_devices(self, options: Any) -> int:
        """Return the smallest number of devices per node on which `options`, an `RlOptions`, can be trained."""
        return 1

    def check_options(self, options: Any) -> None:
        """Raise ValueError for `options`, an `RlOptions`, that this engine refuses on every machine."""
        self.check_extra(options.extra, type(options).model_fields)

    def check_plan(self, plan: Any) -> None:
        """Raise ConfigError for an `RlPlan` that cannot be trained; called with a draft before anything is sampled."""


RL_ENGINES = Registry(
    base=RlEngine,
    key="rl.engine",
    group="treadle.rl_engines",
    example="my_engine.py:MyEngine",
    shipped={"trl": "treadle.rl.trl.engine:TrlEngine", "verl": "treadle.rl.verl.engine:VerlEngine"},
    settings_of=lambda found, place: require_engine(found, place, RlEngine),
)
"""Engines of `rl`."""

AnyRlEngine = TypeAliasType(
    "AnyRlEngine", Annotated[SerializeAsAny[RlEngine], WrapValidator(RL_ENGINES.validate), RL_ENGINES]
)
"""Settings of an engine of any type; a plain string is read as the key `type`."""
