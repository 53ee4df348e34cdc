"""Dialogues of a scripted agent and person about pages, on the real engine; a drawing stands for a browser."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.pictures import png

from treadle.agent.browser.renderer import PageNotDrawn
from treadle.agent.call_cache import CallCache, NullCache
from treadle.agent.contract import EpisodeOptions, ModelTurn, StepContext, Task
from treadle.agent.model_types import RolloutLimits
from treadle.agent.role import RoleModel
from treadle.agent.rollout import RolloutEngine
from treadle.agent.trajectory import Trajectory
from treadle.core.errors import ConfigError, EndpointUnavailable, ModelError, ToolError
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.store.keyed_store import KeyedStore
from treadle.core.store.storage import LocalStorage
from treadle.environments.colbench.frontend.drawing import PageDrawer
from treadle.environments.colbench.frontend.episode import NOTICE
from treadle.environments.colbench.frontend.kind import FrontendRuntime, FrontendType
from treadle.environments.colbench.frontend.markup import PAGE, TARGET
from treadle.environments.colbench.frontend.settings import FrontendSettings
from treadle.environments.planning.tools.pictures import noted_picture
from treadle.environments.registry import ENVIRONMENTS, environment_type, traits_of
from treadle.environments.rollouts.rows import row_of

CANARY = "canary_of_the_target"
TASK = Task("q", "A page for a bakery.", dataset="colbench", payload={"page": f"<html>{CANARY}</html>"})


def page(text: str) -> str:
    return f"I think. OUTPUT: <html>{text}</html>"


FINAL = page("final").replace("OUTPUT:", "OUTPUT: I WANT TO ANSWER:")


class Drawing:
    """Renderer whose pictures have the length of their page as width; `hangs` cannot be drawn."""

    product = "Drawing/1"

    def __init__(self) -> None:
        self.pages: list[str] = []

    async def draw(self, html: str) -> bytes:
        if "hangs" in html:
            raise PageNotDrawn("a page was not drawn in 2 browsers: it did not finish within 30 s")
        self.pages.append(html)
        return png(len(html), 3)


class Speaker:
    """Model that says the given texts in turn, the last one again and again; an exception is raised."""

    def __init__(self, *texts: str | Exception) -> None:
        self.texts = texts
        self.prompts: list[Any] = []
        self.samplings: list[Sampling] = []

    def _next(self, prompt: Any) -> Completion:
        text = self.texts[min(len(self.prompts), len(self.texts) - 1)]
        self.prompts.append(prompt)
        if isinstance(text, Exception):
            raise text
        return Completion(text, (), "stop", None, 1, 1, "http://x/v1", 0.0, 0)

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        return self._next(request.prompt)

    async def chat(self, messages: Sequence[Mapping[str, Any]], sampling: Sampling, **_: Any) -> Completion:
        self.samplings.append(sampling)
        return self._next(messages)


class Units(dict[str, bytes]):
    """Cache of one rollout that survives a kill."""

    def append(self, unit: str, value: bytes) -> None:
        assert unit not in self, f"{unit} was paid for twice"
        self[unit] = value


def runtime(human: Speaker | None, settings: FrontendSettings, store: KeyedStore | None = None) -> FrontendRuntime:
    drawer = PageDrawer(Drawing(), None, store, settings.is_legacy)  # type: ignore[arg-type]
    role = None if human is None else RoleModel("human", "human", human, settings.human.sampling)
    return FrontendRuntime(settings, role, drawer)


async def talk(
    agent: Speaker,
    human: Speaker | None,
    /,
    *,
    task: Task = TASK,
    cache: CallCache | None = None,
    store: KeyedStore | None = None,
    **keys: Any,
) -> Trajectory:
    settings = FrontendSettings(**keys)
    limits = RolloutLimits(max_turns=settings.turn_limit())
    engine = RolloutEngine(agent, None, Sampling(), limits, settings.turn_dialect)
    episode = runtime(human, settings, store).episode()
    return await engine.roll_out(episode, task, seed=1, deadline=math.inf, cache=cache or NullCache())


def said_by_human(made: Trajectory) -> list[str]:
    return [one.text for one in made.segments if one.kind == "user"]


def pictures(messages: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Pictures of a request, in their order."""
    urls = [part["image_url"]["url"] for part in messages[-1]["content"] if part["type"] == "image_url"]
    assert all(url.startswith("data:image/png;base64,") for url in urls)
    return [base64.b64decode(url.partition(",")[2]) for url in urls]


