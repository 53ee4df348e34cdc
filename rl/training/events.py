"""Read the events of an RL training: steps, validations and saved states. Documented in docs/behaviour/rl.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from treadle.core.engines.event_log import EventLog
from treadle.core.engines.training import Greedy
from treadle.core.tables import part_items

ALL = "all"
"""Name for all environments, or all domains, in rows of `rl_validation`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFigures:
    """Figures of the rollouts of one environment in a step; a mean is None if no rollout has a reward, or a score."""

    num_rollouts: int
    """Number of scored rollouts."""
    reward: float | None
    """Mean reward."""
    score: float | None
    """Mean score that the verdicts give the rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RlStep:
    """One step: rollouts of a batch of questions, and the updates made with them. A value is None if not reported."""

    step: int
    """Number of the step from 1, counting those of earlier attempts."""
    reward: float | None
    """Mean reward; None if no rollout was scored."""
    reward_std: float | None
    """Mean over groups of the standard deviation of rewards within each group."""
    score: float | None
    """Mean score that the verdicts give the rollouts."""
    answered: float | None
    """Share of rollouts that ended with an answer."""
    cut_off: float | None
    """Share of rollouts that ended because there was no room for more tokens."""
    timeout: float | None
    """Share of rollouts that ended because their calls had used up `rollout_time_s`."""
    calls: float | None
    """Mean number of executed calls."""
    tool_failures: float | None
    web_misses: float | None
    """Mean number of searches that the replayed web record could not answer."""
    length: float | None
    """Mean tokens per rollout that the policy wrote."""
    parts: Mapping[str, float] | None
    """Name -> mean of the parts of the rewards."""
    num_rollouts: int
    """Number of scored rollouts."""
    num_groups: int
    num_equal_groups: int
    """Number of groups with equal rewards, which have no gradient."""
    loss: float | None
    entropy: float | None
    learning_rate: float | None
    grad_norm: float | None
    seconds: float
    """Training time so far over all attempts, in seconds, excluding steps that were lost with an attempt."""
    environments: Mapping[str, EnvironmentFigures] | None = None
    """Name -> figures of each environment, if there is more than one."""
    num_draws: int | None = None
    """Number of draws of questions; None without dynamic sampling."""
    num_dropped_groups: int | None = None
    """Number of groups that dynamic sampling dropped for equal rewards; None without it."""
    num_surplus_groups: int | None = None
    """Number of groups with different rewards that dynamic sampling did not need; None without it."""

    num_lost: int | None = None
    """Number of rollouts without a reward because infrastructure failed each time; None if none was lost."""
    num_lost_groups: int | None = None
    """Number of groups whose rollouts all count as lost, because too few of them were left."""
    num_too_long: int | None = None
    """Number of rollouts without a reward because their prompts left no room for a turn; None if there was none."""
    num_cancelled: int | None = None
    """Number of rollouts that over-sampling cancelled; None without it."""
    cancelled_length: float | None = None
    """Mean number of tokens that the policy had written in the rollouts that over-sampling cancelled; None if there
    were none."""
    num_unused: int | None = None
    """Number of rollouts that finished in time, but that over-sampling did not choose to train on; None without it."""
    num_audited_groups: int | None = None
    """Number of audited groups, in which over-sampling cancelled no rollout; None without over-sampling."""
    length_bias: float | None = None
    """Mean tokens of the rollouts trained on minus that of all, averaged over audited groups; None without these."""
    reward_bias: float | None = None
    """Mean reward of the rollouts trained on minus that of all, averaged over audited groups; None without these."""

    num_experiences: int | None = None
    """Number of records in the pool of experience; None without a pool."""
    hinted: float | None = None
    """Share of rollouts that saw experience; None without a pool."""
    hint_cut: float | None = None
    """Share of rollouts that saw experience which was cut from their training prompts; None without a pool."""

    def as_row(self) -> dict[str, Any]:
        """Return a row of `rl_log`."""
        environments = [{"environment": name, **asdict(own)} for name, own in sorted((self.environments or {}).items())]
        own = {"parts": part_items(self.parts or {}), "environments": environments}
        return {name: getattr(self, name) for name in self.__slots__} | own


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationFigures:
    """Figures of one greedy answer per held-out question; a value is None if nothing was scored, or no tool called."""

    num_questions: int
    score: float | None
    efficiency: float | None
    """Mean of score / max(1, calls)."""
    calls: float | None
    length: float | None
    executed: float | None
    """Share of executed calls that did not fail."""
    web_misses: float | None = None
    """Mean number of searches that the replayed web record could not answer."""
    parts: Mapping[str, float] | None = None
    """Name -> mean of the parts of the rewards."""

    @classmethod
    def of_event(cls, event: Mapping[str, Any]) -> ValidationFigures:
        """Build the figures from an event, or from its part for one domain.

        An engine may leave out `web_misses` and `parts`.
        """
        known: dict[str, Any] = {"web_misses": None, "parts": None, **event}
        return cls(**{name: known[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Validation:
    """One validation."""

    step: int
    """Step after which the policy was validated."""
    overall: ValidationFigures
    by_domain: Mapping[str, ValidationFigures]
    by_environment: Mapping[str, ValidationFigures] = field(default_factory=dict)
    """Name -> figures of each environment; empty if there is only one."""

    def as_rows(self) -> list[dict[str, Any]]:
        """Return the rows of `rl_validation`."""
        named = {(ALL, ALL): self.overall}
        named |= {(ALL, name): figures for name, figures in self.by_domain.items()}
        named |= {(name, ALL): figures for name, figures in self.by_environment.items()}
        return [
            {
                "step": self.step,
                "environment": environment,
                "domain": domain,
                **{key: getattr(figures, key) for key in figures.__slots__},
                "parts": part_items(figures.parts or {}),
            }
            for (environment, domain), figures in named.items()
        ]


class RlEvents(EventLog[RlStep]):
    """Event log of one RL training: its steps, validations and saved states."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, RlStep)
        self.validations: dict[int, Validation] = {}
        """Validations by step."""
        self.saved: dict[int, str] = {}
        """Step -> name of the folder of the state that was saved after it."""
        self.live_greedy: dict[int, Greedy] = {}
        """Step -> greedy completion by the policy in training."""

    def take(self, event: dict[str, Any]) -> None:
        """Process one event; see `EventLog.take`."""
        super().take(event)
        kind = event["event"]
        if kind == "begin":
            first = event["resumed_step"]
            self.validations = {step: done for step, done in self.validations.items() if step <= first}
            self.saved = {step: name for step, name in self.saved.items() if step <= first}
            self.live_greedy = {step: ids for step, ids in self.live_greedy.items() if step <= first}
        elif kind == "validation":
            by_domain, by_environment = (
                {name: ValidationFigures.of_event(part) for name, part in event.get(key, {}).items()}
                for key in ("by_domain", "by_environment")
            )
            overall = ValidationFigures.of_event(event)
            self.validations[event["step"]] = Validation(event["step"], overall, by_domain, by_environment)
        elif kind == "saved":
            self.saved[event["step"]] = event["state"]
        elif kind == "live_greedy" and (greedy := Greedy.of_event(event)) is not None:
            self.live_greedy[event["step"]] = greedy
