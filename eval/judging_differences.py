"""Detect differences in how the scores of two models were made, so that reports can note them.

Differences are found in the judgements of the rollouts themselves, and in the settings of the stage `scores`.
Documented in docs/behaviour/metrics.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from treadle.agent.role_settings import RoleSettings
from treadle.core.config import digest_json, semantic_dump
from treadle.environments.scorers.answer import F1
from treadle.environments.scorers.qa import BY_F1
from treadle.environments.scorers.scoring import ANSWERED
from treadle.eval.config import ScoresSettings
from treadle.eval.metrics import needs
from treadle.eval.scored_rollout import ScoredRollout
from treadle.eval.verdicts import FAILED

_WITHOUT_VERDICT = frozenset({"calls_requested", "reasoning_tokens"})
"""Compared figures that do not depend on any verdict or vote."""


def judging_differences(first: Iterable[ScoredRollout], second: Iterable[ScoredRollout]) -> list[str]:
    """Return notes on differences in judging that the rollouts of two models reveal."""
    sides = [list(first), list(second)]
    notes = [
        note
        for domain in sorted({one.domain for side in sides for one in side})
        for note in _differences_in_domain(*([one for one in side if one.domain == domain] for side in sides))
    ]
    return list(dict.fromkeys(notes))


def _differences_in_domain(first: Sequence[ScoredRollout], second: Sequence[ScoredRollout]) -> Iterator[str]:
    asked = [[one for one in side if one.judge_status is not None] for side in (first, second)]
    if asked[0] and _left_to_rules(second):
        yield "only answers of the first were judged"
    if asked[1] and _left_to_rules(first):
        yield "only answers of the second were judged"
    judges = [sorted({judge for one in side for judge, _ in one.judge_verdicts}) for side in asked]
    if all(judges) and judges[0] != judges[1]:
        yield f"answers of the first were judged by {_names(judges[0])}, of the second by {_names(judges[1])}"
    unread = [{one.correct is None for one in side if one.judge_status == FAILED} for side in asked]
    if {True} in unread and {False} in unread:
        alone = "first" if unread[0] == {True} else "second"
        yield f"answers without a parsable judge reply are left out of the {alone} only"
    for generous, strict, names in ((first, second, ("first", "second")), (second, first, ("second", "first"))):
        right = min((one.part(F1) or 0.0 for one in generous if one.scorer == BY_F1 and one.correct), default=math.inf)
        wrong = max(
            (one.part(F1) or 0.0 for one in strict if one.scorer == BY_F1 and one.correct is False), default=-math.inf
        )
        if right <= wrong:
            yield f"an F1 of {right:.3f} is right for the {names[0]}, one of {wrong:.3f} is not for the {names[1]}"


def _left_to_rules(rollouts: Sequence[ScoredRollout]) -> bool:
    """Return whether no judge was asked although some finished answers are wrong by rule."""
    return all(one.judge_status is None for one in rollouts) and any(
        not one.correct and one.status == ANSWERED for one in rollouts
    )


def _names(judges: Sequence[str]) -> str:
    return " and ".join(judges)


@dataclass(frozen=True, slots=True)
class Scoring:
    """Settings that determine the verdicts and votes of an instance of `scores`."""

    version: int
    """Version of the stage."""
    verdicts: Mapping[str, str]
    """Setting -> its value. Digests are not shown: the names of such settings start with one of `_HIDDEN_VALUES`."""
    votes: Mapping[str, str]

    @classmethod
    def of(cls, version: int, settings: Any) -> Scoring:
        """Build from the record of an instance. If the settings cannot be parsed, only the version is compared."""
        try:
            given = ScoresSettings.model_validate(settings)
        except ValidationError:
            return cls(version, {}, {})
        return cls(version, _verdicts(given), _votes(given))

    def differences_from(self, other: Scoring, figure: str) -> list[str]:
        """Return the differences from `other` that affect a figure, each with the value of `self` first."""
        said = [("version of the stage scores", str(self.version), str(other.version))]
        if figure not in _WITHOUT_VERDICT:
            ours, theirs = (self.votes, other.votes) if needs(figure, "votes") else (self.verdicts, other.verdicts)
            said += [(name, value, theirs[name]) for name, value in ours.items() if name in theirs]
        return [_difference(name, value, changed) for name, value, changed in said if value != changed]


_HIDDEN_VALUES = ("model or sampling of ", "prompts of ")


def _difference(name: str, value: str, changed: str) -> str:
    return f"different {name}" if name.startswith(_HIDDEN_VALUES) else f"{name} {value}, then {changed}"


def _verdicts(given: ScoresSettings) -> dict[str, str]:
    options, judges = given.options, given.options.judges
    found = {
        "f1_threshold": f"{options.f1_threshold:g}",
        "symbolic": str(options.symbolic).lower(),
        "symbolic_limit_s": f"{options.symbolic_limit_s:g}",
        "symbolic_memory_mib": str(options.symbolic_memory_mib),
        "judges": _names(sorted(given.judges)) or "none",
    }
    if not given.judges:
        return found
    found |= {"judges.type": judges.type, "judges.domains": _names(sorted(judges.domains)) or "all"}
    found |= {"judges.on_failed": judges.on_failed}
    found |= {f"model or sampling of judge {name}": _identity(role) for name, role in given.judges.items()}
    return found | {"prompts of judges": "".join(given.judge_digests[:1])}


def _votes(given: ScoresSettings) -> dict[str, str]:
    role = given.redundancy
    if role is None:
        return {"votes by": "no model"}
    return {
        "votes by": role.name,
        "votes": str(given.options.redundancy.votes),
        f"model or sampling of voter {role.name}": _identity(role),
        "prompts of votes": "".join(given.judge_digests[-1:]),
    }


def _identity(role: RoleSettings) -> str:
    return digest_json([semantic_dump(role.model), role.tokenizer_digest, semantic_dump(role.sampling)])
