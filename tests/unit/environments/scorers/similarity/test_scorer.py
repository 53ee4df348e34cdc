"""Scores of dialogues about pages, with vectors that the test chooses for each picture."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from support.pictures import png

from treadle.agent.contract import CallRecord, Task
from treadle.core.errors import ToolError
from treadle.core.store.keyed_store import KeyedStore
from treadle.core.store.storage import LocalStorage
from treadle.environments.colbench.frontend.settings import FrontendSettings
from treadle.environments.planning.tools.pictures import Picture, read_picture
from treadle.environments.scorers.registry import SCORERS
from treadle.environments.scorers.scoring import OpenScorers
from treadle.environments.scorers.similarity import scorer as module
from treadle.environments.scorers.similarity.scorer import SimilarityScorer
from treadle.environments.scorers.similarity.vectors import black_picture
from treadle.environments.stored_rollout import StoredRollout

TARGET, LIKE, UNLIKE = (read_picture(png(width, 2)) for width in (1, 2, 3))
VECTORS = {TARGET.data: [3.0, 4.0], LIKE.data: [4.0, 3.0], UNLIKE.data: [4.0, -3.0], black_picture(): [0.0, 1.0]}
TASK = Task("q", "A page.", payload={"page": "<html>x</html>"})


class Vectors:
    """Embedder that returns known vectors and counts the pictures that it was given."""

    def __init__(self) -> None:
        self.num_embedded = 0

    async def vectors(self, pictures: Sequence[bytes]) -> list[list[float]]:
        self.num_embedded += len(pictures)
        return [VECTORS[one] for one in pictures]


def called(turn: int, picture: Picture | None, tool: str = "page") -> CallRecord:
    status, note = ("empty", "") if picture is None else ("ok", picture.note)
    return CallRecord(tool, "", status, turn, note=note)  # type: ignore[arg-type]


def rollout(*pages: Picture | None, target: Picture | None = TARGET) -> StoredRollout:
    calls = [called(turn, page) for turn, page in enumerate(pages)]
    return StoredRollout("answered", False, [], [called(0, target, "target"), *calls], [], None, None)


@pytest.fixture
def embedder(monkeypatch: pytest.MonkeyPatch) -> Vectors:
    found = Vectors()

    @contextlib.asynccontextmanager
    async def opened(*_: object, **__: object) -> AsyncIterator[Vectors]:
        yield found

    monkeypatch.setattr(module, "open_embedder", opened)
    return found


@contextlib.asynccontextmanager
async def opened(folder: Path, **keys: object) -> AsyncIterator[SimilarityScorer]:
    store = KeyedStore(LocalStorage(folder), "pictures")
    for picture in (TARGET, LIKE, UNLIKE):
        store.add(picture.digest, picture.data)
    scorer = SCORERS.parse({"type": "similarity", **keys})
    assert isinstance(scorer, SimilarityScorer)
    scorer.use_stores(lambda name: store)
    async with scorer.open():
        yield scorer


async def test_last_page_decides_and_each_turn_is_measured(tmp_path: Path, embedder: Vectors) -> None:
    async with opened(tmp_path) as scorer:
        score = await scorer.score(TASK, rollout(UNLIKE, None, LIKE))
        assert score.score == pytest.approx(0.96) and score.correct and score.parts == {"no_page": 0.0}
        detail = json.loads(score.detail)
        assert detail["measure"] == "clip (openai/clip-vit-base-patch32), whole page"
        assert detail["target"] == TARGET.digest
        assert [(one["turn"], one["picture"]) for one in detail["pages"]] == [
            (0, UNLIKE.digest), (1, None), (2, LIKE.digest),
        ]  # fmt: skip
        assert [one["similarity"] for one in detail["pages"]] == pytest.approx([0.0, None, 0.96])
        assert not (await scorer.score(TASK, rollout(LIKE, UNLIKE))).correct
        assert embedder.num_embedded == 3, "each picture once"


@pytest.mark.covers("sweet-22")
async def test_missing_page_is_compared_as_a_black_picture_and_flagged(tmp_path: Path, embedder: Vectors) -> None:
    async with opened(tmp_path) as scorer:
        score = await scorer.score(TASK, rollout(None, None))
        assert score.score == pytest.approx(0.8) and score.parts == {"no_page": 1.0} and not score.correct


async def test_lost_picture_and_missing_target_leave_no_verdict(tmp_path: Path, embedder: Vectors) -> None:
    lost = read_picture(png(9, 9))
    async with opened(tmp_path) as scorer:
        with pytest.raises(ToolError, match=f"picture {lost.digest} is missing"):
            await scorer.score(TASK, rollout(lost))
        with pytest.raises(ToolError, match="no picture of the target page"):
            await scorer.score(TASK, rollout(LIKE, target=None))


@pytest.mark.covers("sweet-25")
async def test_records_of_any_number_are_scored_from_the_store_alone(tmp_path: Path, embedder: Vectors) -> None:
    async with opened(tmp_path) as scorer:
        scores = [await scorer.score(TASK, rollout(LIKE if number % 2 else UNLIKE)) for number in range(130)]
    assert [one.score for one in scores] == pytest.approx([0.0, 0.96] * 65)


class Rollout:
    """Finished rollout of the task, with pages."""

    status, prediction, outcome = "answered", "", None

    def __init__(self, *pages: Picture | None, task: Task) -> None:
        self.task, self._stored = task, rollout(*pages)

    def stored(self) -> StoredRollout:
        return self._stored


def test_measure_is_named_in_the_row_and_the_environment_picks_this_scorer(tmp_path: Path, embedder: Vectors) -> None:
    store = KeyedStore(LocalStorage(tmp_path), "pictures")
    for picture in (TARGET, LIKE):
        store.add(picture.digest, picture.data)
    embedded = SCORERS.parse({"type": "similarity", "measure": "efficientnet-lite0", "framing": "crops"})
    named = Task("q", "A page.", scorer="embedded", payload=TASK.payload)
    environments = {"default": FrontendSettings()}
    with OpenScorers({"embedded": embedded}, environments, store=lambda name: store) as scorers:
        own, other = scorers.scores([Rollout(LIKE, task=TASK), Rollout(LIKE, task=named)])
    assert (own.score, other.score) == pytest.approx((0.96, 0.96))
    assert own.scorer == "similarity: clip (openai/clip-vit-base-patch32), whole page"
    assert other.scorer == "embedded: efficientnet-lite0, middle"
