"""Select the accepted trajectories that become rows: drop repetitions, then apply limits per question and in total.

If a limit applies, rows are taken in turn from each stratum until the limit is reached, so that rare operators and
numbers of calls are kept. The draw within a stratum depends only on the seed and the trajectory's key. Memory: the
trajectories of one bucket of questions, and about 21 bytes per accepted trajectory.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import orjson

from treadle.core.store.buckets import Buckets, bucket_count, draw
from treadle.datagen.pools.pool import is_near_duplicate
from treadle.datagen.texts.rules import OVER_RATIO, over_ratio

DECISIONS = ("row", "duplicate", "near_duplicate", "over_question_limit", "over_row_limit", OVER_RATIO)
"""Possible outcomes for an accepted trajectory; only one with the first outcome becomes a row."""
ROW, DUPLICATE, NEAR_DUPLICATE, OVER_QUESTION_LIMIT, OVER_ROW_LIMIT, OVER_SHARE = range(len(DECISIONS))

K = TypeVar("K", bound=Hashable)
Stratum = tuple[str, str, int]
"""Data set, operator, number of calls."""

_LINES_PER_BUCKET = 20_000


class Accepted(NamedTuple):
    """A trajectory that passed the quality gate. `number` is its position among all that were read."""

    number: int
    rollout_key: str
    stratum: int
    digest: str
    text: str


class Decisions(NamedTuple):
    """Outcomes of the accepted trajectories, by ascending `numbers` (int64); `codes` (uint8) index DECISIONS."""

    numbers: np.ndarray
    codes: np.ndarray

    def between(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Return (number, code) of the trajectories with numbers in [start, end)."""
        low, high = np.searchsorted(self.numbers, [start, end])
        return zip(self.numbers[low:high].tolist(), self.codes[low:high].tolist(), strict=True)

    def with_share(self, kinds: Mapping[int, tuple[str, bool]], share: float | None, seed: int) -> Decisions:
        """Return the outcomes after rows are left out so that `share` of the remaining ones are parallel.

        `kinds` maps the number of each trajectory to its key and whether it is parallel: several calls ran at once. If
        `share` is None, no row is left out.
        """
        taken = [number for number, code in zip(self.numbers.tolist(), self.codes.tolist(), strict=True) if code == ROW]
        dropped = over_ratio(dict(kinds[number] for number in taken), share, seed) if share is not None else set()
        over = [number for number in taken if dropped and kinds[number][0] in dropped]
        codes = self.codes.copy()
        codes[np.isin(self.numbers, over)] = OVER_SHARE
        return Decisions(self.numbers, codes)


def quotas(counts: Sequence[int], limit: int) -> list[int]:
    """Return how many members to take from each stratum if they are taken in turn, in this order, up to `limit`."""
    taken, left, ranked = 0, limit, sorted(counts)
    level = extra = 0
    for index, count in enumerate(ranked):
        level, extra = divmod(left - taken, len(ranked) - index)
        if count > level:
            break
        taken += count
    else:
        return list(counts)
    shares = []
    for count in counts:
        more = count > level and extra > 0
        extra -= more
        shares.append(min(count, level) + more)
    return shares


def spread(strata: Mapping[K, Sequence[int]], limit: int) -> list[int]:
    """Return `limit` members, taken in turn from the front of each stratum, in the order of the strata."""
    shares = quotas([len(members) for members in strata.values()], limit)
    return [number for members, share in zip(strata.values(), shares, strict=True) for number in members[:share]]


