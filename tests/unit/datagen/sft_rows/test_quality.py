"""The quality gate, the repairs before it, and the selection after it."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.qwen_tokenizer import qwen_tokenizer
from support.sweep import examples

from treadle.agent.dialects.base import Segment, render
from treadle.agent.dialects.free import FreeDialect
from treadle.agent.dialects.tag_faults import format_faults
from treadle.agent.dialects.tags import TOOL_DIALECT, tokenise
from treadle.agent.token_ids import ORIGIN_REENCODED, ORIGIN_SAMPLED, ORIGIN_SYSTEM
from treadle.core.chat import ChatTokenizer
from treadle.core.store.buckets import Buckets, draw
from treadle.datagen.pools.pool import is_near_duplicate
from treadle.datagen.sft_rows.quality import REASONS, Candidate, reasons_against
from treadle.datagen.sft_rows.repairs import repair_turn
from treadle.datagen.sft_rows.selection import DECISIONS, TrajectorySelector, quotas, spread

RIGHT = r"<think>a</think><search>q</search>{}<think>b</think><answer>\boxed{1}</answer>"
ROOM = {"cutoff_tokens": 100}
NUM_END_IDS = 2


def text_segments(text: str, *results: str) -> list[Segment]:
    segments: list[Segment] = []
    for index, part in enumerate(text.split("{}")):
        if index:
            segments.append(Segment("result", f"<result>{results[index - 1] if results else 'found'}</result>", 0, 0))
        segments += [Segment(one.kind, one.text, 0, 0) for one in tokenise(part, model_text=True, dialect=TOOL_DIALECT)]
    return segments


def candidate(text: str = RIGHT, *results: str, **columns: Any) -> Candidate:
    given = {"status": "answered", "correct": True, "calls": [("search", "ok")] * text.count("{}")}
    return Candidate(**{"segments": text_segments(text, *results), **given, **columns})


@pytest.mark.covers("flywheel-28")
@pytest.mark.parametrize(
    ("one", "reasons"),
    [
        (candidate(), []),
        (candidate(RIGHT, "ValueError: an error; Execution Timeout; Tool execute failed"), []),
        (candidate(correct=False), ["wrong_answer"]),
        (candidate(correct=None), ["unknown_verdict"]),
        (candidate(r"<think>a<answer>\boxed{1}</answer>"), ["think_unbalanced"]),
        (candidate(r"<think>a</think><answer>\boxed{1}, \boxed{2}</answer>"), ["boxed_count"]),
        (
            candidate(r"<think>a</think><search>q</search><answer>\boxed{1}</answer>", calls=[("search", "refused")]),
            ["call_without_result", "call_refused"],
        ),
        (candidate(RIGHT, " ", calls=[("search", "empty")]), ["result_empty"]),
        (candidate(calls=[("search", "timeout")]), ["result_timeout"]),
        (candidate(calls=[("search", "error")]), ["result_error"]),
        (candidate(status="max_turns"), ["unfinished"]),
        (candidate(status="finished"), []),
        (candidate(status="finished", truncated=True), ["unfinished"]),
        (candidate(held_out=True, correct=False), ["held_out", "wrong_answer"]),
        (candidate(status="length", correct=False), ["unfinished", "wrong_answer"]),
        (candidate("", status="failed", correct=None), ["failed"]),
    ],
)
def test_each_rule_rejects_with_its_own_reason(one: Candidate, reasons: list[str]) -> None:
    assert reasons_against(one, dialect=TOOL_DIALECT, **ROOM) == reasons
    assert set(reasons) <= set(REASONS)


def test_dialogue_in_which_the_model_wrote_nothing_is_no_row() -> None:
    said = [Segment("frame", "<|im_end|>", 0, 0), Segment("user", "Right.", 0, 0)]
    assert reasons_against(candidate(segments=said, status="finished"), dialect=FreeDialect(), **ROOM) == ["no_text"]
    spoke = [Segment("text", "37", 0, 0), *said]
    assert reasons_against(candidate(segments=spoke, status="finished"), dialect=FreeDialect(), **ROOM) == []


def ids_of(one: Candidate, *, num_prompt_ids: int = 10) -> Candidate:
    """Return the same candidate with one id per character."""
    segments, position = [], 0
    origins = b""
    for segment in one.segments:
        end = position + len(segment.text)
        segments.append(Segment(segment.kind, segment.text, position, end))
        origins += bytes([ORIGIN_SYSTEM if segment.kind == "result" else ORIGIN_SAMPLED]) * len(segment.text)
        position = end
    length = num_prompt_ids + position + NUM_END_IDS
    return Candidate(one.status, one.correct, segments, one.calls, num_prompt_ids, position, origins, length)


@pytest.mark.covers("flywheel-28")
def test_length_counts_prompt_turn_and_end_of_turn() -> None:
    one = ids_of(candidate())
    length = 10 + one.num_output_ids + NUM_END_IDS
    assert reasons_against(one, cutoff_tokens=length, dialect=TOOL_DIALECT) == []
    assert reasons_against(one, cutoff_tokens=length - 1, dialect=TOOL_DIALECT) == ["too_long"]
    assert reasons_against(candidate(), cutoff_tokens=1, dialect=TOOL_DIALECT) == []


@pytest.mark.parametrize("change", ["origin_of_result", "origin_of_text", "short", "gap", "no_prompt"])
def test_ids_that_do_not_fit_the_segments_are_refused(change: str) -> None:
    one = ids_of(candidate())
    origins, segments, prompt, count = bytearray(one.origins), list(one.segments), 10, one.num_output_ids
    result = next(segment for segment in segments if segment.kind == "result")
    if change == "origin_of_result":
        origins[result.start] = ORIGIN_SAMPLED
    elif change == "origin_of_text":
        origins[0] = ORIGIN_SYSTEM
    elif change == "short":
        count += 1
    elif change == "gap":
        segments[0] = Segment(segments[0].kind, segments[0].text, 0, segments[0].end - 1)
    else:
        prompt = 0
    changed = Candidate(one.status, one.correct, segments, one.calls, prompt, count, bytes(origins))
    assert reasons_against(changed, cutoff_tokens=10_000, dialect=TOOL_DIALECT) == ["ids_differ"]


@pytest.mark.parametrize(
    ("text", "repaired_turn"),
    [
        (r"So<answer>\boxed{1}</answer>", r"<think>So</think><answer>\boxed{1}</answer>"),
        (
            r"<think>a</think><search>q</search>{}so<answer>\boxed{1}</answer>",
            r"<think>a</think><search>q</search>{}<think>so</think><answer>\boxed{1}</answer>",
        ),
        (r"<think>a<search>q</search>{}b</think><answer>\boxed{1}</answer>",
         r"<think>a</think><search>q</search>{}<think>b</think><answer>\boxed{1}</answer>"),
        (r"<think></think><think>a</think><answer>\boxed{1}</answer>", r"<think>a</think><answer>\boxed{1}</answer>"),
        (
            r"<think>a</think><think>Wait.</think><answer>\boxed{1}</answer>",
            "<think>a\nWait.</think><answer>\\boxed{1}</answer>",
        ),
    ],
)  # fmt: skip
def test_thought_markers_are_repaired(text: str, repaired_turn: str) -> None:
    segments = text_segments(text)
    assert format_faults(segments, TOOL_DIALECT)
    made = repair_turn(segments, [], [], None, TOOL_DIALECT)
    assert made is not None
    assert made.text == render(text_segments(repaired_turn))
    assert format_faults(made.segments, TOOL_DIALECT) == []


@pytest.mark.parametrize(
    "text",
    [
        RIGHT,
        r"<answer>\boxed{1}</answer>",
        r"<think></think><answer>\boxed{1}</answer>",
        "<think>a",
        r"<think>a</think><answer>\boxed{1}</answer> so",
        r"<search>q<answer>\boxed{1}</answer>",
    ],
)
def test_unrepairable_or_valid_turns_are_unchanged(text: str) -> None:
    assert repair_turn(text_segments(text), [], [], None, TOOL_DIALECT) is None


@cache
def qwen() -> ChatTokenizer:
    return ChatTokenizer.load(qwen_tokenizer())


def encoded(text: str, *results: str) -> tuple[list[Segment], list[int], list[int]]:
    """Segments, ids and origins as a rollout makes them."""
    segments: list[Segment] = []
    ids: list[int] = []
    origins: list[int] = []
    for index, part in enumerate(text.split("{}")):
        if index:
            block = qwen().encode(f"<result>{results[index - 1]}</result>")
            segments.append(Segment("result", qwen().decode(block), len(ids), len(ids) + len(block)))
            ids, origins = ids + block, origins + [ORIGIN_SYSTEM] * len(block)
        new = qwen().encode(part)
        pieces = tokenise(part, model_text=True, dialect=TOOL_DIALECT)
        ends = [*qwen().counts_before(new, part, [piece.end for piece in pieces[:-1]]), len(new)]
        for piece, start, end in zip(pieces, [0, *ends[:-1]], ends, strict=True):
            segments.append(Segment(piece.kind, piece.text, len(ids) + start, len(ids) + end))
        ids, origins = ids + new, origins + [ORIGIN_SAMPLED] * len(new)
    return segments, ids, origins


def test_repair_leaves_other_spans_unchanged_id_for_id() -> None:
    text = (
        r"<think>a</think>"
        "\n"
        r"<search>q</search>{}so it is<python>1</python>{}<think>c</think><answer>\boxed{1}</answer>"
    )
    segments, ids, origins = encoded(text, "found", "1")
    repaired_turn = repair_turn(segments, ids, origins, qwen(), TOOL_DIALECT)
    assert repaired_turn is not None
    assert repaired_turn.text == render(segments).replace("so it is", "<think>so it is</think>")
    assert qwen().decode(repaired_turn.ids) == repaired_turn.text
    first, last = segments[3], next(segment for segment in reversed(segments) if segment.kind == "result")
    assert repaired_turn.ids[: first.end] == ids[: first.end]
    tail = len(ids) - last.start
    assert repaired_turn.ids[-tail:] == ids[-tail:]
    again = [index for index, origin in enumerate(repaired_turn.origins) if origin == ORIGIN_REENCODED]
    assert again == list(range(first.end, len(repaired_turn.ids) - tail))
    one = Candidate("answered", True, repaired_turn.segments, [("search", "ok"), ("python", "ok")],
        5, len(repaired_turn.ids),
                    bytes(repaired_turn.origins))  # fmt: skip
    assert reasons_against(one, cutoff_tokens=10_000, dialect=TOOL_DIALECT) == []


def dealt(counts: list[int], limit: int) -> list[int]:
    """Deal rows in turn, which defines `quotas`."""
    shares = [0] * len(counts)
    while sum(shares) < min(limit, sum(counts)):
        for index, count in enumerate(counts):
            if shares[index] < count and sum(shares) < limit:
                shares[index] += 1
    return shares


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 40))
def test_quotas_equal_round_robin_dealing(counts: list[int], limit: int) -> None:
    assert quotas(counts, limit) == dealt(counts, limit)


def test_members_are_taken_from_the_front_of_their_stratum() -> None:
    assert spread({"b": [5, 1, 2], "a": [9], "c": []}, 3) == [5, 1, 9]


TRAJECTORIES = st.lists(
    st.tuples(
        st.sampled_from(["q1", "q2", "q3"]),
        st.sampled_from(["d1", "d2"]),
        st.sampled_from(["initial", "hint_tail", "rerollout"]),
        st.integers(0, 3),
        st.sampled_from(["it is one", "it  is\none", "it is two", "it is twoo", "a wholly different text"]),
    ),
    max_size=24,
)


@hypothesis_settings(
    max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    TRAJECTORIES,
    st.sampled_from([1.0, 0.5]),
    st.one_of(st.none(), st.integers(1, 3)),
    st.one_of(st.none(), st.integers(1, 8)),
    st.integers(0, 3),
    st.sampled_from([1, 50_000, 5_000_000]),
)
def test_selection_equals_its_definition(
    tmp_path_factory: pytest.TempPathFactory,
    trajectories: list[tuple[str, str, str, int, str]],
    near: float,
    per_question: int | None,
    max_rows: int | None,
    seed: int,
    num_expected: int,
) -> None:
    selection = TrajectorySelector(
        tmp_path_factory.mktemp("selection") / "q",
        num_expected,
        seed=seed,
        near_duplicate=near,
        max_per_question=per_question,
        max_rows=max_rows,
    )
    with selection:
        for number, (question, dataset, operator, calls, text) in enumerate(trajectories):
            selection.add(number, question, f"r{number}", (dataset, operator, calls), text)
        decisions = selection.decisions()
    assert decisions.numbers.tolist() == list(range(len(trajectories)))
    assert [DECISIONS[code] for code in decisions.codes] == by_definition(
        trajectories, near, per_question, max_rows, seed
    )
    middle = len(trajectories) // 2
    assert list(decisions.between(middle, len(trajectories))) == list(enumerate(decisions.codes.tolist()))[middle:]


def by_definition(
    trajectories: list[tuple[str, str, str, int, str]],
    near: float,
    per_question: int | None,
    max_rows: int | None,
    seed: int,
) -> list[str]:
    """Quadratic, in memory, word by word."""
    decisions = ["row"] * len(trajectories)
    kept: dict[str, list[int]] = defaultdict(list)
    for number, (question, *_, text) in enumerate(trajectories):
        if any(is_near_duplicate(text, trajectories[other][-1], 1.0) for other in kept[question]):
            decisions[number] = "duplicate"
        elif any(is_near_duplicate(text, trajectories[other][-1], near) for other in kept[question]):
            decisions[number] = "near_duplicate"
        else:
            kept[question].append(number)

    def stratum(number: int) -> list[str]:
        return [str(part) for part in trajectories[number][1:4]]

    def limited(numbers: list[int], limit: int | None, purpose: str, over: str, *scope: str) -> None:
        if limit is None:
            return
        strata: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for number in sorted(numbers, key=lambda number: draw(seed, purpose, f"r{number}")):
            strata[tuple(stratum(number))].append(number)
        hands = sorted(strata.items(), key=lambda item: draw(seed, "stratum", *scope, *item[0]))
        chosen: set[int] = set()
        while len(chosen) < min(limit, len(numbers)):
            for _, hand in hands:
                if hand and len(chosen) < limit:
                    chosen.add(hand.pop(0))
        for number in numbers:
            if number not in chosen:
                decisions[number] = over

    for question, numbers in kept.items():
        limited(numbers, per_question, "question", "over_question_limit", question)
    rows = [number for number, decision in enumerate(decisions) if decision == "row"]
    limited(rows, max_rows, "row", "over_row_limit")
    return decisions


def test_row_limit_keeps_the_call_histogram_broad(tmp_path: Path) -> None:
    with TrajectorySelector(tmp_path / "q", 1000, seed=1, max_rows=40) as selection:
        calls = [0] * 500 + [1] * 300 + [2] * 30 + [5] * 4
        for number, count in enumerate(calls):
            selection.add(number, f"q{number}", f"r{number}", ("d", "initial", count), str(number))
        decisions = selection.decisions()
    taken = Counter(calls[number] for number, code in zip(decisions.numbers, decisions.codes, strict=True) if not code)
    assert sum(taken.values()) == 40
    assert taken[5] == 4
    assert {taken[0], taken[1], taken[2]} == {12}


def test_lines_are_returned_bucket_by_bucket_in_order(tmp_path: Path) -> None:
    with Buckets(tmp_path / "b", 4) as buckets:
        numbers = [draw(0, str(index)) for index in range(100)]
        for number in numbers:
            buckets.add(buckets.of(number), f"{number:016x}".encode())
        lines = [line for bucket in buckets for line in sorted(bucket)]
        assert lines == [f"{number:016x}".encode() for number in sorted(numbers)]
        assert buckets.of(2**64 - 1) == 3
    assert list((tmp_path / "b").iterdir()) == []
