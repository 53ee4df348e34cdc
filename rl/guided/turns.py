"""Sample several candidates for each turn of a rollout, and take the one that a critic prefers.

All completions and scores are cached before they are used, so an interrupted turn does not ask for any of them again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import orjson

from treadle.agent.call_cache import CallCache
from treadle.agent.rollout import RolloutEngine
from treadle.core.gather import gather_all
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.seeds import derive_seed
from treadle.rl.advantages.teacher_forcing import ScoredSpan, ScoringRole, TeacherForcing
from treadle.rl.candidates.candidate import candidate_of
from treadle.rl.preferences.aggregates import advantage

_CANDIDATE = "candidate"
_UNIT = re.compile(r"(?:restart-\d+/)?(candidate|critic|reference)-\d+-\d+")
_CHOICE = re.compile(r"((?:restart-\d+/)?)choice-(\d+)")


@dataclass(frozen=True, slots=True)
class Guide:
    """Critic that chooses turns, with its settings.

    Attributes:
        forcing: Critic and reference model, which score the tokens of candidates.
        num_candidates: Candidates per turn.
        is_mean: Whether an advantage is divided by the candidate's number of tokens.
        is_conditioned: Whether the reference sees the hidden information that the critic sees.
    """

    forcing: TeacherForcing
    num_candidates: int
    is_mean: bool
    is_conditioned: bool


@dataclass(slots=True)
class GuidedTurns:
    """Completion model of one rollout that returns the best of several candidates for each turn.

    Candidates that reached the limit of tokens are taken only if there are no others, and equal ones are scored once.
    Call `begin` before the first turn.

    Attributes:
        engine: Engine with the policy that the candidates are sampled from.
        guide: The critic.
        cache: Cache of the rollout's completions, scores and choices.
    """

    engine: RolloutEngine
    guide: Guide
    cache: CallCache
    _plain: Sequence[int] = ()
    _told: Sequence[int] = ()

    def begin(self, plain: Sequence[int], told: Sequence[int]) -> None:
        """Set the ids of the prompt before the first turn: as the policy sees it, and as the critic sees it."""
        self._plain, self._told = plain, told

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """Return the candidate with the largest advantage, the first of equal ones. Raises as the models do."""
        codec, numbers = self.engine.codec, range(self.guide.num_candidates)
        assert codec is not None
        sampled = await gather_all([self._sample(request, number, session, deadline) for number in numbers])
        candidates = [candidate_of(completion, codec, self.engine.dialect) for completion in sampled]
        distinct = _distinct(candidates)
        advantages: Mapping[int, float] = {}
        if len(distinct) > 1:
            advantages = await self._advantages(request, {number: candidates[number] for number in distinct}, deadline)
        chosen = max(distinct, key=lambda number: (advantages.get(number, 0.0), -number), default=0)
        unit = _choice_unit(request.seed)
        if self.cache.get(unit) is None:
            self.cache.append(unit, _choice(chosen, advantages, len(candidates)))
        return sampled[chosen]

    async def _sample(self, request: CompletionRequest, number: int, session: str, deadline: float) -> Completion:
        unit = f"{_CANDIDATE}-{request.seed}-{number}"
        if (known := self.cache.get(unit)) is not None:
            return Completion.from_json(known)
        asked = replace(request, seed=derive_seed(request.seed, _CANDIDATE, number))
        completion = await self.engine.model.complete(asked, session=session, deadline=deadline)
        self.cache.append(unit, completion.to_json())
        return completion

    async def _advantages(
        self, request: CompletionRequest, candidates: Mapping[int, Mapping[str, Any]], deadline: float
    ) -> dict[int, float]:
        """Return the advantage of each candidate, by its number. Raises WindowTooSmall."""
        plain = list(request.prompt)
        told = [*self._told, *plain[len(self._plain) :]]
        contexts: dict[ScoringRole, list[Any]] = {
            "critic": told,
            "reference": told if self.guide.is_conditioned else plain,
        }

        def span_of(role: ScoringRole, number: int) -> ScoredSpan:
            one, unit = candidates[number], f"{role}-{request.seed}-{number}"
            return ScoredSpan(contexts[role], one["ids"], one["mask"], str(request.seed), unit)

        async def total(role: ScoringRole, number: int) -> float:
            span = span_of(role, number)
            found, _ = await self.guide.forcing.score(role, span, cache=self.cache, deadline=deadline)
            return found

        for role, number in ((role, number) for role in contexts for number in candidates):
            self.guide.forcing.check(role, span_of(role, number))
        sums = await gather_all([total(role, number) for role in contexts for number in candidates])
        both = zip(candidates.items(), sums[: len(candidates)], sums[len(candidates) :], strict=True)
        return {
            number: advantage(critic, reference, one["num_tokens"], is_mean=self.guide.is_mean)
            for (number, one), critic, reference in both
        }


def _distinct(candidates: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the numbers of the candidates that can be chosen.

    Only the first of equal candidates can, and truncated ones only if all candidates with tokens are truncated.
    """
    usable = [number for number, one in enumerate(candidates) if one["num_tokens"]]
    usable = [number for number in usable if not candidates[number]["truncated"]] or usable
    first: dict[tuple[int, ...], int] = {}
    for number in usable:
        first.setdefault(tuple(candidates[number]["ids"]), number)
    return list(first.values())


def _choice_unit(seed: int) -> str:
    return f"choice-{seed}"


def _choice(chosen: int, advantages: Mapping[int, float], num_candidates: int) -> bytes:
    """Return a choice as JSON, in the form of an item of the column `choices`."""
    scored = [{"candidate": number, "advantage": value} for number, value in advantages.items()]
    return orjson.dumps({"chosen": chosen, "num_candidates": num_candidates, "scored": scored})


def choices_of(cache: CallCache, seed: int, num_turns: int) -> list[dict[str, Any]]:
    """Return the choice of each turn of a rollout with this seed."""
    known = (cache.get(_choice_unit(derive_seed(seed, turn))) for turn in range(num_turns))
    return [orjson.loads(value) for value in known if value is not None]


class GuideTokens(NamedTuple):
    """Tokens that a guided rollout used in addition to those of its turns."""

    policy_prompt: int
    """Prompt tokens of candidates that were not chosen, plus tokens that the reference scored."""
    policy_completion: int
    critic: int


def guide_tokens(units: Mapping[str, bytes]) -> GuideTokens:
    """Add up the tokens of a rollout's cached replies and choices, without those of the chosen candidates.

    `units` maps the name of a cache entry to its content.
    """
    chosen: set[str] = set()
    for name, value in units.items():
        if (choice := _CHOICE.fullmatch(name)) is not None:
            chosen.add(f"{choice[1]}{_CANDIDATE}-{choice[2]}-{orjson.loads(value)['chosen']}")
    prompt = completion = critic = 0
    for name, value in units.items():
        found = _UNIT.fullmatch(name)
        if found is None or name in chosen:
            continue
        if found[1] == _CANDIDATE:
            made = Completion.from_json(value)
            prompt, completion = prompt + made.prompt_tokens, completion + made.completion_tokens
        elif found[1] == "critic":
            critic += orjson.loads(value)[1]
        else:
            prompt += orjson.loads(value)[1]
    return GuideTokens(prompt, completion, critic)
