"""Choose among right trajectories: long enough, without repetition, with self-critique, parallel and sequential ones.

The rules are those of arXiv 2508.13167 (complexity, quality, reflection, error correction) and of arXiv 2510.25320
(searches, length, share of parallel ones). Documented in docs/behaviour/sft_rows.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from treadle.core.store.buckets import draw
from treadle.datagen.texts.blocks import ANSWER, CALLS, TEXT
from treadle.datagen.texts.settings import FilterOptions
from treadle.environments.planning.batch import split_label, split_queries
from treadle.environments.planning.dialect import SPLITTING

RULES = {
    "too_simple": "there are fewer plans, calls, reflections and checks than min_interactions",
    "too_few_searches": "there are fewer queries than min_searches",
    "too_many_tokens": "the text after the prompt has more tokens than max_text_tokens",
    "repeated_call": "a call repeats an earlier one",
    "violation": "the order of blocks breaks a rule of the dialect",
    "unreflected": "there is no reflection and no check, and it was not drawn",
}
"""Description of each rule by its code."""
OVER_RATIO = "over_ratio"
"""Reason for leaving out a trajectory because `parallel_share` allows fewer of its kind, parallel or sequential."""

_SCORE = re.compile(r"\b([1-4])\b")
_NO_INTERACTION = frozenset({"think", ANSWER, TEXT, "result"})


class Step(NamedTuple):
    """One block: word of its tag, and the text inside; `result` for an observation of any tag."""

    name: str
    body: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a trajectory that rules depend on.

    Attributes:
        num_interactions: Number of plans, calls, reflections and checks.
        calls: Number of calls by tag; each query of a tag that splits at bars is one.
        num_searches: Number of these that search.
        widest: Largest number of queries or calls in one batch.
        repeats_call: Whether a call repeats an earlier one, apart from case and white space.
        is_reflected: Whether there is a reflection or a check.
        is_corrected: Whether the first check (`double_check`) gave the score 1 or 2 of 4.
    """

    num_interactions: int
    calls: Mapping[str, int]
    num_searches: int
    widest: int
    repeats_call: bool
    is_reflected: bool
    is_corrected: bool

    @property
    def num_calls(self) -> int:
        """Number of all calls."""
        return sum(self.calls.values())

    @property
    def is_parallel(self) -> bool:
        """Whether any batch has several calls."""
        return self.widest > 1

    @classmethod
    def of(cls, steps: Sequence[Step], calls: Iterable[str] = CALLS) -> Facts:
        """Return the facts about the blocks of a trajectory; `calls` are the tags that call a tool.

        Calls that directly follow each other are one batch.
        """
        known, seen, counts = frozenset(calls), set[tuple[str, str]](), Counter[str]()
        widest = width = 0
        repeats = False
        for step in steps:
            if step.name not in known:
                width = 0
                continue
            queries = queries_of(step)
            width += len(queries)
            widest = max(widest, width)
            counts[step.name] += len(queries)
            for query in queries:
                call = (step.name, folded(query))
                repeats |= call in seen
                seen.add(call)
        checks = [step.body for step in steps if step.name == "double_check"]
        score = _SCORE.search(checks[0]) if checks else None
        return cls(
            num_interactions=sum(step.name not in _NO_INTERACTION for step in steps),
            calls=counts,
            num_searches=sum(count for name, count in counts.items() if name.endswith("search")),
            widest=widest,
            repeats_call=repeats,
            is_reflected=bool(checks) or any(step.name == "reflection" for step in steps),
            is_corrected=score is not None and int(score[1]) <= 2,
        )


def facts_of_rollout(steps: Sequence[Step], calls: Sequence[tuple[str, str, int]]) -> Facts:
    """Return the facts about a rollout: its blocks without results, and (tool, argument, turn) of its calls."""
    said = Facts.of(steps, calls=())
    asked = [(tool, folded(argument)) for tool, argument, _ in calls]
    counts = Counter(tool for tool, _ in asked)
    return replace(
        said,
        calls=counts,
        num_searches=sum(count for name, count in counts.items() if name.endswith("search")),
        widest=max(Counter(turn for _, _, turn in calls).values(), default=0),
        repeats_call=len(set(asked)) < len(asked),
    )


def queries_of(step: Step) -> list[str]:
    """Return the queries of a call without their labels; a tag that does not split at bars has one, its text."""
    if step.name in SPLITTING:
        return [split_label(query)[1] for query in split_queries(step.body)]
    return [step.body.strip()] if step.body.strip() else []


def folded(query: str) -> str:
    """Return a query as calls are compared: without differences of case and white space."""
    return " ".join(query.casefold().split())


@dataclass(frozen=True, slots=True)
class Filters:
    """Rules that choose among accepted trajectories; `seed` decides their random choices."""

    options: FilterOptions
    seed: int

    def reasons(self, key: str, facts: Facts, *, num_tokens: int = 0, violations: Sequence[str] = ()) -> list[str]:
        """Return the codes of the rules that reject a trajectory, in the order of RULES.

        `num_tokens` is the number of tokens after the prompt, 0 if it is unknown.
        """
        options = self.options
        found = {
            "too_simple": facts.num_interactions < options.min_interactions,
            "too_few_searches": facts.num_searches < options.min_searches,
            "too_many_tokens": options.max_text_tokens is not None and num_tokens > options.max_text_tokens,
            "repeated_call": options.drop_repeated_calls and facts.repeats_call,
            "violation": options.drop_violations and bool(violations),
            "unreflected": not facts.is_reflected and not self._is_drawn(key),
        }
        return [code for code in RULES if found[code]]

    def _is_drawn(self, key: str) -> bool:
        return draw(self.seed, "unreflected", key) < self.options.unreflected_share * 2**64

    def num_copies(self, facts: Facts) -> int:
        """Return the number of rows that an accepted trajectory becomes."""
        return self.options.corrected_copies if facts.is_corrected else 1


def copy_key(key: str, number: int) -> str:
    """Return the key of row `number` of a trajectory: the trajectory's key, ending in -2, -3, ... from number 1 on."""
    return f"{key}-{number + 1}" if number else key


def over_ratio(kinds: Mapping[str, bool], share: float | None, seed: int) -> set[str]:
    """Return the keys to leave out, so that `share` of the remaining ones are parallel.

    `kinds` maps each key to whether it is parallel. Only the kind of which there are too many is reduced, by draws that
    depend on seed and key; if one kind is missing, nothing is left out.
    """
    if share is None:
        return set()
    apart = {is_parallel: [key for key, kind in kinds.items() if kind is is_parallel] for is_parallel in (True, False)}
    if not all(apart.values()):
        return set()
    most = {
        True: max(1, round(len(apart[False]) * share / (1.0 - share))),
        False: max(1, round(len(apart[True]) * (1.0 - share) / share)),
    }
    dropped: set[str] = set()
    for is_parallel, keys in apart.items():
        ranked = sorted(keys, key=lambda key: (draw(seed, "ratio", key), key))
        dropped.update(ranked[most[is_parallel] :])
    return dropped
