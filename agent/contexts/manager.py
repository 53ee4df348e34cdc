"""Decide before each turn of a rollout what its request shows: trim the context, or apply its manager's rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import orjson

from treadle.agent.cached_units import answer_unit, asked_unit, context_unit
from treadle.agent.call_cache import CallCache
from treadle.agent.contexts.clipping import (
    CLIPPER,
    BadVerdict,
    SelfClip,
    clip_messages,
    clip_prompt,
    clipped,
    parse_verdict,
)
from treadle.agent.contexts.thinking import LinearThink, View
from treadle.agent.dialects.base import Segment
from treadle.agent.model_types import ModelBinding
from treadle.agent.prompt_strategy import PromptStrategy
from treadle.agent.role import Reply, RoleBackend, RoleModel
from treadle.agent.transcript import Transcript
from treadle.agent.trimming import Trimming
from treadle.core.errors import ContextTooLong
from treadle.core.seeds import derive_seed


@dataclass(slots=True)
class ContextManager:
    """Manager of the context of one rollout.

    Attributes:
        engine: The policy.
        clipper: Model that gives the verdicts of `context_selfclip`.
        task: Text before the first turn, for these verdicts.
        seed: Seed of the rollout.
        verdicts: Answers to the requests for verdicts so far, at most one.
    """

    engine: ModelBinding
    clipper: RoleModel
    strategy: PromptStrategy
    transcript: Transcript
    cache: CallCache
    task: str
    seed: int
    session: str
    deadline: float
    verdicts: list[Reply]
    has_asked: bool = False

    async def prepare(self, turn: int) -> None:
        """Trim the context if the window is too small for a turn, and apply the context manager's rule.

        A turn that has begun keeps its context. Raises ModelError and DeadlineExceeded if the request for a verdict
        fails.
        """
        limits = self.engine.limits
        if limits.trimming is not None:
            self._trim(limits.trimming, turn)
        if limits.context is None or self.transcript.open_text:
            return  # a turn that has begun keeps its context
        segments = self.transcript.segments()
        if isinstance(limits.context, LinearThink):
            view: View | None = limits.context.view(segments)
        else:
            view = await self._clip(limits.context, segments, turn)
        if view is not None and segments:
            self.strategy.trim(view.kept, view.texts)

    def _trim(self, trimming: Trimming, turn: int) -> None:
        """Trim the context if the window has too little room for the turn.

        What stays is cached: after a resume, the server may have another window.
        """
        unit = context_unit(turn)
        known = self.cache.get(unit)
        if known is not None:
            kept = orjson.loads(known)
        elif self.cache.get(answer_unit(turn)) is None:
            kept = self.strategy.find_trim(trimming)
        else:
            kept = None
        if kept is None:
            return
        if known is None:
            self.cache.append(unit, orjson.dumps(kept))
        self.strategy.trim(kept)

    async def _clip(self, rule: SelfClip, segments: Sequence[Segment], turn: int) -> View | None:
        """Ask once for a verdict if the context is longer than the threshold; return the new view, None if unchanged.

        An invalid verdict, and one whose prompt does not fit its model's window, changes nothing and is counted.
        """
        ids, text = self.transcript.shown_ids, self.transcript.shown_text
        length = len(ids) if self.engine.codec is not None else len(text) // 4
        messages = clip_messages(segments)
        if self.has_asked or length <= rule.threshold_tokens or not messages:
            return None
        self.has_asked = True
        unit = asked_unit(CLIPPER, 0)
        if self.cache.get(unit) is None and self.cache.get(answer_unit(turn)) is not None:
            # Before a resume, the request for a verdict did not fit, and the turn was answered without it.
            # In another window it might fit now.
            self.transcript.note("bad_verdict")
            return None
        try:
            reply = await self.clipper.ask(
                clip_prompt(self.task, messages),
                cache=self.cache,
                unit=unit,
                seed=derive_seed(self.seed, CLIPPER),
                session=self.session,
                deadline=self.deadline,
            )
            self.verdicts.append(reply)
            texts = parse_verdict(reply.text, messages)
        except (BadVerdict, ContextTooLong):
            self.transcript.note("bad_verdict")
            return None
        return clipped(segments, messages, texts) if texts else None


def own_clipper(engine: ModelBinding) -> RoleModel:
    """Return the policy in the role of the model that gives the verdicts of `context_selfclip`."""
    return RoleModel(
        role=CLIPPER,
        name="policy",
        model=cast(RoleBackend, engine.model),
        sampling=engine.sampling,
        codec=engine.codec,
        renderer=engine.renderer,
        max_model_len=engine.limits.max_model_len,
        continues_text=engine.chat is None,
    )