class TrajectorySelector:
    """Selector that takes accepted trajectories one by one, then decides on all of them.

    Of repeated trajectories of a question, the one with the lowest number is kept.
    """

    def __init__(
        self,
        folder: Path,
        num_trajectories: int,
        *,
        seed: int,
        near_duplicate: float = 1.0,
        max_per_question: int | None = None,
        max_rows: int | None = None,
    ) -> None:
        self._buckets = Buckets(folder, bucket_count(num_trajectories, _LINES_PER_BUCKET))
        self._seed = seed
        self._near_duplicate = near_duplicate
        self._max_per_question = max_per_question
        self._max_rows = max_rows
        self._strata: dict[Stratum, int] = {}
        self._numbers = array("q")
        self._codes = array("B")
        self._of_stratum = array("i")
        self._draws = array("Q")

    def __enter__(self) -> TrajectorySelector:
        self._buckets.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._buckets.__exit__(None, None, None)

    def add(self, number: int, question_key: str, rollout_key: str, stratum: Stratum, text: str) -> None:
        """Add an accepted trajectory; raise StorageError if it cannot be stored."""
        folded = " ".join(text.split())
        digest = hashlib.blake2b(folded.encode(), digest_size=16).hexdigest()
        kept = folded if self._near_duplicate < 1.0 else ""
        index = self._strata.setdefault(stratum, len(self._strata))
        line = orjson.dumps([question_key, number, rollout_key, index, digest, kept])
        self._buckets.add(self._buckets.of(draw(0, question_key)), line)

    def decisions(self) -> Decisions:
        """Return the outcomes of all added trajectories."""
        for lines in self._buckets:
            questions: dict[str, list[Accepted]] = defaultdict(list)
            for line in lines:
                question_key, *accepted = orjson.loads(line)
                questions[question_key].append(Accepted(*accepted))
            for question_key, ones in questions.items():
                self._decide(question_key, sorted(ones))
        numbers = np.frombuffer(self._numbers, np.int64) if self._numbers else np.empty(0, np.int64)
        codes = np.array(self._codes, np.uint8)
        if self._max_rows is not None and int((codes == ROW).sum()) > self._max_rows:
            self._apply_row_limit(numbers, codes)
        order = np.argsort(numbers, kind="stable")
        return Decisions(numbers[order], codes[order])

    def _decide(self, question_key: str, ones: Sequence[Accepted]) -> None:
        kept: list[Accepted] = []
        codes = {}
        for one in ones:
            code = self._repeats(one, kept)
            if code == ROW:
                kept.append(one)
            codes[one.number] = code
        if self._max_per_question is not None and len(kept) > self._max_per_question:
            codes.update(dict.fromkeys((one.number for one in kept), OVER_QUESTION_LIMIT))
            codes.update(dict.fromkeys(self._within_question_limit(question_key, kept), ROW))
        for one in ones:
            self._numbers.append(one.number)
            self._codes.append(codes[one.number])
            self._of_stratum.append(one.stratum)
            self._draws.append(draw(self._seed, "row", one.rollout_key))

    def _repeats(self, one: Accepted, kept: Sequence[Accepted]) -> int:
        if any(one.digest == other.digest or one.rollout_key == other.rollout_key for other in kept):
            return DUPLICATE
        if self._near_duplicate < 1.0 and any(
            is_near_duplicate(one.text, other.text, self._near_duplicate) for other in kept
        ):
            return NEAR_DUPLICATE
        return ROW

    def _within_question_limit(self, question_key: str, kept: Sequence[Accepted]) -> list[int]:
        """Return the numbers of the trajectories to keep; the order of the strata is drawn for each question."""
        assert self._max_per_question is not None
        strata: dict[int, list[int]] = defaultdict(list)
        for one in sorted(kept, key=lambda one: (draw(self._seed, "question", one.rollout_key), one.number)):
            strata[one.stratum].append(one.number)
        names = list(self._strata)
        ordered = sorted(strata, key=lambda index: draw(self._seed, "stratum", question_key, *map(str, names[index])))
        return spread({index: strata[index] for index in ordered}, self._max_per_question)

    def _apply_row_limit(self, numbers: np.ndarray, codes: np.ndarray) -> None:
        """Mark the trajectories over the limit in `codes`; the seed decides the order of the strata."""
        assert self._max_rows is not None
        places = np.flatnonzero(codes == ROW)
        of_stratum = np.array(self._of_stratum, np.int32)[places]
        draws = np.array(self._draws, np.uint64)[places]
        order = np.lexsort((numbers[places], draws, of_stratum))
        counts = np.bincount(of_stratum, minlength=len(self._strata)).tolist()
        turns = [
            index
            for _, index in sorted(
                self._strata.items(), key=lambda item: draw(self._seed, "stratum", *map(str, item[0]))
            )
        ]
        shares = dict(zip(turns, quotas([counts[index] for index in turns], self._max_rows), strict=True))
        codes[places] = OVER_ROW_LIMIT
        start = 0
        for index, count in enumerate(counts):
            codes[places[order[start : start + shares[index]]]] = ROW
            start += count
