"""Trimmed contexts of web agents: what stays, what each request shows, and that training sees the same."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.rollouts.rollout_bench import load
from support.sweep import examples
from support.tables.trimmed_rollouts import ANSWER, PLAN, REFLECTION, Model, Search, asking, mixed, played

from treadle.agent.contract import Task
from treadle.agent.dialects.base import Segment
from treadle.agent.token_ids import ORIGIN_SAMPLED
from treadle.agent.trajectory import Trajectory, by_sample
from treadle.agent.trimming import Trimming
from treadle.core.chat import ChatTokenizer
from treadle.core.config import semantic_dump
from treadle.environments.planning.calls import DUPLICATE
from treadle.environments.planning.guards import REPEATED
from treadle.environments.planning.settings import PlanningSettings
from treadle.environments.rollouts.rows import row_of, trajectory_of


def check_exact(made: Trajectory, model: Model) -> None:
    """Every sampled id is in one sample, behind exactly what the model saw when it sampled it."""
    saw = []
    for sample in made.samples:
        assert len(sample.ids) == len(sample.origins)
        ends = [*sample.turn_starts[1:], len(sample.ids)]
        for start, end in zip(sample.turn_starts, ends, strict=True):
            saw.append([*sample.prompt_ids, *sample.ids[:start]])
            own = [id for id, by in zip(sample.ids, sample.origins, strict=True) if by == ORIGIN_SAMPLED]
            assert own
            sampled = [
                id
                for id, by in zip(sample.ids[start:end], sample.origins[start:end], strict=True)
                if by == ORIGIN_SAMPLED
            ]
            assert sampled == list(model.sampled[len(saw) - 1][: len(sampled)])
    assert saw == model.saw
    num_sampled = sum(sample.origins.count(ORIGIN_SAMPLED) for sample in made.samples)
    assert num_sampled <= sum(map(len, model.sampled))


def check_segments(made: Trajectory, tokenizer: ChatTokenizer) -> None:
    """Segments cover the ids of their own sample, and their text is that of the rollout."""
    groups = by_sample(made.segments)
    assert len(groups) == len(made.samples)
    for group, sample in zip(groups, made.samples, strict=True):
        assert [one.start for one in group] == [0, *(one.end for one in group[:-1])]
        assert group[-1].end == len(sample.ids)
        assert "".join(one.text for one in group) == tokenizer.decode(sample.ids)
    assert "".join(one.text for one in made.segments) == made.text


@pytest.mark.parametrize("name", ["qwen", "smollm2"])
def test_a_trimmed_request_shows_plans_reflections_and_the_latest_segments_in_their_order(name: str) -> None:
    tokenizer = load(name)
    model = Model([*mixed(8), ANSWER], tokenizer)
    made = played(model, 900)
    assert made.status == "answered" and len(made.samples) > 1
    check_exact(made, model)
    check_segments(made, tokenizer)
    last = tokenizer.decode(model.saw[-1])
    assert last.count("<plan>") == 1 and last.count("<reflection>") == 4
    assert last.index("<plan>") < last.index("<reflection>") < last.index("fact7")
    assert "fact0" not in last and "fact7" in last
    assert all(900 - len(prompt) >= 90 for prompt in model.saw), "the reserve is kept, up to tokens cut apart"
    assert max(map(len, model.saw)) > 700, "no more than needed is left out"


def test_without_the_key_a_full_context_ends_the_rollout_and_digests_are_those_from_before_it() -> None:
    model = Model([*mixed(8), ANSWER], load("qwen"))
    made = played(model, 900, trim_reserve_tokens=None)
    assert made.status == "context_full" and len(made.samples) == 1
    settings = PlanningSettings(dialect="web")
    assert settings.trimming is None and "trim_reserve_tokens" not in semantic_dump(settings)
    assert PlanningSettings(dialect="web", trim_reserve_tokens=9).digest() != settings.digest()


@given(
    turns=st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 120)), min_size=1, max_size=10),
    window=st.integers(150, 1200),
    reserve=st.integers(1, 300),
    name=st.sampled_from(["qwen", "smollm2"]),
    hint=st.sampled_from(["", "A hint."]),
)
@hypothesis_settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=examples(60))
def test_every_sampled_id_is_trained_once_behind_what_the_model_saw(
    turns: list[tuple[bool, bool, int]], window: int, reserve: int, name: str, hint: str
) -> None:
    tokenizer = load(name)
    texts = [
        (PLAN if plans else "") + (REFLECTION if reflects else "") + asking(number, words)
        for number, (plans, reflects, words) in enumerate(turns)
    ]
    model = Model([*texts, ANSWER], tokenizer)
    made = played(model, window, reserve=reserve, hint=hint)
    check_exact(made, model)
    if made.text:
        check_segments(made, tokenizer)
    assert all(len(prompt) < window for prompt in model.saw)
    for sample in made.samples:
        assert (sample.training_prompt_ids is not None) == bool(hint)
        if hint:
            first, plain = made.samples[0].prompt_ids, made.samples[0].training_prompt_ids or []
            carried = sample.prompt_ids[len(first) :]
            assert sample.prompt_ids[: len(first)] == first and sample.prompt_ids_for_training == [*plain, *carried]
    row = row_of({}, made, "", "")
    again = trajectory_of({**row, "rollout_key": "k"})
    assert [one.ids for one in again.samples] == [one.ids for one in made.samples] and again.segments == made.segments
    for stored in row["samples"]:
        ends = [span["end"] for span in stored["spans"]]
        assert not ends or ends[-1] == len(stored["ids"])


def prompts_of(made: Trajectory) -> list[list[int]]:
    return [[*one.prompt_ids, *one.ids[:start]] for one in made.samples for start in one.turn_starts]


class Units(dict[str, bytes]):
    """Cache of one rollout."""

    def append(self, unit: str, value: bytes) -> None:
        assert unit not in self
        self[unit] = value


@pytest.mark.parametrize("num_kept", range(0, 30, 3))
def test_a_resumed_rollout_shows_what_it_showed_before_whatever_the_window_is_now(num_kept: int) -> None:
    tokenizer, units = load("qwen"), Units()
    undisturbed = played(Model([*mixed(8), ANSWER], tokenizer), 900, cache=units)
    assert sum(name.startswith("context-") for name in units) == len(undisturbed.samples) - 1
    kept = Units(dict(list(units.items())[:num_kept]))
    said = sum(name.startswith("llm-") for name in kept)
    texts = [*mixed(8), ANSWER]
    again = played(Model(texts[said:], tokenizer), 900, cache=Units(kept))
    assert row_of({}, again, "", "") == row_of({}, undisturbed, "", "")
    wider = played(Model(texts[said:], tokenizer), 4_000, cache=Units(kept))
    num_trims = sum(name.startswith("context-") for name in kept)
    assert len(wider.samples) == num_trims + 1 and wider.text == undisturbed.text
    done = [one.prompt_ids for one in wider.samples]
    assert done == [one.prompt_ids for one in undisturbed.samples[: num_trims + 1]]
    narrower = played(Model(texts[said:], tokenizer), 860, cache=Units(kept))
    assert prompts_of(narrower)[:said] == prompts_of(undisturbed)[:said]


@pytest.mark.parametrize("over_chat", [False, True])
def test_without_ids_requests_are_trimmed_by_estimates(over_chat: bool) -> None:
    model = Model([*mixed(8), ANSWER])
    made = played(model, 700 if over_chat else 2_000, over_chat=over_chat)
    assert made.status == "answered" and len(made.samples) > 1
    assert all(sample.ids == [] == sample.prompt_ids for sample in made.samples)
    last = "".join(one["content"] for one in model.saw[-1]) if over_chat else model.saw[-1]
    assert "fact0" not in last and "fact7" in last and last.count("<plan>") == 1


def test_long_results_leave_a_turn_its_reserve_over_chat_too() -> None:
    """Until a service has counted a result, each of its characters may be a token."""
    model = Model([*mixed(6, 1_500), ANSWER])
    task = Task("q", "Who was it? " * 200)
    made = played(model, 8_000, over_chat=True, reserve=1_000, task=task)
    assert made.status == "answered" and len(made.samples) > 1
    assert set(model.asked) == {1_000}


def test_the_token_budget_counts_what_trims_left_out() -> None:
    turns = [*mixed(16), ANSWER]
    whole = played(Model(turns), 100_000, over_chat=True, max_trajectory_tokens=1_200, max_turns=20)
    made = played(Model(turns), 700, over_chat=True, max_trajectory_tokens=1_200, max_turns=20)
    assert (whole.status, made.status) == ("budget", "budget") and len(made.samples) > 2
    assert abs(made.num_turns - whole.num_turns) <= 1


def test_a_trimmed_conversation_has_no_two_messages_of_one_role_in_a_row() -> None:
    seen = set()
    for window in range(300, 420, 10):
        texts = [asking(number) for number in range(4)]
        model = Model([*texts, *(f"<think>x</think><crawl_page>u{one}</crawl_page>" for one in range(4)), ANSWER])
        played(model, window, over_chat=True, reserve=60)
        for messages in model.saw:
            roles = [message["role"] for message in messages]
            assert all(one != other for one, other in zip(roles, roles[1:], strict=False))
            seen.add("fact" in messages[0]["content"])
    assert seen == {True, False}, "some context begins with a result"


@pytest.mark.parametrize(("written", "note"), [("{} of 40", REPEATED), ("{}  of 40", DUPLICATE)])
def test_a_search_whose_result_was_left_out_may_be_made_again(written: str, note: str) -> None:
    tokenizer, search = load("qwen"), Search()
    again = [f"{REFLECTION}<think>again</think><web_search>{written.format(one)}</web_search>" for one in (0, 6)]
    made = played(Model([*mixed(8), *again, ANSWER], tokenizer), 900, search=search)
    assert [(call.status, call.note) for call in made.calls[-2:]] == [("ok", ""), ("refused", note)]
    assert search.asked[-1] == written.format(0)


def segments_of(*kinds: str) -> list[Segment]:
    return [Segment(kind, kind, 0, 0) for kind in kinds]


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (100, [0, 1, 2, 3, 4, 5, 6]),
        (59, [1, 3, 4, 5, 6]),
        (50, [1, 3, 4, 5, 6]),
        (49, [1, 3, 5, 6]),
        (30, [1, 3, 6]),
        (0, [1, 3, 6]),
    ],
)
def test_kept_kinds_and_unread_results_stay_and_then_the_most_recent_that_fit(room: int, expected: list[int]) -> None:
    segments = segments_of("think", "plan", "result", "reflection", "think", "web_search", "result")
    rule = Trimming(1, frozenset({"plan", "reflection"}))
    assert rule.kept(segments, [10] * 7, room) == expected
