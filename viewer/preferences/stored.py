"""Find a rollout's candidates, advantages and pairs of preferences in the tables of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.core.store.artifacts import ArtifactRef
from treadle.core.store.roots import Storage
from treadle.stages.report import reads
from treadle.viewer.tables import KeyedTable, RowGroupCache

_CANDIDATE = ("candidate", "turn_key", "turn", "text", "num_tokens", "truncated")
_ADVANTAGE = ("turn_key", "candidate", "critic_sum", "reference_sum", "advantage")
_PAIR = ("chosen_key", "rejected_key", "margin", "kind")
_KINDS = ("trajectory", "dialogue")


class Side(NamedTuple):
    """Role of a rollout or a candidate in a pair: chosen over another one, or rejected in favour of it."""

    is_chosen: bool
    other: str
    margin: float
    kind: str


class Results(NamedTuple):
    """Tables of one iteration that were made from an instance of `rollouts`; None for a table that does not exist."""

    candidates: ArtifactRef | None = None
    advantages: ArtifactRef | None = None
    turn_pairs: ArtifactRef | None = None
    rollout_pairs: tuple[ArtifactRef, ...] = ()

    def __bool__(self) -> bool:
        """Return whether there is anything to show."""
        return self.candidates is not None or bool(self.rollout_pairs)


def preference_results(run: Run, instance: str) -> Results:
    """Return the tables made from the current result of an instance of `rollouts`; empty for other instances."""
    address = Address.parse(instance)
    rollouts = run.record(address) if address.stage == "rollouts" else None
    if rollouts is None:
        return Results()
    found = [run.record(Address(address.iteration, "preferences", kind)) for kind in _KINDS]
    pairs = tuple(one.outputs["preferences"] for one in found if one is not None and reads(one, rollouts))
    candidates = run.record(Address(address.iteration, "candidates"))
    if candidates is None or not reads(candidates, rollouts):
        return Results(rollout_pairs=pairs)
    advantages = run.record(Address(address.iteration, "advantages"))
    of_turns = run.record(Address(address.iteration, "preferences", "turn"))
    return Results(
        candidates.outputs["candidates"],
        advantages.outputs["advantages"] if advantages is not None and reads(advantages, candidates) else None,
        of_turns.outputs["preferences"] if of_turns is not None and reads(of_turns, candidates) else None,
        pairs,
    )


def candidates_of(run: Run, results: Results, key: str) -> list[dict[str, Any]]:
    """Return the candidates for the turns of a rollout, each with its advantage if it has one.

    Raises ArtifactError for tables that cannot be read.
    """
    if results.candidates is None:
        return []
    rows = _by_rollout(run.storage, results.candidates).rows(key, _CANDIDATE)
    advantages: Mapping[tuple[str, int], Mapping[str, Any]] = {}
    if results.advantages is not None:
        scored = _by_rollout(run.storage, results.advantages).rows(key, _ADVANTAGE)
        advantages = {(row["turn_key"], row["candidate"]): row for row in scored}
    return [row | dict(advantages.get((row["turn_key"], row["candidate"]), {})) for row in rows]


def sides_of(run: Run, tables: Sequence[ArtifactRef | None], key: str) -> list[Side]:
    """Return the roles of a rollout, or of a candidate, in the pairs of some tables.

    `key` is the key of the rollout, or `<turn_key>:<number>` of the candidate.
    """
    return [side for ref in tables if ref is not None for side in _sides(run.storage, ref).get(key, ())]


@lru_cache(maxsize=8)
def _by_rollout(storage: Storage, ref: ArtifactRef) -> KeyedTable:
    return KeyedTable(ArtifactReader(storage, ref), "rollout_key", RowGroupCache())


@lru_cache(maxsize=8)
def _sides(storage: Storage, ref: ArtifactRef) -> dict[str, list[Side]]:
    found: dict[str, list[Side]] = {}
    for row in ArtifactReader(storage, ref).rows(_PAIR):
        for is_chosen in (True, False):
            own, other = ("chosen_key", "rejected_key") if is_chosen else ("rejected_key", "chosen_key")
            found.setdefault(row[own], []).append(Side(is_chosen, row[other], row["margin"], row["kind"]))
    return found
