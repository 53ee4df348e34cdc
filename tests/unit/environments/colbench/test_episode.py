"""Dialogues of a scripted agent with a scripted person, on the real engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from treadle.agent.call_cache import CallCache, NullCache
from treadle.agent.contract import EpisodeOptions, ModelTurn, Observation, StepContext, Task, TurnEnd
from treadle.agent.model_types import RolloutLimits
from treadle.agent.role import RoleModel
from treadle.agent.rollout import RolloutEngine
from treadle.agent.trajectory import Trajectory
from treadle.core.errors import ContextTooLong, EndpointUnavailable, ModelError, ToolError
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.environments.colbench.episode import NOTICE, BackendEpisode
from treadle.environments.colbench.human import NO_REPLY, Said, cut_reply, human_messages
from treadle.environments.colbench.kind import BackendRuntime, BackendType
from treadle.environments.colbench.settings import ColbenchSettings
from treadle.environments.rollouts.rows import row_of

CANARY = "canary_71c"
TASK = Task(
    "q",
    "Write add(a, b).",
    dataset="colbench",
    payload={"reference": f"def add(a, b):\n    return a + b  # {CANARY}", "tests": {"1": "add(1, 2)"}, "extra": {}},
)
ANSWER = "I WANT TO ANSWER:\ndef add(a, b):\n    return a + b"


def completion(text: str) -> Completion:
    return Completion(text, (), "stop", None, 1, 1, "http://x/v1", 0.0, 0)


class Speaker:
    """Model that says the given texts in turn, the last one again and again; an exception is raised."""

    def __init__(self, *texts: str | Exception) -> None:
        self.texts = texts
        self.prompts: list[str] = []
        self.samplings: list[Sampling] = []

    def _next(self, prompt: str) -> Completion:
        text = self.texts[min(len(self.prompts), len(self.texts) - 1)]
        self.prompts.append(prompt)
        if isinstance(text, Exception):
            raise text
        return completion(text)

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        assert isinstance(request.prompt, str)
        return self._next(request.prompt)

    async def chat(self, messages: Sequence[Mapping[str, Any]], sampling: Sampling, **_: Any) -> Completion:
        self.samplings.append(sampling)
        return self._next("\n".join(one["content"] for one in messages))


class Units(dict[str, bytes]):
    """Cache of one rollout that survives a kill."""

    def append(self, unit: str, value: bytes) -> None:
        assert unit not in self, f"{unit} was paid for twice"
        self[unit] = value


def role(human: Speaker, settings: ColbenchSettings) -> RoleModel:
    return RoleModel("human", "human", human, settings.human.sampling)


async def talk(
    agent: Speaker, human: Speaker, /, *, task: Task = TASK, cache: CallCache | None = None, **keys: Any
) -> Trajectory:
    settings = ColbenchSettings(**keys)
    limits = RolloutLimits(max_turns=settings.turn_limit())
    engine = RolloutEngine(agent, None, Sampling(), limits, settings.turn_dialect)
    episode = BackendRuntime(settings, role(human, settings)).episode()
    return await engine.roll_out(episode, task, seed=1, deadline=math.inf, cache=cache or NullCache())


def said_by_human(made: Trajectory) -> list[str]:
    return [one.text for one in made.segments if one.kind == "user"]


@pytest.mark.covers("sweet-1")
@pytest.mark.parametrize("profile", ["default", "legacy"])
async def test_replies_are_cut_and_sampled_greedily(profile: str) -> None:
    human = Speaker("x" * 1_000)
    made = await talk(Speaker("Which one?", ANSWER), human, profile=profile)
    assert said_by_human(made) == ["x" * 400]
    assert [one.temperature for one in human.samplings] == [0.0]
    made = await talk(Speaker("Which one?", ANSWER), human, human={"reply_chars": 7})
    assert said_by_human(made) == ["x" * 7]


def test_reply_ends_with_a_whole_word_except_in_legacy() -> None:
    text = "one two three"
    assert [cut_reply(text, count) for count in (13, 12, 7, 6, 2)] == [text, "one two", "one two", "one", "on"]
    assert cut_reply(text, 6, legacy=True) == "one tw"
    assert (cut_reply(" \n", 10), cut_reply("", 10, legacy=True)) == (NO_REPLY, "")


@pytest.mark.covers("sweet-4")
@pytest.mark.parametrize("profile", ["default", "legacy"])
async def test_last_message_stands_for_the_answer(profile: str) -> None:
    agent, human = Speaker("one", "two", "three"), Speaker("yes")
    made = await talk(agent, human, max_turns=3, profile=profile)
    assert (made.status, made.truncated, made.num_turns) == ("max_turns", True, 3)
    assert len(human.prompts) == 2
    messages = [one for one in made.segments if one.kind != "frame"]
    assert [one.kind for one in messages] == ["text", "user"] * 2 + ["text"], "with the request, six messages"
    assert messages[-1].text == "three"


async def test_step_after_the_end_changes_nothing() -> None:
    human, settings = Speaker("yes"), ColbenchSettings(max_turns=3)
    episode = BackendEpisode(settings, role(human, settings))
    await episode.reset(TASK, EpisodeOptions())
    context = StepContext(math.inf)
    assert (await episode.step(ModelTurn(ANSWER, 0, "end_of_turn"), context)).status == "answered"
    again = await episode.step(ModelTurn("One more question?", 1, "end_of_turn"), context)
    assert again == Observation(status="answered") and human.prompts == []


@pytest.mark.parametrize("ended", ["filtered", "context_full", "budget"])
async def test_turn_that_the_engine_ended_ends_the_dialogue(ended: TurnEnd) -> None:
    human, settings = Speaker("yes"), ColbenchSettings(max_turns=3)
    episode = BackendEpisode(settings, role(human, settings))
    await episode.reset(TASK, EpisodeOptions())
    assert (await episode.step(ModelTurn(ANSWER, 0, ended), StepContext(math.inf))).status == ended
    assert human.prompts == []


async def test_notice_comes_before_the_last_turn_and_not_in_legacy() -> None:
    human = Speaker("yes")
    made = await talk(Speaker("a", "b", "c"), human, max_turns=3)
    assert said_by_human(made) == ["yes", "yes" + NOTICE]
    assert all(NOTICE not in prompt for prompt in human.prompts)
    assert said_by_human(await talk(Speaker("a", "b", "c"), human, max_turns=3, profile="legacy")) == ["yes", "yes"]


async def test_human_sees_what_is_shown_and_the_hidden_program() -> None:
    human = Speaker("Two numbers.", "Sums.")
    await talk(Speaker("secret thought OUTPUT: What?", "And then?", ANSWER), human)
    first, second = human.prompts
    assert CANARY in first and "secret thought" not in first + second
    assert "human: Write add(a, b).\n\nagent: What?\n\nhuman: Two numbers.\n\nagent: And then?" in second
    assert second.endswith("human:")


def test_texts_that_fill_a_prompt_are_not_read_again() -> None:
    (_, message) = human_messages("{description}|{transcript}|{cue}", "{reference}", "R", [Said("agent", "{cue}")])
    assert message["content"] == "{reference}|agent: {cue}|human:"
    assert human_messages("{cue}", "", "", [], legacy=True)[1]["content"] == "agent:"


@pytest.mark.covers("sweet-6")
async def test_reference_is_in_no_prompt_of_the_agent_and_in_no_row() -> None:
    agent, human = Speaker("What?", ANSWER), Speaker("Sums.")
    made = await talk(agent, human)
    assert all(CANARY not in prompt for prompt in agent.prompts)
    assert CANARY not in repr(row_of({}, made, "", ""))
    assert all(CANARY in prompt for prompt in human.prompts)
    assert CANARY in (BackendType().hidden_information(ColbenchSettings(), TASK) or "")
    assert CANARY not in repr(TASK)


async def test_dialogue_resumes_from_its_journal_without_asking_again() -> None:
    texts = ("a", "b", ANSWER)
    cache = Units()
    whole = await talk(Speaker(*texts), Speaker("one", "two"), cache=cache, max_turns=4)
    for kept in range(len(cache) + 1):
        part = Units(list(cache.items())[:kept])
        agent = Speaker(*texts[sum(unit.startswith("llm") for unit in part) :], ANSWER)
        human = Speaker(*("one", "two")[sum(unit.startswith("ask") for unit in part) :], "asked too often")
        again = await talk(agent, human, cache=part, max_turns=4)
        assert again.segments == whole.segments and part == cache
        assert not human.prompts or "agent: a" in human.prompts[-1]


async def test_human_that_fails_leaves_the_dialogue_pending() -> None:
    with pytest.raises(EndpointUnavailable):
        await talk(Speaker("What?"), Speaker(EndpointUnavailable("down")))
    with pytest.raises(EndpointUnavailable):
        await talk(Speaker("What?"), Speaker(EndpointUnavailable("down")), profile="legacy")
    with pytest.raises(ModelError):
        await talk(Speaker("What?"), Speaker(ModelError("refused")))
    assert (await talk(Speaker("What?"), Speaker(ContextTooLong("too long")))).status == "context_full"
    made = await talk(Speaker("What?", ANSWER), Speaker(ModelError("refused")), profile="legacy")
    assert said_by_human(made) == [NO_REPLY]


async def test_task_without_a_reference_is_named() -> None:
    with pytest.raises(ToolError, match="payload of task q cannot be used: reference is no text"):
        await talk(Speaker(ANSWER), Speaker("yes"), task=Task("q", "Write f.", payload={"tests": {"1": CANARY}}))


def test_prompts_and_people_change_the_digest() -> None:
    digests = {
        ColbenchSettings(**keys).digest()
        for keys in (
            {}, {"profile": "legacy"}, {"max_turns": 9}, {"instructions": "x"}, {"human": {"instructions": "x"}},
            {"human": {"reply_chars": 9}}, {"human": {"model": "other"}},
        )
    }  # fmt: skip
    assert len(digests) == 7
    with pytest.raises(ValueError, match="has no calls"):
        ColbenchSettings(tools={"f": {"type": "support.rollouts.own_tools:population"}})


def test_agent_is_told_its_number_of_messages() -> None:
    (system, user) = ColbenchSettings(max_turns=7).first_messages(TASK)
    assert "at most 7 messages" in system["content"] and user == {"role": "user", "content": TASK.text}
    assert [one["role"] for one in ColbenchSettings(instructions="").first_messages(TASK)] == ["user"]
