"""List the demos: the run of each, its sample world and its engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.demo.world import World

NUM_DOCUMENTS = 1_000
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Demo:
    """A demo.

    Attributes:
        run: Name of its run, and of the folder of its world with `-world`.
        tiers: Questions of the sample world; see `write_world`.
        num_questions: Questions to train on.
        num_heldout: Questions that measure.
        engines: Engines that it needs.
        environments: Environments that answer the questions, by name; empty for `[environment]`.
        tutor_only: Tables that differ without engines.
    """

    run: str
    config: Path
    tiers: tuple[int, ...]
    num_questions: int
    num_heldout: int
    engines: tuple[str, ...]
    environments: tuple[str, ...]
    tutor_only: Mapping[str, Any]

    def places(self, world: World, tokenizer: Path) -> dict[str, Any]:
        """Return the tables that name files."""
        search = {"search": {"corpus": [str(world.corpus)]}}
        file = {"path": str(world.questions), "split_field": "split"}
        by_name = [{**file, "dataset": name, "domain": "qa", "environment": name} for name in self.environments]
        tables: dict[str, Any] = {
            "questions": {"sources": by_name or [{**file, "source_field": "source"}]},
            "models": {"tutor": {"server": {"tokenizer": str(tokenizer)}}},
        }
        if by_name:
            return {**tables, "environments": dict.fromkeys(self.environments, search)}
        return {**tables, "environment": search}


DEMOS: Mapping[str, Demo] = {
    "flywheel": Demo(
        run="demo",
        config=_HERE / "demo.toml",
        # A model of 135 million weights learns questions that one call answers in minutes on two cores.
        tiers=(0,),
        num_questions=200,
        num_heldout=100,
        engines=("serve", "sft", "trl"),
        environments=(),
        tutor_only={
            "pools": {"max_questions": 60},
            "flow": {"stages": ["pools", "sft_rows", "rollouts", "scores", "report"], "models": ["tutor"]},
            "rollouts": {"sampling": {"max_tokens": 384}},  # bytes, with the tutor's own tokenizer
        },
    ),
    "gap": Demo(
        run="demo-gap",
        config=_HERE / "gap.toml",
        tiers=(2,),
        num_questions=240,
        num_heldout=40,
        engines=("serve", "sft"),
        environments=("sequential", "parallel"),
        tutor_only={
            "flow": {"stages": ["rollouts", "scores", "report"], "models": ["tutor"]},
            "rollouts": {"sampling": {"max_tokens": 1024}},
            "overrides": {"1/rollouts@tutor": {"split": "heldout"}},
        },
    ),
}
