"""Define the recipes of SWEET-RL (arXiv 2503.15478) and of its baselines."""

from __future__ import annotations

from typing import ClassVar

from treadle.stages.recipes.base import Recipe, Step

_START = (
    Step(("questions",)),
    Step(("sft_rows", "sft")),
    Step(("rollouts", "scores"), each="row_policy"),
)
_MEASURED = (
    Step(("rollouts", "scores"), each="model"),
    Step(("report",)),
)
_SWEET = (
    Step(("preferences",), qualifier="trajectory"),
    Step(("dpo",), qualifier="critic"),
    Step(("guided_rollouts",)),
    Step(("candidates", "advantages")),
    Step(("preferences",), qualifier="turn"),
    Step(("dpo",), qualifier="policy"),
)
_DIALOGUES = (
    Step(("preferences",), qualifier="dialogue"),
    Step(("dpo",), qualifier="dialogue", reads={"dpo.preferences": ("preferences@dialogue",)}),
)
_REJECTION = (
    Step(("sft_rows",), qualifier="rft"),
    Step(("sft",), qualifier="rft", reads={"sft.sft_rows": ("sft_rows@rft",)}),
)


class Sweet(Recipe):
    """Train a critic on pairs of rollouts, and the policy on pairs of turns that the critic ranks.

    The critic sees hidden information. `sft` is an optional start from texts or pools; the policy that is rolled out
    may be its checkpoint.
    """

    steps: ClassVar[tuple[Step, ...]] = (*_START, *_SWEET, *_MEASURED)


class MultiTurnDpo(Recipe):
    """Train the policy on pairs of whole rollouts."""

    steps: ClassVar[tuple[Step, ...]] = (*_START, *_DIALOGUES, *_MEASURED)


class SweetBaselines(Recipe):
    """Run SWEET-RL and, on the same rollouts, its baselines: multi-turn DPO, and fine-tuning on right rollouts."""

    steps: ClassVar[tuple[Step, ...]] = (*_START, *_REJECTION, *_DIALOGUES, *_SWEET, *_MEASURED)
