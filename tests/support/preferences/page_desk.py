"""Scored dialogues about pages, without a browser: each page has one color, and its picture a width that tells it."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.pictures import png
from support.preferences.desk import Desk
from support.tables.score_tables import new_run, put_rows, question

from treadle.agent.call_cache import NullCache
from treadle.agent.contract import Task
from treadle.agent.role import RoleModel
from treadle.agent.rollout import RolloutEngine
from treadle.core.chat import ChatTokenizer
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.stage import Instance
from treadle.core.tables import CHECKPOINTS
from treadle.datagen.questions.tables import QUESTIONS
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.environments.colbench.frontend.drawing import PageDrawer
from treadle.environments.colbench.frontend.kind import FrontendRuntime
from treadle.environments.colbench.frontend.settings import FrontendSettings
from treadle.environments.opening import limits_of
from treadle.environments.planning.tools.pictures import PICTURES, read_picture
from treadle.environments.rollouts.rows import head_of_row, row_of
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.config import ScoresSettings
from treadle.eval.entry import SCORES_STAGE

VECTORS = {"red": (1.0, 0.0), "purple": (0.8, 0.6), "blue": (0.0, 1.0)}
"""Color of a page -> vector of its picture; the wanted page is red."""
_BLACK = (0.6, 0.8)
_COLORS = tuple(VECTORS)


def page(color: str, body: str = "Bread") -> str:
    return f"<html><body class='bg-{color}-500'>{body}</body></html>"


class Drawing:
    """Renderer of pages with one color."""

    product = "Drawing/1"

    async def draw(self, html: str) -> bytes:
        return png(1 + next(place for place, color in enumerate(_COLORS) if f"bg-{color}-500" in html), 3)


class Vectors:
    """Embedder of their pictures."""

    async def vectors(self, pictures: Sequence[bytes]) -> list[list[float]]:
        widths = [read_picture(one).width for one in pictures]
        return [list(VECTORS[_COLORS[width - 1]] if width <= len(_COLORS) else _BLACK) for width in widths]


class Human:
    """Model that sees pictures.

    Attributes:
        asked: Messages of its requests.
    """

    def __init__(self) -> None:
        self.asked: list[Sequence[Mapping[str, Any]]] = []

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        raise AssertionError("pictures need the route of chats")

    async def chat(self, messages: Sequence[Mapping[str, Any]], sampling: Sampling, **_: Any) -> Completion:
        self.asked.append(messages)
        return Completion("The background must be red.", (), "stop", None, 1, 1, "http://x/v1", 0.0, 0)


class Writer:
    """Model that shows a blue page and then answers with a page of its own color, or without one for None."""

    def __init__(self, tokenizer: ChatTokenizer, color: str | None) -> None:
        self._tokenizer = tokenizer
        last = "I give up." if color is None else page(color)
        self._said = {False: f"I think. OUTPUT: {page('blue')}", True: f"OUTPUT: I WANT TO ANSWER: {last}"}
        if color is None:
            self._said[False] = "I do not know."

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        assert not isinstance(request.prompt, str)
        said = self._said["must be red" in self._tokenizer.decode(request.prompt)]
        ids = (*self._tokenizer.encode(said), self._tokenizer.turn_end_ids[0])
        return Completion(said, ids, "stop", None, len(request.prompt), len(ids), "http://x/v1", 0.1, 0)


class PageDesk(Desk):
    """A run with tasks about pages and dialogues of the real episode, which the real stage has scored."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = ChatTokenizer.load(write_byte_tokenizer(folder / "tokenizer"))
        self.run = new_run(folder / "root")
        self.environment: FrontendSettings = FrontendSettings()
        self.human = Human()

    def play(self, targets: Mapping[str, str], colors: Sequence[str | None], *, held_out: Sequence[str] = ()) -> None:
        """Store tasks, by the HTML of their targets, with dialogues that end with these colors, and score them."""
        asked, rollouts = [], []
        for key, target in targets.items():
            payload = json.dumps({"page": target})
            row = question(key, []) | {"split": "heldout" if key in held_out else "train", "payload": payload}
            asked.append(row)
            rollouts += [self._dialogue(row, index, color) for index, color in enumerate(colors)]
        put_rows(self.run, "1/questions", QUESTIONS, asked)
        put_rows(self.run, "1/rollouts@base", ROLLOUTS, rollouts)
        put_rows(self.run, "1/dpo@critic", CHECKPOINTS, [self._checkpoint()])
        inputs = {name: (Address.parse(f"1/{at}"),) for name, at in (("rollouts", "rollouts@base"), ("questions",) * 2)}
        settings = ScoresSettings(environments={"default": self.environment})
        execute(
            Instance(address=Address.parse("1/scores@base"), stage=SCORES_STAGE, settings=settings, inputs=inputs),
            self.run,
        )

    def _dialogue(self, asked: Mapping[str, Any], index: int, color: str | None) -> dict[str, Any]:
        settings = self.environment
        drawer = PageDrawer(Drawing(), None, self.run.store(PICTURES), legacy=False)  # type: ignore[arg-type]
        role = RoleModel("human", "human", self.human, settings.human.sampling)
        episode = FrontendRuntime(settings, role, drawer).episode()
        model = Writer(self.tokenizer, color)
        engine = RolloutEngine(
            model, self.tokenizer, Sampling(), limits_of(settings), settings.turn_dialect, renderer=self.tokenizer
        )
        made = asyncio.run(
            engine.roll_out(episode, Task.from_row(asked), seed=index, deadline=math.inf, cache=NullCache())
        )
        head = head_of_row(asked, "base", index, index)
        return row_of(head, made, settings.digest(), self.tokenizer.digest) | {"job": None}
