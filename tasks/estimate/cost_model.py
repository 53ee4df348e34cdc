"""Estimate the calls and tokens of a question in `pools`, a rollout or a phase before any of them has run.

These are expected values, not bounds: how long a model reasons and how often it is right is not known in advance. The
assumptions are in `ASSUMPTIONS` and shown with every estimate. Model: docs/behaviour/command_line.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from treadle.datagen.operators import load_operators
from treadle.datagen.pools.settings import PoolOptions
from treadle.environments.settings import EnvironmentSettings
from treadle.eval.config import ScoresOptions
from treadle.rl.config import RlOptions
from treadle.rl.training.plan import RlPlan

_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class CostAssumptions:
    """Assumptions of the cost model."""

    turns: float = 3.0
    """Turns of a fresh rollout, including the one with the answer."""
    turns_after_edit: float = 2.0
    share_right: float = 0.5
    """Share of right trajectories among those that operators are applied to."""
    sampled_per_turn: int = 200
    sampled_per_reply: int = 200
    """Sampled tokens of one reply of critic, refiner or summarizer."""
    question_tokens: int = 100
    instruction_tokens: int = 500
    """Tokens of a prompt of critic, refiner or judge, without the trajectory in it."""
    verdict_tokens: int = 4
    vote_tokens: int = 8
    yield_rate: float = 0.7
    """Share of operator applications whose trajectory is added to the pool."""


ASSUMPTIONS = CostAssumptions()
ROLLOUT_ASSUMPTIONS = (
    f"a rollout has {ASSUMPTIONS.turns:g} turns of {ASSUMPTIONS.sampled_per_turn} sampled tokens; tool results have "
    "the maximum length, program outputs a quarter of it",
    "every turn sends the whole prefix: prefix caches of servers are ignored",
)
"""Assumptions of `rollout_cost` as sentences."""


@dataclass(slots=True)
class ExpectedUsage:
    """Role -> expected calls, prompt_tokens and completion_tokens."""

    roles: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, role: str, calls: float, prompt_tokens: float, completion_tokens: float) -> None:
        """Add calls of a role, with the tokens of one call."""
        counts = self.roles.setdefault(role, Counter())
        for name, value in (("calls", 1.0), ("prompt_tokens", prompt_tokens), ("completion_tokens", completion_tokens)):
            counts[name] += calls * value  # type: ignore[assignment]


def mean_cost(shares: Mapping[str, float], cost: Callable[[str], ExpectedUsage]) -> ExpectedUsage:
    """Return the mean usage of a question if these shares of the questions belong to the named environments.

    `cost` returns the expected usage of a question of one environment, given its name.
    """
    mean = ExpectedUsage()
    for name, share in shares.items():
        for role, counts in cost(name).roles.items():
            of_role = mean.roles.setdefault(role, Counter())
            for kind, value in counts.items():
                of_role[kind] += share * value  # type: ignore[assignment]
    return mean


def result_tokens(environment: EnvironmentSettings) -> float:
    """Return the expected tokens of a tool result or a message of the environment."""
    return environment.num_result_chars / _CHARS_PER_TOKEN


def web_searches(environment: EnvironmentSettings, model_calls: float) -> float:
    """Return the expected web searches for a number of policy calls; 0 if no provider is called.

    Assumes that every turn except the last calls a tool, and that all tools are called equally often.
    """
    search, turns = environment.search_tool, ExpectedRollout(environment).turns
    if search is None or not environment.searches_web or search.web is None or search.web.mode == "replay":
        return 0.0
    return model_calls * (turns - 1) / turns / len(environment.enabled_tools)


@dataclass(frozen=True, slots=True)
class ExpectedRollout:
    """Mean usage of one rollout in an environment, as assumed."""

    environment: EnvironmentSettings

    @property
    def turns(self) -> float:
        """Number of turns of a fresh rollout."""
        return min(ASSUMPTIONS.turns, self.environment.turn_limit()) if self.environment.num_result_chars else 1.0

    @property
    def tokens(self) -> float:
        """Tokens of a whole trajectory, including tool results."""
        return self.turns * ASSUMPTIONS.sampled_per_turn + (self.turns - 1) * result_tokens(self.environment)

    def add_turns(self, expected: ExpectedUsage, times: float, turns: float, before: float = 0.0) -> None:
        """Add the usage of `times` rollouts of `turns` turns each; `before`: tokens of a prefix before the first turn.

        Each turn is prompted with everything before it.
        """
        system = self.environment.num_system_chars / _CHARS_PER_TOKEN
        per_turn = ASSUMPTIONS.sampled_per_turn + result_tokens(self.environment)
        prompt = system + ASSUMPTIONS.question_tokens + before + (turns - 1) / 2 * per_turn
        expected.add("policy", times * turns, prompt, ASSUMPTIONS.sampled_per_turn)
        if self.environment.summarizer is not None:
            documents = result_tokens(self.environment) + ASSUMPTIONS.instruction_tokens
            expected.add("summarizer", times * (turns - 1), documents, ASSUMPTIONS.sampled_per_reply)


def rollout_cost(environment: EnvironmentSettings) -> ExpectedUsage:
    """Return the expected usage of one rollout."""
    expected = ExpectedUsage()
    one = ExpectedRollout(environment)
    one.add_turns(expected, 1.0, one.turns)
    return expected


def scores_cost(
    options: ScoresOptions, environment: EnvironmentSettings, share_math: float, samples_per_question: int = 1
) -> ExpectedUsage:
    """Return the expected judge usage of one rollout; `share_math`: probability that its question is mathematical."""
    expected, one = ExpectedUsage(), ExpectedRollout(environment)
    judge = options.judges
    asked = 1.0 - ASSUMPTIONS.share_right if judge.NEEDS_ANSWERS else 1.0
    # Only the share of math questions is known: any other rules together get the rest.
    shares = {share_math if rule == "math" else 1 - share_math for rule in judge.domains}
    judged = asked * (min(1.0, sum(shares)) if shares else 1.0)
    for name in judge.models if judged else ():
        prompt = float(ASSUMPTIONS.instruction_tokens + ASSUMPTIONS.question_tokens)
        prompt += one.tokens if judge.subject == "trajectory" else 0.0
        expected.add(f"{judge.kind}:{name}", judged, prompt, ASSUMPTIONS.verdict_tokens)
    if options.redundancy.model is not None and one.turns > 1:
        prompt = ASSUMPTIONS.instruction_tokens + ASSUMPTIONS.question_tokens + one.tokens
        expected.add(
            f"redundancy:{options.redundancy.model}", options.redundancy.votes, prompt, ASSUMPTIONS.vote_tokens
        )
    compared = options.best_of.attempts
    if options.best_of.model is not None and samples_per_question >= compared:
        prompt = ASSUMPTIONS.instruction_tokens + ASSUMPTIONS.question_tokens + compared * one.tokens
        asked = 1.0 / samples_per_question
        expected.add(f"best_of:{options.best_of.model}", asked, prompt, ASSUMPTIONS.verdict_tokens)
    return expected


@dataclass(frozen=True, slots=True)
class PhaseSize:
    """Steps and rollouts that remain in one phase of reinforcement learning."""

    num_steps: int
    num_rollouts: int
    """Rollouts of all these steps. A group whose rollouts branch from shared prefixes counts as many as any other."""
    num_validation_rollouts: int
    """Greedy rollouts of all validations together."""


def phase_size(options: RlOptions, num_rows: int, steps_done: int = 0) -> PhaseSize:
    """Return the size of the rest of a phase with this many rows, after `steps_done` steps."""
    plan = RlPlan(options=options, num_rows=num_rows, num_validation_rows=options.validation_questions)
    left = range(steps_done + 1, plan.num_steps + 1)
    validations = sum(map(plan.validates_at, left))
    return PhaseSize(len(left), len(left) * plan.trajectories_per_step, validations * options.validation_questions)


def pool_cost(options: PoolOptions, environment: EnvironmentSettings, share_math: float) -> ExpectedUsage:
    """Return the expected usage of one question; `share_math`: probability that it may go to the judge model."""
    expected, one = ExpectedUsage(), ExpectedRollout(environment)
    one.add_turns(expected, options.initial_rollouts, one.turns)
    operators = load_operators(options.operators)
    made, fresh = float(options.initial_rollouts), float(options.initial_rollouts)
    for _ in range(options.rounds):
        parents = 1.0 if options.selection == "best_unexpanded" else fresh
        fresh = 0.0
        for branch, share in (("correct", ASSUMPTIONS.share_right), ("incorrect", 1 - ASSUMPTIONS.share_right)):
            names = [operator.name for operator in operators if operator.branch == branch]
            _expand(expected, one, names, parents * share)
            fresh += parents * share * len(names) * ASSUMPTIONS.yield_rate
        made += fresh
    if options.judge_math and share_math:
        expected.add("judge", made * share_math, ASSUMPTIONS.instruction_tokens, ASSUMPTIONS.verdict_tokens)
    return expected


def _expand(expected: ExpectedUsage, one: ExpectedRollout, names: list[str], times: float) -> None:
    """Add the usage of applying operators to trajectories."""
    after, half = ASSUMPTIONS.turns_after_edit, one.tokens / 2

    def ask(role: str, calls: float) -> None:
        prompt = ASSUMPTIONS.instruction_tokens + ASSUMPTIONS.question_tokens + one.tokens
        expected.add(role, times * calls, prompt, ASSUMPTIONS.sampled_per_reply)

    if {"self_correct", "hint_step"}.intersection(names):
        ask("critic", 1.0)  # these operators share one diagnosis of the flaw
    for name in names:
        if name == "rerollout":
            one.add_turns(expected, times, one.turns)
            continue
        if name == "global_refine":
            ask("critic", max(one.turns - 1.0, 1.0))
            continue
        asked = {"redundant_mod": ("critic", 1.0), "self_correct": ("refiner", 2.0), "hint_step": ("refiner", 0.0)}
        role, calls = asked.get(name, ("refiner", 0.0 if name == "hint_tail" else 1.0))
        if calls:
            ask(role, calls)
        one.add_turns(expected, times, after, half if name != "hint_tail" else one.tokens)
