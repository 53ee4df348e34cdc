"""Make pairs of candidates for the same turn from their advantages, for a policy."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from treadle.core.config import digest_json
from treadle.core.errors import ArtifactError, StageFailed
from treadle.core.runs.stage import StageContext
from treadle.core.seeds import derive_seed
from treadle.rl.preferences.pairs import draw_turn_pairs
from treadle.rl.preferences.settings import PreferencesSettings
from treadle.rl.preferences.tables import PREFERENCES

_READ = (
    "turn_key", "candidate", "question_key", "dataset", "environment", "messages", "prompt_ids", "text", "ids", "mask",
    "num_tokens", "truncated", "tokenizer_digest",
)  # fmt: skip


class TurnPairs:
    """State of one attempt of the stage, for pairs of candidates."""

    def __init__(self, context: StageContext) -> None:
        self._context = context
        self._settings: PreferencesSettings = context.settings
        self._options = self._settings.options
        self._counts: Counter[str] = Counter()
        self._longest = 0

    def run(self) -> dict[str, Any]:
        """Write the pairs and return the metrics; raise StageFailed if there is no pair."""
        self._context.progress.start(
            sum(table.num_rows for table in self._context.inputs["candidates"]), 0, "candidates"
        )
        for candidates in self._turns():
            rows = list(self._rows(candidates))
            self._context.write(PREFERENCES.kind, rows)
            self._counts["turns"] += 1
            self._counts["turns_with_pairs"] += bool(rows)
            self._counts["pairs"] += len(rows)
            self._context.progress.advance(len(candidates), pairs=self._counts["pairs"])
        if not self._counts["pairs"]:
            raise StageFailed(
                f"{self._context.address}: no pair among the candidates of {self._counts['turns']:,} turns: "
                f"{self._counts['truncated']:,} candidates are truncated, and the others of a turn are equal; raise "
                "candidates.sampling.max_tokens or candidates.num_candidates"
            )
        return {**dict(sorted(self._counts.items())), "longest_row": self._longest}

    def _turns(self) -> Iterator[list[tuple[Mapping[str, Any], float]]]:
        """Yield the scored candidates of each turn with their advantages; count candidates without one.

        Both tables must have the same order. Raises ArtifactError for an advantage that belongs to no candidate.
        """
        names = ("turn_key", "candidate", "advantage")
        scored = (row for table in self._context.inputs["advantages"] for row in table.rows(names))
        pairs = self._pairs(scored)
        for _, group in itertools.groupby(pairs, key=lambda pair: pair[0]["turn_key"]):
            yield list(group)

    def _pairs(self, scored: Iterator[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], float]]:
        awaited = next(scored, None)
        for row in (row for table in self._context.inputs["candidates"] for row in table.rows(_READ)):
            if awaited is None or (awaited["turn_key"], awaited["candidate"]) != (row["turn_key"], row["candidate"]):
                self._counts["left_out.not_scored"] += 1
                continue
            yield row, float(awaited["advantage"])
            awaited = next(scored, None)
        if awaited is not None:
            raise ArtifactError(
                f"the advantage of turn {awaited['turn_key']} is of no candidate that is read here; run `advantages` "
                "again"
            )

    def _rows(self, candidates: Sequence[tuple[Mapping[str, Any], float]]) -> Iterator[dict[str, Any]]:
        usable = [pair for pair in candidates if not pair[0]["truncated"]]
        self._counts["truncated"] += len(candidates) - len(usable)
        scores = list(map(itemgetter(1), usable))
        seed = derive_seed(self._settings.seed, "preferences", candidates[0][0]["turn_key"])
        drawn = draw_turn_pairs(scores, self._options.pairs_per_turn, seed, self._options.top_k)
        self._counts["drawn"] += len(drawn)
        for chosen, rejected in dict.fromkeys(drawn):
            better, worse = usable[chosen][0], usable[rejected][0]
            if better["ids"] == worse["ids"]:
                self._counts["left_out.same_ids"] += 1
                continue
            yield self._row(better, worse, scores[chosen] - scores[rejected])

    def _row(self, chosen: Mapping[str, Any], rejected: Mapping[str, Any], margin: float) -> dict[str, Any]:
        length = len(chosen["prompt_ids"]) + max(len(chosen["ids"]), len(rejected["ids"]))
        self._longest = max(self._longest, length)
        keys = [f"{one['turn_key']}:{one['candidate']}" for one in (chosen, rejected)]
        row = {
            "pair_key": digest_json([self._settings.kind, *keys])[:16],
            "kind": self._settings.kind,
            **{name: chosen[name] for name in ("question_key", "dataset", "environment", "tokenizer_digest")},
            "margin": margin,
            "hidden": False,
            **{name: chosen[name] for name in ("messages", "prompt_ids")},
        }
        for name, key, side in zip(("chosen", "rejected"), keys, (chosen, rejected), strict=True):
            row |= {f"{name}_key": key, f"{name}_text": side["text"], f"{name}_ids": side["ids"]}
            row |= {f"{name}_mask": side["mask"], f"{name}_turns": [side["num_tokens"]]}
        return row