@pytest.mark.covers("sweet-1")
@pytest.mark.parametrize("profile", ["default", "legacy"])
async def test_replies_are_cut_at_a_thousand_characters_and_sampled_greedily(profile: str) -> None:
    human = Speaker("x" * 2_000)
    made = await talk(Speaker(page("a"), FINAL), human, profile=profile)
    assert said_by_human(made) == ["x" * 1_000]
    assert [(one.temperature, one.max_tokens) for one in human.samplings] == [(0.0, 4096)]


async def test_human_sees_two_pictures_and_no_text_of_the_dialogue() -> None:
    human = Speaker("Make it red.", "And bigger.")
    await talk(Speaker(page("secret words"), page("b"), FINAL), human)
    target = png(len(TASK.payload["page"]), 3)
    shown = [png(len(f"<html>{text}</html>"), 3) for text in ("secret words", "b")]
    assert [pictures(one) for one in human.prompts] == [[shown[0], target], [shown[1], target]]
    for prompt in human.prompts:
        texts = " ".join(part["text"] for part in prompt[-1]["content"] if part["type"] == "text")
        assert "Picture 1, the assistant's page:" in texts and "Picture 2, the page that you want:" in texts
        assert not any(word in texts for word in (CANARY, TASK.text, "secret words", "I think", "Make it red"))


@pytest.mark.parametrize("message", ["I have no page yet.", page("hangs")])
async def test_message_without_a_picture_shows_the_target_alone(message: str) -> None:
    human = Speaker("Nothing is there.")
    made = await talk(Speaker(message, FINAL), human)
    (prompt,) = human.prompts
    assert len(pictures(prompt)) == 1
    assert "nothing was shown" in " ".join(part.get("text", "") for part in prompt[-1]["content"])
    assert [call.status for call in made.calls if call.tool == PAGE] == [
        "error" if "hangs" in message else "empty",
        "ok",
    ]


async def test_ledger_names_the_picture_of_each_turn_and_the_target_once(tmp_path: Path) -> None:
    store = KeyedStore(LocalStorage(tmp_path), "pictures")
    made = await talk(Speaker(page("a"), page("b") + " cut", FINAL), Speaker("go on"), store=store)
    assert [(call.tool, call.turn, call.id) for call in made.calls] == [
        (TARGET, 0, "t0.target_0"),
        (PAGE, 0, "t0.page_0"),
        (PAGE, 1, "t1.page_0"),
        (PAGE, 2, "t2.page_0"),
    ]
    digests = [noted_picture(call.note) for call in made.calls]
    assert store.get(digests[0]) == png(len(TASK.payload["page"]), 3)
    assert store.get(digests[3]) == png(len("<html>final</html>"), 3)
    assert (made.status, made.truncated) == ("answered", False)


async def test_page_without_its_end_is_drawn_and_noted() -> None:
    made = await talk(Speaker("OUTPUT: <html>cut", FINAL), Speaker("yes"))
    assert made.calls[1].note.endswith(", its closing tag was missing")
    made = await talk(Speaker("OUTPUT: <html>cut", FINAL), Speaker("yes"), profile="legacy")
    assert made.calls[1].status == "empty"


@pytest.mark.covers("sweet-4")
@pytest.mark.parametrize("profile", ["default", "legacy"])
async def test_last_page_stands_for_the_answer(profile: str) -> None:
    human = Speaker("more")
    made = await talk(Speaker(page("a"), page("b"), page("c")), human, max_turns=3, profile=profile)
    assert (made.status, made.truncated, made.num_turns, len(human.prompts)) == ("max_turns", True, 3, 2)
    assert made.calls[-1].turn == 2
    expected = ["more", "more" + NOTICE] if profile == "default" else ["more", "more"]
    assert said_by_human(made) == expected


