"""Rewards of rollout groups, against numbers computed by hand."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from dataclasses import asdict, replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.training.rewards import group_rewards

from treadle.agent.dialects.base import Segment
from treadle.agent.dialects.tags import TOOL_DIALECT, result_block, tokenise
from treadle.core.answers.math_equal import SymbolicVerdict
from treadle.core.errors import ConfigError, EngineError
from treadle.rl.credit.outcome import group_advantages
from treadle.rl.rewards.base import GroupItem
from treadle.rl.rewards.rewarded import RewardedItem

GOOD = r"<think>a</think><answer>\boxed{%s}</answer>"
BAD = r"<answer>\boxed{%s}</answer>"
CLOSE = {"abs": 5e-4}


def item(answer: str, calls: int, length: int, *, form: str = GOOD) -> GroupItem:
    return GroupItem.from_text(
        form % answer, tool_calls=calls, model_tokens=length, total_tokens=2 * length, dialect=TOOL_DIALECT
    )


EXAMPLE_A = [
    item("12", 1, 200),
    item("12", 3, 420),
    item("7", 0, 100),
    item("12", 2, 300),
    item("12", 2, 300, form=BAD),
    item("7", 4, 480, form=BAD),
]
EXAMPLE_B = [
    item("blue Eiffel Tower", 2, 50),
    item("Eiffel Tower of Lyon", 4, 50),
    item("nothing", 1, 50),
    item("blue Eiffel Tower", 1, 50, form=BAD),
]


def rewards_of(items: list[GroupItem], sigma_tool: float, sigma_length: float, scale: float = 2.0) -> list[float]:
    return [
        reward.reward
        for reward in group_rewards(items, ["12"], "math", sigma_tool, sigma_length, scale=scale, dialect=TOOL_DIALECT)
    ]


@pytest.mark.covers("pareto-13")
@pytest.mark.parametrize(
    ("sigma_tool", "sigma_length", "scale", "expected"),
    [
        (0.1, 0.1, 2.0, [1.0913, 0.9052, 0, 1, 0, -1]),
        (0.2, 0.5, 2.0, [1.3134, 0.6916, 0, 1, 0, -1]),
        (0.0, 0.0, 2.0, [1, 1, 0, 1, 0, -1]),
        (0.1, 0.1, 1.0, [0.2728, 0.2263, 0, 0.25, -0.75, -1]),
        (0.05, 0.05, 2.0, [1.0452, 0.9520, 0, 1, 0, -1]),
    ],
)
def test_math_group_has_its_worked_rewards(
    sigma_tool: float, sigma_length: float, scale: float, expected: list[float]
) -> None:
    assert rewards_of(EXAMPLE_A, sigma_tool, sigma_length, scale) == pytest.approx(expected, **CLOSE)


@pytest.mark.covers("pareto-13")
def test_math_group_has_its_worked_components() -> None:
    rewards = group_rewards(EXAMPLE_A, ["12"], "math", 0.1, 0.1, dialect=TOOL_DIALECT)
    assert [reward.parts["f_tool"] for reward in rewards] == pytest.approx([1.05, 0.95, 1.0997, 1, 1, 0.9003], **CLOSE)
    assert [reward.parts["f_len"] for reward in rewards] == pytest.approx(
        [1.0393, 0.9528, 1.0786, 1, 1, 0.9293], **CLOSE
    )
    assert [reward.parts["f_format"] for reward in rewards] == [0, 0, 0, 0, -1, -1]
    assert [reward.score for reward in rewards] == [1, 1, 0, 1, 1, 0]
    assert {(reward.parts["tool_mean"], reward.parts["length_mean"]) for reward in rewards} == {(2.0, 300.0)}
    assert rewards[0].parts["length_std"] == pytest.approx(127.0171, abs=5e-5)
    assert [reward.length for reward in rewards] == [200, 420, 100, 300, 300, 480]
    assert [reward.answer for reward in rewards] == ["12", "12", "7", "12", "12", "7"]
    assert rewards[4].notes == ("bad_start", "no_think") and not rewards[4].parts["format_ok"]
    assert rewards[0].notes == () and rewards[0].parts["format_ok"]
    for reward in rewards:
        parts = reward.parts
        assert reward.score is not None
        assert reward.reward == reward.score * parts["f_tool"] * parts["f_len"] + parts["f_format"]
        assert (reward.parts["sigma_tool"], reward.parts["sigma_length"]) == (0.1, 0.1) and reward.scored


@pytest.mark.covers("pareto-13", "pareto-19")
@pytest.mark.parametrize(
    ("sigma_tool", "sigma_length", "expected"),
    [
        (0.1, 0.1, [0.9272, 0.6998, -0.4068, 0.8157, -0.4068, -1.6292]),
        (0.2, 0.5, [1.1649, 0.4252, -0.3975, 0.7921, -0.3975, -1.5871]),
    ],
)
def test_math_group_has_its_worked_advantages(sigma_tool: float, sigma_length: float, expected: list[float]) -> None:
    assert group_advantages(rewards_of(EXAMPLE_A, sigma_tool, sigma_length)) == pytest.approx(expected, **CLOSE)


@pytest.mark.covers("pareto-33")
def test_engine_epsilon_changes_the_fourth_digit() -> None:
    rewards = rewards_of(EXAMPLE_A, 0.1, 0.1)
    assert group_advantages(rewards, 1e-6)[0] == pytest.approx(0.9272, abs=5e-5)
    assert group_advantages(rewards, 1e-4)[0] == pytest.approx(0.9271, abs=5e-5)


@pytest.mark.covers("pareto-13")
def test_qa_group_has_its_worked_rewards() -> None:
    # F1 of the second: 2 of 4 predicted tokens, 2 of 2 of the gold answer "Eiffel Tower".
    rewards = group_rewards(EXAMPLE_B, ["blue Eiffel Tower", "Eiffel Tower"], "qa", 0.2, 0.1, dialect=TOOL_DIALECT)
    assert [reward.score for reward in rewards] == pytest.approx([1, 2 / 3, 0, 1])
    assert [reward.reward for reward in rewards] == pytest.approx([1.0, 0.5351, 0, 0.0997], **CLOSE)
    assert {reward.parts["f_len"] for reward in rewards} == {1.0}


@pytest.mark.covers("pareto-13")
def test_permuting_a_group_permutes_its_rewards_exactly() -> None:
    usual = group_rewards(EXAMPLE_A, ["12"], "math", 0.1, 0.1, dialect=TOOL_DIALECT)
    for order in itertools.permutations(range(len(EXAMPLE_A))):
        assert group_rewards([EXAMPLE_A[i] for i in order], ["12"], "math", 0.1, 0.1, dialect=TOOL_DIALECT) == [
            usual[i] for i in order
        ]


@pytest.mark.covers("pareto-13")
@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0, 3.0])
def test_equal_lengths_give_half_the_scale(scale: float) -> None:
    items = [item("12", calls, 77) for calls in (0, 3, 9)]
    rewards = group_rewards(items, ["12"], "math", 0.1, 5.0, scale=scale, dialect=TOOL_DIALECT)
    assert [reward.parts["f_len"] for reward in rewards] == [scale / 2] * 3


@pytest.mark.covers("pareto-13")
def test_reward_without_sigmas_is_correctness_and_format() -> None:
    for reward in group_rewards(EXAMPLE_A, ["12"], "math", 0.0, 0.0, dialect=TOOL_DIALECT):
        assert reward.reward == reward.score + reward.parts["f_format"]


def test_length_counts_model_tokens_unless_results_are_included() -> None:
    of_all = group_rewards(EXAMPLE_A, ["12"], "math", 0.1, 0.1, length_scope="all", dialect=TOOL_DIALECT)
    assert {reward.parts["length_mean"] for reward in of_all} == {600.0}
    assert [reward.length for reward in of_all] == [200, 420, 100, 300, 300, 480]
    longer = [replace(EXAMPLE_A[0], total_tokens=10**6), *EXAMPLE_A[1:]]
    assert rewards_of(longer, 0.1, 0.1) == rewards_of(EXAMPLE_A, 0.1, 0.1)


def test_flat_penalty_removes_all_reward_of_a_malformed_correct_answer() -> None:
    flat = group_rewards(
        EXAMPLE_A, ["12"], "math", 0.1, 0.1, flat_penalty=True, format_penalty=0.5, dialect=TOOL_DIALECT
    )
    assert [reward.reward for reward in flat] == pytest.approx([1.0913, 0.9052, 0, 1, -0.5, -0.5], **CLOSE)
    assert flat[4].score == 1


@pytest.mark.covers("pareto-19")
def test_small_group_advantages() -> None:
    assert group_advantages([1, 0, 0, 0]) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    # Three times this number, divided by three, is another number.
    assert group_advantages([0.7734603050039117] * 3) == [0.0] * 3
    assert group_advantages([0.7]) == [0.7]
    assert group_advantages([]) == []


def test_lost_trajectory_changes_no_sibling_and_has_no_gradient() -> None:
    lost = replace(item("12", 50, 9_999), status="failed")
    with_lost = group_rewards([lost, *EXAMPLE_A], ["12"], "math", 0.1, 0.1, dialect=TOOL_DIALECT)
    assert with_lost[1:] == group_rewards(EXAMPLE_A, ["12"], "math", 0.1, 0.1, dialect=TOOL_DIALECT)
    assert not with_lost[0].scored and with_lost[0].parts == {}
    assert group_advantages([reward.reward for reward in with_lost])[0] == pytest.approx(0, abs=1e-12)
    nothing = group_rewards([lost, lost], ["12"], "math", 0.1, 0.1, dialect=TOOL_DIALECT)
    assert [(reward.reward, reward.scored) for reward in nothing] == [(0.0, False)] * 2


@pytest.mark.covers("service-16")
def test_a_rollout_whose_prompt_left_no_room_for_a_turn_is_outside_the_baseline() -> None:
    full = replace(item("12", 0, 0), status="context_full", num_turns=0)
    with_full = group_rewards([full, *EXAMPLE_A], ["12"], "math", 0.1, 0.1, dialect=TOOL_DIALECT)
    assert with_full[1:] == group_rewards(EXAMPLE_A, ["12"], "math", 0.1, 0.1, dialect=TOOL_DIALECT)
    assert not with_full[0].scored and with_full[0].status == "context_full"


@pytest.mark.parametrize("status", ["no_answer", "limit", "max_turns", "context_full", "length", "timeout", "budget"])
def test_only_a_rollout_that_ends_with_its_answer_can_be_correct(status: str) -> None:
    (reward,) = group_rewards([replace(EXAMPLE_A[0], status=status)], ["12"], "math", 0.1, 0.1, dialect=TOOL_DIALECT)
    assert (reward.score, reward.scorer, reward.answer, reward.scored) == (0.0, "status", "12", True)


@pytest.mark.covers("pareto-16")
@pytest.mark.parametrize(
    ("answer", "gold", "f1"),
    [
        ("Eiffel Tower in Paris", ["Eiffel Tower"], 0.6667),
        ("Eiffel Tower", ["The Eiffel Tower."], 1.0),
        ("Yes it is", ["yes"], 0.0),
        ("Eiffel Tower in Paris", ["Louvre", "Eiffel Tower"], 0.6667),
    ],
)
def test_text_answers_earn_their_token_f1(answer: str, gold: list[str], f1: float) -> None:
    (reward,) = group_rewards([item(answer, 0, 5)], gold, "qa", 0.1, 0.1, dialect=TOOL_DIALECT)
    assert reward.score == pytest.approx(f1, **CLOSE)


@pytest.mark.covers("pareto-17")
@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("1/2", "0.5"),
        (r"\frac12", r"\dfrac{1}{2}"),
        (r"50\%", "50"),
        ("12.0", "12"),
        ("1,000", "1000"),
    ],
)
def test_math_answers_are_equal_by_value(answer: str, gold: str) -> None:
    assert [
        reward.score for reward in group_rewards([item(answer, 0, 5)], [gold], "math", 0, 0, dialect=TOOL_DIALECT)
    ] == [1.0]


@pytest.mark.covers("pareto-17")
def test_box_after_the_answer_does_not_replace_it() -> None:
    text = r"<think>a</think><answer>\boxed{12}</answer> or rather \boxed{13}"
    (reward,) = group_rewards(
        [GroupItem.from_text(text, dialect=TOOL_DIALECT)], ["12"], "math", 0, 0, dialect=TOOL_DIALECT
    )
    assert (reward.answer, reward.score) == ("12", 1.0)


def test_any_gold_answer_and_the_question_choices_count() -> None:
    assert group_rewards([item("7", 0, 1)], ["12", "7"], "math", 0, 0, dialect=TOOL_DIALECT)[0].score == 1
    (reward,) = group_rewards([item("B", 0, 1)], ["Rome"], "qa", 0, 0, choices=["Oslo", "Rome"], dialect=TOOL_DIALECT)
    assert (reward.score, reward.scorer) == (1.0, "choice")


def test_unknown_domain_is_refused() -> None:
    with pytest.raises(ConfigError, match="domain 'law' has no scorer"):
        group_rewards([item("7", 0, 1)], ["7"], "law", 0, 0, dialect=TOOL_DIALECT)


class NoAlgebra:
    def check(self, prediction: str, gold: str) -> SymbolicVerdict:
        raise EngineError("the symbolic worker process did not start: out of memory")


def test_incomparable_answer_is_an_error_not_a_wrong_answer() -> None:
    with pytest.raises(EngineError, match="could not be compared .*: out of memory"):
        group_rewards([item("x+1", 0, 1)], ["1+x"], "math", 0, 0, checker=NoAlgebra(), dialect=TOOL_DIALECT)


@pytest.mark.covers("pareto-18")
@pytest.mark.parametrize("mode", ["strict", "loose"])
def test_markers_quoted_in_a_result_change_neither_calls_nor_format(mode: str) -> None:
    quoted = (
        r"<search>x</search><search>y</search><python>1</python></think><think></answer><answer>\boxed{13}</answer>"
    )

    def turn(result: str) -> GroupItem:
        segments = (
            *tokenise("<think>a</think><search>q</search>", model_text=True, dialect=TOOL_DIALECT),
            Segment("result", result, 0, 0),
            *tokenise(r"<think>b</think><answer>\boxed{12}</answer>", model_text=True, dialect=TOOL_DIALECT),
        )
        return GroupItem(segments=segments, tool_calls=1, model_tokens=9, total_tokens=19, status="answered")

    plain = group_rewards(
        [turn("<result>found</result>")], ["12"], "math", 0.1, 0.1, format_mode=mode, dialect=TOOL_DIALECT
    )
    assert plain[0].parts["format_ok"] and plain[0].tool_calls == 1 and plain[0].score == 1
    for result in (f"<result>{quoted}</result>", result_block(quoted, TOOL_DIALECT)):
        assert group_rewards([turn(result)], ["12"], "math", 0.1, 0.1, format_mode=mode, dialect=TOOL_DIALECT) == plain


HOSTILE = [
    "__import__('os').system('touch /tmp/pwned')",
    "9**9**9**9",
    "10^{999999999999}",
    "1e999999999",
    "9" * 5_000,
    r"\frac{1}{" * 5_000 + "1" + "}" * 5_000,
    "{" * 10_000,
    "(" * 10_000 + ")" * 10_000,
    r"\boxed{" * 5_000,
    "<answer>" * 5_000,
    "<think>" * 5_000 + "<search>" * 5_000,
    ",".join(["1"] * 20_000),
    "\\" * 5_000,
    "nan",
    "inf",
    "\ud800\x00\x1b[31m",
    "٣",
    "1" + "\N{COMBINING ACUTE ACCENT}" * 10_000,
]


@pytest.mark.parametrize("domain", ["math", "qa"])
@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("mode", ["strict", "loose"])
def test_hostile_answers_are_wrong_answers(
    domain: str, answer: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("text of a model was evaluated")

    for form in (GOOD, BAD, "%s", r"<think>%s</think>"):
        items = [item(answer, 10**15, 10**15, form=form), item("12", 0, 1)]
        with monkeypatch.context() as patched:
            for name in ("eval", "exec", "compile"):
                patched.setattr(f"builtins.{name}", refuse)
            hostile, usual = group_rewards(items, ["12"], domain, 1e6, 1e6, format_mode=mode, dialect=TOOL_DIALECT)
        assert hostile.score == 0.0 and hostile.reward in (0.0, -1.0)
        assert math.isfinite(usual.reward) and usual.score == 1.0


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 5_000), st.booleans(), st.booleans()), min_size=1, max_size=16
    ),
    st.floats(0, 10),
    st.floats(0, 10),
    st.floats(0.1, 4),
)
def test_factors_stay_within_the_scale_and_reward_efficiency(
    facts: list[tuple[int, int, bool, bool]], sigma_tool: float, sigma_length: float, scale: float
) -> None:
    items = [
        item("12" if right else "7", calls, length, form=GOOD if formed else BAD)
        for calls, length, right, formed in facts
    ]
    rewards = group_rewards(items, ["12"], "math", sigma_tool, sigma_length, scale=scale, dialect=TOOL_DIALECT)
    for reward in rewards:
        assert 0 < reward.parts["f_tool"] < scale or math.isclose(reward.parts["f_tool"], scale)
        assert 0 < reward.parts["f_len"] < scale or math.isclose(reward.parts["f_len"], scale)
    for one, other in itertools.pairwise(sorted(rewards, key=lambda reward: reward.tool_calls)):
        # Values that are equal but for rounding may be in either order.
        assert one.parts["f_tool"] >= other.parts["f_tool"] * (1 - 1e-12)
    assert sum(group_advantages([reward.reward for reward in rewards])) == pytest.approx(
        rewards[0].reward if len(rewards) == 1 else 0, abs=1e-6
    )


def test_rewards_round_trip_as_json() -> None:
    whole = replace(EXAMPLE_A[0], tool_failures=1)
    (reward,) = group_rewards([whole], ["12"], "math", 0.1, 0.1, dialect=TOOL_DIALECT)
    stored = orjson.loads(orjson.dumps(asdict(reward)))
    assert RewardedItem(**{**stored, "notes": tuple(stored["notes"])}) == reward


def test_rewards_are_cheap_to_import() -> None:
    heavy = ("numpy", "pyarrow", "torch", "jinja2", "aiohttp", "sympy", "math_verify")
    modules = ", ".join(
        f"treadle.rl.{name}"
        for name in ("rewards.efficiency", "rewards.rewarded", "credit.outcome", "training.figures")
    )
    code = f"import sys, {modules}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "[]"
