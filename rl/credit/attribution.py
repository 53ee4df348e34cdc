"""Give each turn the advantage that a model's labels and the outcome of its trajectory imply (arXiv 2511.10395).

Documented in docs/behaviour/rewards.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from treadle.core.config import Operational
from treadle.core.errors import ConfigError
from treadle.core.llm.config import ModelSettings
from treadle.core.llm.types import EndpointState
from treadle.rl.credit.attributor import AskingLimits, Attributor, LabelCase
from treadle.rl.credit.base import Advantage, Credit, CreditGroup, CreditRule
from treadle.rl.credit.fusion import FusedSteps, FusionSettings, OutcomeOn, Scheme, Weighting, decayed, fuse
from treadle.rl.credit.outcome import scored_advantages
from treadle.rl.rewards.model_asker import ModelAsker
from treadle.rl.rewards.verdict_store import VerdictStore

NO_ADVANTAGE = 1e-8
"""An advantage whose absolute value is below this counts as 0."""


class AttributionCredit(CreditRule):
    """Advantages of turns from the labels of a model (good, bad) and the outcome of the trajectory.

    Means and deviations are those of the group: all rollouts of one task.
    """

    PARTS: ClassVar[Mapping[str, str]] = {
        "labels_read": "1 if the model's labels of the turns could be read, else 0; none if it was not asked",
        "good_in_successes": "share of good turns, in a labelled rollout whose reward is above 0",
        "good_in_failures": "share of good turns, in any other labelled rollout",
        "outcome_share": "share of the outcome in the sizes of all that was added to the turns",
        "sign_agreement": "1 if the first advantage is above 0 just if the reward is above 0.5, else 0",
        "credited_turns": "number of turns of a rollout that got advantages of their own",
    }

    type: str = "attribution"
    """Type of the rule."""
    model: ModelSettings | None = None
    """The model that labels, with its endpoints, as in `[models.<name>]`; a chat service that is reachable from the
    engine's process. Its keys decide how failed requests are retried."""
    scheme: Scheme = "decouple"
    """How labels become values: `decouple` gives +`fix_base` or -`fix_base`; `allocation` shares +1 of a success or -1
    of a failure among the turns."""
    outcome_on: OutcomeOn = "last_step"
    """Turns to which the outcome (the reward, standardised within the group) is added: the `last_step`, `all_steps`,
    or none (`only_prm`)."""
    alpha: float = Field(default=0.1, ge=0.0)
    """Weight of the labels' values next to the outcome; not used with `only_prm`."""
    alpha_decay: Literal["none", "cosine"] = "none"
    """Whether `alpha` falls to `alpha_min` over `total_steps` as half a cosine wave."""
    alpha_min: float = Field(default=0.0, ge=0.0)
    """Value to which `alpha` falls."""
    total_steps: int | None = Field(default=None, ge=1)
    """Steps until `alpha` is smallest; None means those of the phase."""
    fix_base: float = Field(default=0.2, gt=0.0)
    """Absolute value of a turn's value in `decouple`."""
    consistent: float = Field(default=1.0, ge=0.0)
    """Weight in `allocation` of turns whose labels agree with the outcome: good ones of a success, bad ones of a
    failure."""
    inconsistent: float = Field(default=0.2, ge=0.0)
    """Weight in `allocation` of turns whose labels disagree with the outcome."""
    weighting: Weighting = "trajectories"
    """Units with equal weights when values are normalised within the group: `trajectories`, or all their `steps`.
    `none` does not normalise."""
    by_length: bool = False
    """Whether the terms whose sums are advantages are divided by the square root of K, for a trajectory of K turns;
    `decouple` only."""
    prm_steps: int | None = Field(default=100, ge=1)
    """Step from which on nothing is labelled and the advantages are those of `outcome`; None labels in all steps."""
    skip: Literal["none", "no_advantage", "failures"] = "none"
    """Rollouts that are not labelled: those whose advantage by outcome is 0, or those without a reward above 0. All
    their turns count as good if the reward is above 0, else as bad."""
    attempts: int = Field(default=4, ge=1)
    """Most requests per rollout. If no reply can be read, or two requests are refused, its turns count as those of a
    skipped rollout."""
    pause_s: float = Field(default=2.0, ge=0.0)
    """Seconds before the second request; each further pause is half as long again, at most 60 seconds."""
    max_tokens: int = Field(default=8192, ge=16)
    """Most new tokens of a reply."""
    request_time_s: float = Field(default=120.0, gt=0.0)
    """Time limit of one request in seconds, without waiting for the server."""
    least_readable: float = Field(default=0.5, ge=0.0, le=1.0)
    """Smallest share of labelled rollouts whose replies can be read. Training ends if the share is lower after at least
    32 rollouts."""
    concurrency: Operational[int] = Field(default=20, ge=1)
    """Most requests at the same time."""
    _attributor: Attributor | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _check_scheme(self) -> Self:
        if self.by_length and self.scheme == "allocation":
            raise ValueError('by_length divides values of fixed size; with scheme = "allocation" leave it out')
        if self.alpha_decay == "cosine" and self.alpha_min > self.alpha:
            raise ValueError(f"alpha_min {self.alpha_min:g} is more than alpha {self.alpha:g}, from which it falls")
        return self

    def check(self, where: str) -> None:
        """Raise ConfigError if no model is set, or if it has no endpoints."""
        if self.model is None or not self.model.endpoints:
            raise ConfigError(
                f"{where}: rl.credit has no model that labels; set it, such as rl.credit.model = "
                '{ model = "attributor", endpoints = [{ url = "http://localhost:8000/v1" }] }'
            )

    @contextlib.contextmanager
    def open(self, folder: Path | None = None) -> Iterator[None]:
        """See `CreditRule`; requests are sent from a separate thread, and labels are stored in `folder`."""
        assert self.model is not None, "check refuses it"
        limits = AskingLimits(
            attempts=self.attempts,
            pause_s=self.pause_s,
            max_pause_s=60.0,
            request_time_s=self.request_time_s,
            max_tokens=self.max_tokens,
            concurrency=self.concurrency,
            least_readable=self.least_readable,
        )
        name = f"{self.model.model}@{self.model.revision}" if self.model.revision else self.model.model
        with ModelAsker[str]("rl.credit", self.model, VerdictStore(folder)) as asker:
            self._attributor = Attributor(asker, name, limits)
            try:
                yield
            finally:
                self._attributor = None

    def servers(self) -> Sequence[tuple[str, EndpointState]]:
        """See `CreditRule`."""
        return self._attributor.servers() if self._attributor is not None else ()

    def advantages(self, group: CreditGroup) -> Sequence[Advantage | Credit]:
        """See `CreditRule`. Raises EndpointUnavailable if the model cannot be reached."""
        if self.prm_steps is not None and group.step >= self.prm_steps:
            return scored_advantages(group.rewards)
        places = [place for place, reward in enumerate(group.rewards) if reward.scored]
        made: list[Advantage | Credit] = [0.0] * len(group.items)
        if not places:
            return made
        labels = self._labels(group, places)
        rewards = [group.rewards[place].reward for place in places]
        numbers = [group.items[place].num_turns for place in places]
        flags = [
            labels.get(place) or [reward > 0.0] * number
            for place, reward, number in zip(places, rewards, numbers, strict=True)
        ]
        fused = fuse(flags, numbers, rewards, self._fusion(group))
        for place, reward, one in zip(places, rewards, fused, strict=True):
            made[place] = Credit(one.advantages, {**_label_parts(labels, place, reward), **_fusion_parts(one)})
        return made

    def _labels(self, group: CreditGroup, places: Sequence[int]) -> dict[int, list[bool] | None]:
        """Return index -> labels for the rollouts that are not skipped; labels are None if no reply could be read."""
        assert self._attributor is not None, "rules are used inside `open`"
        advantages = scored_advantages(group.rewards)
        asked = [
            place
            for place in places
            if group.items[place].num_turns
            and not (self.skip == "no_advantage" and abs(advantages[place]) < NO_ADVANTAGE)
            and not (self.skip == "failures" and group.rewards[place].reward <= 0.0)
        ]
        cases = [LabelCase(group.task.user_message, group.turns[place], group.rewards[place].reward) for place in asked]
        return dict(zip(asked, self._attributor.labels(cases), strict=True))

    def _fusion(self, group: CreditGroup) -> FusionSettings:
        alpha = self.alpha
        if self.alpha_decay == "cosine":
            alpha = decayed(alpha, self.alpha_min, group.step, self.total_steps or group.num_steps)
        return FusionSettings(
            scheme=self.scheme,
            outcome_on=self.outcome_on,
            alpha=alpha,
            fix_base=self.fix_base,
            consistent=self.consistent,
            inconsistent=self.inconsistent,
            weighting=self.weighting,
            by_length=self.by_length,
        )


def _label_parts(labels: Mapping[int, list[bool] | None], place: int, reward: float) -> dict[str, float]:
    """Return the parts of a rollout's credit that describe its labels; empty if no labels were requested for it."""
    if place not in labels:
        return {}
    if (known := labels[place]) is None:
        return {"labels_read": 0.0}
    name = "good_in_successes" if reward > 0.0 else "good_in_failures"
    return {"labels_read": 1.0, name: sum(known) / len(known)}


def _fusion_parts(fused: FusedSteps) -> dict[str, float]:
    share = {} if fused.outcome_share is None else {"outcome_share": fused.outcome_share}
    return {**share, "sign_agreement": float(fused.agrees), "credited_turns": float(len(fused.advantages))}
