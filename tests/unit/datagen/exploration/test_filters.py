"""Of tasks that are alike the most confident one stays."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from treadle.agent.call_cache import NullCache
from treadle.agent.jobs.runner import cause_of
from treadle.core.errors import ConfigError
from treadle.datagen.exploration.drafts import Draft
from treadle.datagen.exploration.filters import (
    FILTERS,
    DraftFilter,
    EmbeddingFilter,
    LexicalFilter,
    jaccard,
    words_of,
)
from treadle.datagen.exploration.jobs import FilterJob
from treadle.datagen.exploration.work import JobWorker

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def draft(query: str, confidence: float = 0.5, seed: str = "s") -> Draft:
    return Draft(seed, query, (query,), confidence)


def queries(drafts: Sequence[Draft]) -> list[str]:
    return [one.query for one in drafts]


@pytest.mark.covers("service-29")
def test_near_duplicates_are_reduced_to_the_most_confident() -> None:
    # Eight of ten words in common: 0.8.
    nine, other = " ".join(WORDS[:9]), " ".join([*WORDS[:8], "nine", "zero"])
    assert jaccard(words_of(nine), words_of(other)) == 0.9
    ten, far = " ".join(WORDS[:8]), " ".join([*WORDS[:8], "x", "y"])
    assert jaccard(words_of(ten), words_of(far)) == 0.8
    assert queries(LexicalFilter().kept([draft(ten, 0.4), draft(far, 0.9)])) == [far]
    assert queries(LexicalFilter().kept([draft(ten), draft(far)])) == [ten], "of equally confident ones the first"
    assert len(LexicalFilter(threshold=0.81).kept([draft(ten), draft(far)])) == 2
    assert queries(LexicalFilter().kept([draft("Pay O1.", 0.1), draft("pay, o1!", 0.2)])) == ["pay, o1!"]


def test_equal_words_on_other_states_are_other_tasks_within_seeds() -> None:
    both = [draft("Pay the cheapest order.", seed="a"), draft("Pay the cheapest order.", 0.9, seed="b")]
    assert LexicalFilter(within="seed").kept(both) == both
    assert LexicalFilter().kept(both) == both[1:]


def test_rare_words_find_the_same_as_all_comparisons() -> None:
    draw = random.Random(3)
    drafts = [
        draft(" ".join(draw.sample(WORDS, draw.randint(1, 8))) + f" {number % 40}", draw.random())
        for number in range(300)
    ]
    kept: list[Draft] = []
    for one in sorted(drafts, key=lambda one: -one.confidence):
        if all(jaccard(words_of(one.query), words_of(other.query)) < 0.6 for other in kept):
            kept.append(one)
    found = LexicalFilter(threshold=0.6).kept(drafts)
    assert {one.key for one in found} == {one.key for one in kept} and len(found) < len(drafts)


def test_meaning_is_compared_by_vectors() -> None:
    one = EmbeddingFilter.model_validate({"threshold": 0.9, "encoder": {"type": "hashing", "dimension": 512}})
    drafts = [
        draft("pay the bill of Ada", 0.4), draft("the bill of Ada pay", 0.5), draft("sell the old car", 0.1),
        draft("the bill of Ada pay", 0.9, seed="t"),
    ]  # fmt: skip
    assert queries(one.kept(drafts)) == ["sell the old car", "the bill of Ada pay"]
    assert len(one.model_copy(update={"within": "seed"}).kept(drafts)) == 3
    assert one.kept([]) == []


def test_filters_of_users_are_found_by_name() -> None:
    assert FILTERS.known()[:2] == ["lexical", "embedding"]
    with pytest.raises(ConfigError, match="unknown; known: lexical, embedding"):
        FILTERS.find("semantic")
    assert [type(FILTERS.parse(name)) for name in ("lexical", "embedding")] == [LexicalFilter, EmbeddingFilter]
    assert list(itertools.islice(FILTERS.shipped_settings(), 2)) == [LexicalFilter, EmbeddingFilter]


@pytest.mark.parametrize(
    ("query", "alike", "other"),
    [
        ("?!", " ?! ", "+="),
        ("把订单五的货款付清。", "把订单五的货款付清!", "取消所有未结的订单。"),
        ("请把订单五的全部货款立即付清", "请把订单五的全部货款立刻付清", "取消所有未结的订单"),
        # The consonants of both are the same; the vowels, which are marks, are not.
        ("मोल लो", "मोल, लो!", "माला ला"),
    ],
)
def test_queries_of_every_script_are_compared(query: str, alike: str, other: str) -> None:
    drafts = [draft(query, 0.9), draft(alike, 0.5), draft(other, 0.4)]
    assert queries(LexicalFilter().kept(drafts)) == [query, other]


def test_equal_queries_are_alike_at_the_largest_threshold() -> None:
    strict = EmbeddingFilter.model_validate({"threshold": 1.0, "encoder": {"type": "hashing", "dimension": 64}})
    texts = [" ".join(f"word{number * step}" for number in range(step + 2)) for step in range(1, 40)]
    drafts = [draft(text, seed=seed) for text in texts for seed in "st"]
    assert sorted(set(queries(strict.kept(drafts)))) == sorted(queries(strict.kept(drafts)))


class Exiting(DraftFilter):
    """Ends the process, as libraries do that parse arguments."""

    type: str = "exiting"

    def kept(self, drafts: Sequence[Draft]) -> list[Draft]:
        sys.exit(0)


async def test_exit_in_a_filter_is_an_error_of_its_job() -> None:
    given: Any = SimpleNamespace(options=SimpleNamespace(filters=[Exiting()]))
    nothing: Any = None
    worker = JobWorker(given, nothing, nothing, nothing)
    with pytest.raises(RuntimeError, match=r"tried to end the process \(SystemExit: 0\)") as caught:
        await worker.run(FilterJob("key", [draft("Pay it.")]), NullCache())
    assert "in kept" in cause_of(caught.value)
