"""Problems of rollouts follow from counts and marks in texts, each with a likely cause."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.environments.diagnosis.causes import ROLLOUT_PROBLEMS
from treadle.environments.diagnosis.diagnosis import Diagnosis, Example, cut_end
from treadle.environments.diagnosis.facts import Facts, marks_of

STATUSES = ("answered", "finished", "no_answer", "length", "max_turns", "limit", "filtered", "timeout", "failed")
TAGS: dict[str, Any] = {"dialect": "tags", "tools": ("python",)}


def facts(text: str = "", **more: Any) -> Facts:
    """Return the facts of ten rollouts with this text that did not end."""
    marks = Counter(dict.fromkeys(marks_of(text), 10))
    return Facts(**{"statuses": {"no_answer": 10}, "num_read": 10, "marks": marks, **TAGS, **more})


CASES = [
    (facts("a", statuses={"length": 10}, max_tokens=64), "max_tokens = 64: raise it (--max-tokens)"),
    (facts("<think>a", statuses={"length": 10}), "Reasoning used up"),
    (facts(r"so \boxed{4}"), r"\boxed{} without <answer> tags"),
    (facts('<tool_call>{"name": "python"}'), 'environment.dialect = "functions"'),
    (facts('<tool_call>{"name": "python"}', dialect="functions"), "--enable-auto-tool-choice"),
    (facts("4", is_chatml=True), "ChatML"),
    (facts("4<|eot_id|>"), "Markers of a chat template"),
    (facts(r"<answer>\boxed{4}"), "opened but not closed"),
    (facts("<Answer>4</Answer>"), "other tags than <answer>"),
    (facts("```python\n1\n```"), "``` fences"),
    (facts(""), "wrote nothing"),
    (facts("4", unknown_tools=("pyhton",)), "(pyhton); there are python"),
    (facts("4", statuses={"max_turns": 10}), "environment.max_turns"),
    (facts("4"), "not clear"),
]


@pytest.mark.parametrize(("given_facts", "words"), CASES, ids=[case[1][:30] for case in CASES])
def test_cause_follows_from_the_rows(given_facts: Facts, words: str) -> None:
    (problem,) = ROLLOUT_PROBLEMS.problems_of(given_facts)
    assert problem.name == "no_answer" and words in " ".join(ROLLOUT_PROBLEMS.causes_of(problem, given_facts))


def test_problems_need_more_than_half_or_all_of_eight() -> None:
    def names(**more: Any) -> list[str]:
        return [one.name for one in ROLLOUT_PROBLEMS.problems_of(facts(**more))]

    assert names(statuses={"answered": 5, "length": 5}, num_calls=1) == []
    assert names(statuses={"answered": 4, "length": 5}, num_calls=1) == ["no_answer"]
    assert names(statuses={"failed": 9}) == []
    assert names(statuses={"answered": 8}) == ["no_calls"] and names(statuses={"answered": 7}) == []
    assert names(statuses={"answered": 8}, tools=()) == []
    assert names(statuses={"answered": 8}, num_calls=8, num_executed=8, num_failed_calls=8) == ["failed_calls"]


@given(
    st.dictionaries(st.sampled_from(STATUSES), st.integers(0, 20)),
    st.dictionaries(st.sampled_from(["empty", "boxed", "native_call", "answer_tag"]), st.integers(0, 20)),
    st.sampled_from(["tags", "functions", ""]),
    st.booleans(),
)
def test_every_problem_has_a_cause_in_one_line(
    statuses: dict[str, int], marks: dict[str, int], dialect: Any, is_chatml: bool
) -> None:
    made = Facts(
        statuses=statuses, marks=Counter(marks), num_read=20, dialect=dialect, is_chatml=is_chatml, tools=("python",)
    )
    for problem in ROLLOUT_PROBLEMS.problems_of(made):
        assert ROLLOUT_PROBLEMS.causes_of(problem, made) and all(
            "\n" not in line for line in ROLLOUT_PROBLEMS.causes_of(problem, made)
        )
    named = {name for cause in ROLLOUT_PROBLEMS.causes for name in cause.problems}
    assert named <= {problem.name for problem in ROLLOUT_PROBLEMS.problems}


def test_hostile_text_of_examples_is_one_harmless_line() -> None:
    example = Example("k", "q", "no_answer", cut_end("a\x1b[2J\n\u202eb" + "c" * 300))
    found = Diagnosis(
        "1/rollouts@m", "1/rollouts@m", "m", "a\nb", "no_answer", "x", {"no_answer": 1}, "", ("c.",), (example,)
    )
    assert all("\n" not in line and "\x1b" not in line and "\u202e" not in line for line in found.sentences())
    assert len(example.text) == 200