async def test_step_after_the_end_changes_nothing() -> None:
    human = Speaker("yes")
    episode = runtime(human, FrontendSettings()).episode()
    await episode.reset(TASK, EpisodeOptions())
    assert (await episode.step(ModelTurn(FINAL, 0, "end_of_turn"), StepContext(math.inf))).status == "answered"
    again = await episode.step(ModelTurn(page("x"), 1, "end_of_turn"), StepContext(math.inf))
    assert (again.status, again.calls, human.prompts) == ("answered", (), [])


@pytest.mark.covers("sweet-6")
async def test_target_is_in_no_prompt_of_the_agent_and_in_no_row() -> None:
    agent = Speaker(page("a"), FINAL)
    made = await talk(agent, Speaker("Red."))
    assert all(CANARY not in prompt for prompt in map(repr, agent.prompts))
    assert CANARY not in repr(row_of({}, made, "", "")) and CANARY not in repr(TASK)
    assert CANARY in (FrontendType().hidden_information(FrontendSettings(), TASK) or "")


async def test_dialogue_resumes_from_its_journal_without_asking_again() -> None:
    texts = (page("a"), page("b"), FINAL)
    cache = Units()
    whole = await talk(Speaker(*texts), Speaker("one", "two"), cache=cache)
    for kept in range(len(cache) + 1):
        part = Units(list(cache.items())[:kept])
        agent = Speaker(*texts[sum(unit.startswith("llm") for unit in part) :], FINAL)
        human = Speaker(*("one", "two")[sum(unit.startswith("ask") for unit in part) :], "asked too often")
        again = await talk(agent, human, cache=part)
        assert again.segments == whole.segments and set(part) == set(cache)
        assert [call.note for call in again.calls] == [call.note for call in whole.calls]


async def test_human_that_fails_leaves_the_dialogue_pending_except_for_refusals_in_legacy() -> None:
    with pytest.raises(EndpointUnavailable):
        await talk(Speaker(page("a")), Speaker(EndpointUnavailable("down")))
    with pytest.raises(ModelError):
        await talk(Speaker(page("a")), Speaker(ModelError("refused")))
    made = await talk(Speaker(page("a"), FINAL), Speaker(ModelError("refused")), profile="legacy")
    assert said_by_human(made) == ["No response."]
    with pytest.raises(ConfigError, match=r"add \[models.human\]"):
        await talk(Speaker(page("a")), None)


@pytest.mark.parametrize(
    ("payload", "message"),
    [({}, "payload of task q cannot be used"), ({"page": "<html>hangs</html>"}, "target of task q cannot be drawn")],
)
async def test_task_without_a_picture_of_its_target_is_void(payload: dict[str, str], message: str) -> None:
    with pytest.raises(ToolError, match=message):
        await talk(Speaker(FINAL), Speaker("yes"), task=Task("q", "A page.", payload=payload))


def test_type_is_found_by_name_and_scored_by_similarity() -> None:
    settings = ENVIRONMENTS.parse({"type": "colbench/frontend", "human": {"model": "eyes"}})
    assert isinstance(settings, FrontendSettings) and isinstance(environment_type(settings), FrontendType)
    traits = traits_of(settings)
    assert (traits.resume, traits.roles, traits.scorer) == ("replay", ("human",), "similarity")
    (system, user) = settings.first_messages(TASK)
    assert "at most 10 messages" in system["content"] and user["content"] == TASK.text


def test_window_person_and_style_sheet_change_the_digest(tmp_path: Path) -> None:
    sheet = tmp_path / "tailwind.css"
    sheet.write_text("a{}")
    same = {"browser": {"pages_at_once": 9, "program": "/x"}}
    keys = (
        {},
        {"profile": "legacy"},
        {"browser": {"width": 800}},
        {"stylesheet": sheet},
        {"human": {"reply_chars": 9}},
    )
    digests = {FrontendSettings(**one).digest() for one in keys}
    assert len(digests) == 5 and FrontendSettings(**same).digest() in digests
    sheet.write_text("b{}")
    assert FrontendSettings(stylesheet=sheet).digest() not in digests
    with pytest.raises(ConfigError, match=r"environment.stylesheet .* cannot be read"):
        FrontendSettings(stylesheet=tmp_path / "none").read_stylesheet()
