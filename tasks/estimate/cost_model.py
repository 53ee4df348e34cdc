"""What a question of `pools`, a rollout, or a phase may be expected to cost in calls and tokens, before any was made.

A reckoning by expectation, not a promise: how long a model thinks and how often it is right is not known beforehand.
What it stands on is in `ASSUMED`, and is told with every estimate. Model: docs/behaviour/command_line.md.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from treadle.agent.config import EnvironmentSettings, SearchSettings
from treadle.agent.web.config import WebSettings
from treadle.agent.web.rendering import AGENT_WINDOW_CHARS
from treadle.datagen.operators import load_operators
from treadle.datagen.pools_settings import PoolOptions
from treadle.eval.config import ScoresOptions
from treadle.rl.config import RlOptions
from treadle.rl.plan import draft_plan

_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Assumed:
    """What is not known beforehand."""

    turns: float = 3.0
    """Of a fresh rollout, that with the answer included."""
    turns_after_edit: float = 2.0
    share_right: float = 0.5
    """Of the trajectories that are taken up."""
    sampled_per_turn: int = 200
    sampled_per_reply: int = 200
    """By critic, refiner or summarizer."""
    question_tokens: int = 100
    instruction_tokens: int = 500
    """Of a prompt of critic, refiner or judge, without the trajectory in it."""
    verdict_tokens: int = 4
    vote_tokens: int = 8
    yielded: float = 0.7
    """Of the trajectories that operators might give, those that are taken into the pool."""


ASSUMED = Assumed()


@dataclass(slots=True)
class Expected:
    """Role -> calls, prompt_tokens and completion_tokens, as expected on average."""

    roles: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, role: str, calls: float, prompt_tokens: float, completion_tokens: float) -> None:
        """Expect so many calls, each of so many tokens."""
        counts = self.roles.setdefault(role, Counter())
        for name, value in (("calls", 1.0), ("prompt_tokens", prompt_tokens), ("completion_tokens", completion_tokens)):
            counts[name] += calls * value  # type: ignore[assignment]


def result_tokens(environment: EnvironmentSettings) -> float:
    """Of a tool's result at its full length, the mean over the enabled tools; 0 without tools."""
    lengths = []
    if environment.call_limit("search"):
        lengths.append(_search_chars(environment.search))
    if environment.call_limit("python"):
        # Programs print far less than they may.
        lengths.append((environment.python.max_output_chars or 1_000) // 4)
    return sum(lengths) / len(lengths) / _CHARS_PER_TOKEN if lengths else 0.0


def _search_chars(search: SearchSettings) -> float:
    """Of a result of a search: of both places one behind the other, or the mean where each question has its own."""
    places = [search.top_n * search.document_chars] if search.uses_local else []
    if search.uses_web and search.web is not None:
        places.append(_web_chars(search.web))
    return sum(places) if search.route == "both" else sum(places) / len(places)


def web_searches(environment: EnvironmentSettings, model_calls: float) -> float:
    """Searches of the web that come of so many calls of the policy; 0 where nobody is asked for any.

    Of the turns all but the last call a tool, each tool as often as the others.
    """
    search, turns = environment.search, Rollout(environment).turns
    if not environment.searches_web or search.web is None or search.web.mode == "replay":
        return 0.0
    return model_calls * (turns - 1) / turns / len(environment.enabled_tools)


def _web_chars(web: WebSettings) -> int:
    """Of a result of the web whose pages were all had, as the agent meets it without a summarizer."""
    page = web.snippet_chars + (2 * (web.window_chars or AGENT_WINDOW_CHARS) if web.pages else 0)
    return min(web.max_chars, web.top_n * page)


@dataclass(frozen=True, slots=True)
class Rollout:
    """Expectations of one rollout in an environment."""

    environment: EnvironmentSettings

    @property
    def turns(self) -> float:
        """Of a fresh one."""
        has_tools = any(self.environment.call_limit(name) for name in ("python", "search"))
        return min(ASSUMED.turns, self.environment.turn_limit()) if has_tools else 1.0

    @property
    def tokens(self) -> float:
        """Of a whole trajectory, results included."""
        return self.turns * ASSUMED.sampled_per_turn + (self.turns - 1) * result_tokens(self.environment)

    def play(self, expected: Expected, times: float, turns: float, before: float = 0.0) -> None:
        """Expect turns of the policy, each with all before it as its prompt; `before`: tokens of a prefix."""
        system = len(self.environment.system_text) / _CHARS_PER_TOKEN
        per_turn = ASSUMED.sampled_per_turn + result_tokens(self.environment)
        prompt = system + ASSUMED.question_tokens + before + (turns - 1) / 2 * per_turn
        expected.add("policy", times * turns, prompt, ASSUMED.sampled_per_turn)
        if self.environment.summarizer is not None:
            documents = result_tokens(self.environment) + ASSUMED.instruction_tokens
            expected.add("summarizer", times * (turns - 1), documents, ASSUMED.sampled_per_reply)


def rollout_cost(environment: EnvironmentSettings) -> Expected:
    """Of one rollout."""
    expected = Expected()
    one = Rollout(environment)
    one.play(expected, 1.0, one.turns)
    return expected


def scores_cost(options: ScoresOptions, environment: EnvironmentSettings, share_math: float) -> Expected:
    """Of the judgements about one rollout; `share_math`: probability that its question is mathematical."""
    expected, one = Expected(), Rollout(environment)
    asked = 1.0 - ASSUMED.share_right
    judged = sum({"math": share_math * asked, "qa": (1 - share_math) * asked}[rule] for rule in options.judges.domains)
    for name in options.judges.models if judged else ():
        prompt = float(ASSUMED.instruction_tokens + ASSUMED.question_tokens)
        expected.add(f"correctness:{name}", judged, prompt, ASSUMED.verdict_tokens)
    if options.redundancy.model is not None and one.turns > 1:
        prompt = ASSUMED.instruction_tokens + ASSUMED.question_tokens + one.tokens
        expected.add(f"redundancy:{options.redundancy.model}", options.redundancy.votes, prompt, ASSUMED.vote_tokens)
    return expected


@dataclass(frozen=True, slots=True)
class PhaseSize:
    """What one phase of reinforcement learning rolls out."""

    num_steps: int
    num_rollouts: int
    """Of all steps; a group that branches makes as many, from shared beginnings."""
    num_validation_rollouts: int
    """Greedy ones, of all validations together."""


def phase_size(options: RlOptions, num_rows: int, steps_done: int = 0) -> PhaseSize:
    """What is left of a phase with so many rows, of which the first steps are done."""
    plan = draft_plan(options, num_rows=num_rows, num_validation_rows=options.validation_questions)
    left = range(steps_done + 1, plan.num_steps + 1)
    validations = sum(map(plan.validates_at, left))
    return PhaseSize(len(left), len(left) * plan.trajectories_per_step, validations * options.validation_questions)


def pool_cost(options: PoolOptions, environment: EnvironmentSettings, share_math: float) -> Expected:
    """Of one question; `share_math`: probability that the judge model may be asked about its answers."""
    expected, one = Expected(), Rollout(environment)
    one.play(expected, options.initial_rollouts, one.turns)
    operators = load_operators(options.operators)
    made, fresh = float(options.initial_rollouts), float(options.initial_rollouts)
    for _ in range(options.rounds):
        parents = 1.0 if options.selection == "best_unexpanded" else fresh
        fresh = 0.0
        for branch, share in (("correct", ASSUMED.share_right), ("incorrect", 1 - ASSUMED.share_right)):
            names = [operator.name for operator in operators if operator.branch == branch]
            _expand(expected, one, names, parents * share)
            fresh += parents * share * len(names) * ASSUMED.yielded
        made += fresh
    if options.judge_math and share_math:
        expected.add("judge", made * share_math, ASSUMED.instruction_tokens, ASSUMED.verdict_tokens)
    return expected


def _expand(expected: Expected, one: Rollout, names: list[str], times: float) -> None:
    """Expect operators to be applied to a trajectory."""
    after, half = ASSUMED.turns_after_edit, one.tokens / 2

    def ask(role: str, calls: float) -> None:
        prompt = ASSUMED.instruction_tokens + ASSUMED.question_tokens + one.tokens
        expected.add(role, times * calls, prompt, ASSUMED.sampled_per_reply)

    if {"self_correct", "hint_step"}.intersection(names):
        ask("critic", 1.0)  # they share where the flaw is
    for name in names:
        if name == "rerollout":
            one.play(expected, times, one.turns)
            continue
        if name == "global_refine":
            ask("critic", max(one.turns - 1.0, 1.0))
            continue
        asked = {"redundant_mod": ("critic", 1.0), "self_correct": ("refiner", 2.0), "hint_step": ("refiner", 0.0)}
        role, calls = asked.get(name, ("refiner", 0.0 if name == "hint_tail" else 1.0))
        if calls:
            ask(role, calls)
        one.play(expected, times, after, half if name != "hint_tail" else one.tokens)
