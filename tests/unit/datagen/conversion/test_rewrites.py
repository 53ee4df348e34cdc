"""A rewrite keeps observations and answer byte for byte, and its calls follow its plan."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sweep import examples

from treadle.datagen.conversion.rewrites import REWRITE_FAULTS, RewriteRefused, SourceFacts, checked_rewrite
from treadle.datagen.texts.blocks import read_blocks
from treadle.environments.planning.dialect import planning_dialect

GAP = planning_dialect("gap", ("wiki_search",))
SOURCE = SourceFacts(
    ("Doc 1 (Title: A)\nborn in 1901 ", "Doc 1 (Title: B)\nborn in <b>1950</b>", "Doc 1: 49 years"), "A"
)
PLAN = """<plan>
T1: birth year of the director of film A
- Dependencies: none
T2: birth year of the director of film B
- Dependencies: none
T3: age difference of the directors
- Dependencies: T1, T2
</plan>"""


def seen(*numbers: int) -> str:
    return "\n".join(f"<observation>\n{SOURCE.observations[number]}\n</observation>" for number in numbers)


GOOD = f"""<think>two look-ups</think>
{PLAN}
<wiki_search>T1: director of film A birth year | T2: director of film B birth year</wiki_search>
{seen(0, 1)}
<think>now the difference</think>
<wiki_search>T3: age difference 1901 1950</wiki_search>
{seen(2)}
<think>A is older</think>
<answer>A</answer>"""


def reason(reply: str, source: SourceFacts = SOURCE) -> str:
    with pytest.raises(RewriteRefused) as caught:
        checked_rewrite(reply, source, GAP)
    assert caught.value.reason in REWRITE_FAULTS and caught.value.detail
    return caught.value.reason


def test_rewrite_is_written_as_a_rollout_writes_it() -> None:
    made = checked_rewrite(GOOD, SOURCE, GAP)
    assert (made.num_searches, made.widths, [node.id for node in made.nodes]) == (3, (2, 1), ["T1", "T2", "T3"])
    blocks, fault = read_blocks(made.text)
    assert not fault
    observed = [block.body for block in blocks if block.name == "observation"]
    assert observed == [
        f"\n[{call}]\n{text}\n"
        for call, text in zip(
            (
                "t0.call_wiki_search_0_0, task T1",
                "t0.call_wiki_search_0_1, task T2",
                "t1.call_wiki_search_0_0, task T3",
            ),
            SOURCE.observations,
            strict=True,
        )
    ]
    assert made.text.endswith("<answer>A</answer>")
    assert checked_rewrite(made.text, SOURCE, GAP) == made, "labels and layout are not the teacher's to decide"


@pytest.mark.covers("planning-30")
def test_one_changed_character_of_an_observation_is_refused() -> None:
    assert reason(GOOD.replace("born in 1901", "born in 1902")) == "observation_changed"
    assert reason(GOOD.replace("Title: B", "title: B")) == "observation_changed"
    assert reason(GOOD.replace(seen(2), seen(1))) == "observation_missing"


@pytest.mark.covers("planning-30")
def test_dropped_or_broken_plan_is_refused() -> None:
    assert reason(GOOD.replace(PLAN, "")) == "no_plan"
    assert reason(GOOD.replace("Dependencies: T1, T2", "Dependencies: T9")) == "bad_plan"
    assert reason(GOOD.replace("film A\n- Dependencies: none", "film A\n- Dependencies: T3")) == "bad_plan"
    assert reason(GOOD.replace("<answer>", f"{PLAN}<answer>")) == "several_plans"


@pytest.mark.covers("planning-30")
def test_query_before_the_results_it_needs_is_refused() -> None:
    early = GOOD.replace(" | T2: director", " | T3: difference").replace("<wiki_search>T3: age", "<wiki_search>T2: age")
    assert reason(early) == "call_before_inputs"
    together = GOOD.replace("film B birth year</wiki_search>", "film B birth year | T3: age difference</wiki_search>")
    together = together.replace(f"{seen(0, 1)}\n<think>now", f"{seen(0, 1, 2)}\n<think>now")
    together = together.replace(f"<wiki_search>T3: age difference 1901 1950</wiki_search>\n{seen(2)}", "")
    together = together.replace("<think>now the difference</think>\n", "")
    assert reason(together) == "call_before_inputs"
    unlabelled = GOOD
    for label, word in (("T1: ", "director"), ("T2: ", "director"), ("<wiki_search>T3: ", "age")):
        unlabelled = unlabelled.replace(label + word, label[: label.find("T")] + word)
    assert checked_rewrite(unlabelled, SOURCE, GAP).widths == (2, 1), "a query without a label is told by its words"


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (GOOD.replace("<wiki_search>T3: age", "<wiki_search>T7: age"), "query_not_in_plan"),
        (GOOD.replace("T3: age difference 1901 1950", "capital of Peru"), "query_not_in_plan"),
        (GOOD.replace("<answer>A</answer>", "<answer>B</answer>"), "answer_changed"),
        (GOOD.replace("<answer>A</answer>", ""), "no_answer"),
        (GOOD.replace("<think>now the difference</think>", ""), "no_think"),
        (GOOD.replace(" | T2: director of film B birth year", ""), "observation_count"),
        (GOOD.replace("<think>two", "Sure! <think>two"), "text_outside"),
        (GOOD.replace("</plan>", ""), "nested"),
        (GOOD.replace("<think>two look-ups</think>", "<think>two"), "nested"),
        (GOOD + "<think>", "unbalanced"),
        (GOOD.replace("T3: age difference 1901 1950", " | "), "empty_query"),
        (GOOD.replace("wiki_search>", "web_search>"), "unknown_call"),
        (f"<think>x</think>{PLAN}<answer>A</answer>", "no_search"),
        ("", "no_plan"),
    ],
)
def test_each_fault_has_its_reason(reply: str, expected: str) -> None:
    assert reason(reply) == expected


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.sampled_from([*GOOD.split("\n"), "<observation>", "</think>", "|", "\n"]), max_size=30))
def test_any_reply_is_a_rewrite_with_all_observations_or_refused(lines: list[str]) -> None:
    try:
        made = checked_rewrite("\n".join(lines), SOURCE, GAP)
    except RewriteRefused:
        return
    assert all(text in made.text for text in SOURCE.observations) and f"<answer>{SOURCE.answer}</answer>" in made.text
