"""What a model wrote, in the ids of a rollout and in its messages: masks, turns, ends, and what cannot be used."""

from __future__ import annotations

from typing import Any

from treadle.agent.token_ids import ORIGIN_REENCODED, ORIGIN_SAMPLED, ORIGIN_SYSTEM
from treadle.agent.trajectory import Sample
from treadle.rl.preferences.conversations import conversation_before
from treadle.rl.preferences.critic_prompts import told_messages
from treadle.rl.preferences.token_spans import only_sample, spans_of_sample, starts_of_turns

S, M, R = ORIGIN_SYSTEM, ORIGIN_SAMPLED, ORIGIN_REENCODED


def sample_row(origins: list[int]) -> dict[str, Any]:
    return {
        "prompt_ids": [1],
        "training_prompt_ids": None,
        "ids": list(range(len(origins))),
        "origins": origins,
        "turn_starts": [0],
    }


def test_span_ends_with_the_last_sampled_id_and_counts_turns_that_have_any() -> None:
    origins = [M, M, R, S, S, M, S, R, R, S]
    sample = Sample([7], list(range(10)), origins, [0, 5, 7])
    spans = spans_of_sample(sample)
    assert (spans.ids, spans.mask) == ([0, 1, 2, 3, 4, 5], [1, 1, 0, 0, 0, 1])
    assert spans.turns == [2, 1] and starts_of_turns(sample) == [0, 5]
    nothing = spans_of_sample(Sample([7], [1, 2], [S, R], [0]))
    assert (nothing.ids, nothing.mask, nothing.turns) == ([], [], [])


def test_rollouts_without_a_single_sampled_sequence_are_named_by_their_reason() -> None:
    usable, _ = only_sample({"samples": [sample_row([M, S])]})
    assert usable is not None and usable.ids == [0, 1]
    for samples in (None, [], [sample_row([])], [sample_row([S, R])]):
        assert only_sample({"samples": samples}) == (None, "no_ids")
    assert only_sample({"samples": [sample_row([M])] * 2}) == (None, "several_contexts")


def test_conversation_before_a_turn_has_results_inside_turns_and_no_frames() -> None:
    kinds = [
        ("think", "a"),
        ("result", "r"),
        ("text", "b"),
        ("frame", "F"),
        ("user", "u"),
        ("text", "c"),
        ("text", "d"),
    ]
    segments = [{"kind": kind, "text": text, "start": place} for place, (kind, text) in enumerate(kinds)]
    first = [{"role": "user", "content": "hi"}]

    def before(num_ids: int) -> list[tuple[str, str]]:
        return [(one["role"], one["content"]) for one in conversation_before(first, segments, num_ids)]

    assert before(0) == [("user", "hi")]
    assert before(3) == [("user", "hi"), ("assistant", "arb")]
    assert before(5) == [("user", "hi"), ("assistant", "arb"), ("user", "u")]
    assert before(7) == [("user", "hi"), ("assistant", "arb"), ("user", "u"), ("assistant", "cd")]
    assert first == [{"role": "user", "content": "hi"}]


def test_statement_precedes_the_first_message() -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    assert told_messages(messages, "It is 3.") == [{"role": "system", "content": "It is 3.\n\nS"}, messages[1]]
    assert told_messages(messages, "") == messages
