"""The environment `service`, against a service written after the original's and against Treadle's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from aiohttp import web
from support.environments.original_service import CUT, OriginalService, original_service
from support.environments.served_environment import served

from treadle.agent.contract import (
    EpisodeDiverged,
    EpisodeOptions,
    InitialState,
    ModelTurn,
    Observation,
    Outcome,
    StepContext,
    Task,
    TurnEnd,
)
from treadle.core.config import load_config
from treadle.core.errors import ConfigError, ToolError
from treadle.environments.ledger.assignment import Assignment
from treadle.environments.ledger.environment import solution_text
from treadle.environments.registry import ENVIRONMENTS, environment_type, traits_of
from treadle.environments.remote import client as client_module
from treadle.environments.remote.replies import InstanceLost, ReplyUnusable, ServiceRefused, ServiceUnavailable
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.types import EnvironmentRuntime, Resources
from treadle.tasks.config import TreadleConfig

TASK = Task("k", "Task t3", payload={"task_id": "t3"})


@pytest.fixture
async def service() -> AsyncIterator[OriginalService]:
    async with original_service() as one:
        yield one


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(client_module, "_MAX_ASKED_PAUSE_S", 0.01)


def settings_for(url: str, **more: Any) -> EnvironmentSettings:
    return ENVIRONMENTS.parse({"type": "service", "url": url, "env_type": "counter", **more})


def opened(url: str, **more: Any) -> Any:
    settings = settings_for(url, **more)
    return environment_type(settings).open(settings, Resources())


async def begun(runtime: EnvironmentRuntime, task: Task = TASK) -> tuple[Any, InitialState]:
    episode = runtime.episode()
    return episode, await episode.reset(task, EpisodeOptions(seed=7))


async def act(episode: Any, number: int, text: str, ended: TurnEnd = "end_of_turn") -> Observation:
    return await episode.step(ModelTurn(text, number, ended), StepContext(float("inf")))  # type: ignore[no-any-return]


async def test_profile_becomes_tasks_and_the_score_the_outcome(service: OriginalService) -> None:
    settings = settings_for(service.url, splits={"heldout": "test_normal"})
    rows = [row async for row in environment_type(settings).tasks(settings, "heldout", 0)]
    assert [row["payload"] for row in rows] == [{"task_id": "t4"}] and traits_of(settings).brings_tasks
    async with opened(service.url) as runtime:
        for text, expected in (("add 3", Outcome(1.0, True)), ("add 2", Outcome(0.0, False))):
            episode, initial = await begun(runtime)
            assert [one["role"] for one in initial.messages] == ["system", "user"]
            assert (await act(episode, 0, text)).messages[0].role == "user"
            assert (await act(episode, 1, "submit")).status == "finished"
            assert await episode.outcome() == expected
            await episode.close()
    assert service.live == {}
    requests = [body["request_id"] for path, body in service.asked if path == "/step"]
    names = [body["instance_id"] for path, body in service.asked if path == "/create"]
    assert requests == [f"{name}.{number}" for name in names for number in (0, 1)] and len(set(names)) == 2
    assert all(name.startswith("k-7-") for name in names)


async def test_resumed_episode_acts_again_on_a_new_instance_and_compares(service: OriginalService) -> None:
    async with opened(service.url) as runtime:
        first, _ = await begun(runtime)
        recorded = await act(first, 0, "add 1")
        again, _ = await begun(runtime)
        await again.replay(ModelTurn("add 1", 0, "end_of_turn"), recorded, StepContext(float("inf")))
        assert (await act(again, 1, "add 1")).messages[0].text == "It is 2."
        with pytest.raises(EpisodeDiverged):
            await again.replay(ModelTurn("add 1", 2, "end_of_turn"), recorded, StepContext(float("inf")))
        assert [one.steps for one in service.made] == [["add 1"], ["add 1", "add 1", "add 1"]]
        await first.close()
        await again.close()
    async with opened(service.url, resume="restart") as runtime:
        restarted, _ = await begun(runtime)
        with pytest.raises(EpisodeDiverged):
            await restarted.replay(ModelTurn("add 1", 0, "end_of_turn"), recorded, StepContext(float("inf")))
        await restarted.close()


@pytest.mark.covers("service-11")
async def test_step_whose_reply_was_lost_is_not_acted_twice_and_nothing_is_made_up(service: OriginalService) -> None:
    service.mishap = lambda path, number, acted: CUT if acted and path == "/step" else None
    async with opened(service.url) as runtime:
        episode, _ = await begun(runtime)
        with pytest.raises(ServiceUnavailable) as failed:
            await act(episode, 0, "add 3")
        assert failed.value.retryable and service.made[0].steps == ["add 3"]
        # A turn that was not answered did not happen, so there is nothing to score.
        assert await episode.outcome() is None
        await episode.close()


@pytest.mark.parametrize("path", ["/get_env_profile", "/create", "/evaluate", "/release"])
async def test_calls_that_cannot_act_twice_are_repeated(service: OriginalService, path: str) -> None:
    service.mishap = lambda at, number, acted: CUT if at == path and number < 2 and acted else None
    settings = settings_for(service.url)
    rows = [row async for row in environment_type(settings).tasks(settings, "train", 0)]
    assert len(rows) == 2
    async with opened(service.url) as runtime:
        episode, _ = await begun(runtime)
        await act(episode, 0, "add 3")
        assert await episode.outcome() == Outcome(1.0, True)
        await episode.close()
    assert service.live == {} and sum(at == path for at, _ in service.asked) == 3


async def test_full_service_is_asked_again_then_leaves_the_rollout_pending(service: OriginalService) -> None:
    full = {"success": False, "error": {"code": "capacity", "message": "full", "retryable": True}}

    def mishap(path: str, number: int, acted: bool) -> web.Response | None:
        return web.json_response(full, status=429) if path == "/create" and not acted else None

    service.mishap = mishap
    async with opened(service.url, retry_limit=2) as runtime:
        with pytest.raises(ServiceUnavailable):
            await begun(runtime)
    assert sum(path == "/create" for path, _ in service.asked) == 3 and service.made == []


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ({"success": True, "data": {"state": [], "is_terminated": True, "info": {}}}, ReplyUnusable),
        ({"success": True, "data": {"state": [{"role": "user", "content": "x"}], "reward": 0.0}}, ReplyUnusable),
        ({"success": True, "data": {"state": [{"role": "user"}], "is_terminated": False}}, ReplyUnusable),
        ({"success": True}, ReplyUnusable),
        (["x"], ReplyUnusable),
        ({"success": False, "error": {"code": "env_timeout", "message": "m", "retryable": False}}, InstanceLost),
        ({"success": False, "error": {"code": "unauthorized", "message": "m"}}, ServiceRefused),
    ],
)
async def test_reply_that_says_too_little_is_an_error(
    service: OriginalService, reply: Any, error: type[ToolError]
) -> None:
    service.mishap = lambda path, number, acted: web.json_response(reply) if path == "/step" else None
    async with opened(service.url) as runtime:
        episode, _ = await begun(runtime)
        with pytest.raises(error):
            await act(episode, 0, "add 3")
        await episode.close()


@pytest.mark.parametrize("score", [{"valid": True}, "1.0", None, 0.5, True, "NaN"])
async def test_what_is_no_score_is_an_error(service: OriginalService, score: Any) -> None:
    body = '{"success": true, "data": NaN}' if score == "NaN" else None
    given = {"success": True, "data": score}

    def mishap(path: str, number: int, acted: bool) -> web.Response | None:
        if path != "/evaluate":
            return None
        return web.Response(text=body, content_type="application/json") if body else web.json_response(given)

    service.mishap = mishap
    async with opened(service.url) as runtime:
        episode, _ = await begun(runtime)
        await act(episode, 0, "add 3")
        with pytest.raises(ReplyUnusable):
            await episode.outcome()
        await episode.close()


async def test_dense_score_of_the_originals_bfcl_is_named(service: OriginalService) -> None:
    async with opened(service.url, sparse=False) as runtime:
        episode, _ = await begun(runtime)
        await act(episode, 0, "add 3")
        with pytest.raises(ReplyUnusable, match="sparse = true"):
            await episode.outcome()
        await episode.close()


async def test_errors_of_the_original_are_one_line(service: OriginalService) -> None:
    async with opened(service.url) as runtime:
        episode, _ = await begun(runtime)
        with pytest.raises(InstanceLost) as failed:
            await act(episode, 0, "nonsense")
        assert "ValueError: say add N or submit" in str(failed.value)
        assert "\n" not in str(failed.value) and "\x1b" not in str(failed.value) and "/home" not in str(failed.value)
        service.live.clear()
        with pytest.raises(InstanceLost, match="not found"):
            await act(episode, 1, "add 1")
        await episode.close()
    other = settings_for(service.url, env_type="other")
    with pytest.raises(ServiceRefused, match="unknown env") as refused:
        [row async for row in environment_type(other).tasks(other, "train", 0)]
    assert not refused.value.retryable


FULL_TRACEBACK = "Traceback (most recent call last):\n  File \"/home/someone/service.py\", line 9\nKeyError: 'x'\n"
UNFIT = [{"type": "dict_type", "loc": ["body", "messages"], "msg": "Input should be a valid dictionary", "input": "x"}]


@pytest.mark.covers("service-11")
@pytest.mark.parametrize("path", ["/create", "/step", "/evaluate"])
@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"detail": FULL_TRACEBACK}, 500, InstanceLost),
        ({"detail": UNFIT}, 422, ServiceRefused),
        ({"detail": "Instance x not found!"}, 400, InstanceLost),
        ({"success": False, "data": None}, 200, ReplyUnusable),
        ("<html>busy</html>", 200, ReplyUnusable),
        ("<html>Bad gateway</html>", 502, ServiceUnavailable),
        ("", 200, ReplyUnusable),
        ('{"success": true, "data": {"state"', 200, ReplyUnusable),
    ],
)
async def test_failures_of_the_original_make_up_nothing(
    service: OriginalService, path: str, body: Any, status: int, error: type[ToolError]
) -> None:
    text = body if isinstance(body, str) else orjson.dumps(body).decode()
    service.mishap = lambda at, number, acted: web.Response(text=text, status=status) if at == path else None
    async with opened(service.url, retry_limit=0) as runtime:
        episode = runtime.episode()
        with pytest.raises(error) as failed:
            await episode.reset(TASK, EpisodeOptions(seed=7))
            await act(episode, 0, "add 3")
            await episode.outcome()
        await episode.close()
    assert "\n" not in str(failed.value) and "/home" not in str(failed.value)
    # Nothing but the release of what may have been made follows.
    assert [at for at, _ in service.asked][-2:] == [path, "/release"]


@pytest.mark.parametrize("path", ["/create", "/step", "/evaluate"])
async def test_sudden_end_of_the_original_is_told(service: OriginalService, path: str) -> None:
    service.mishap = lambda at, number, acted: CUT if at == path and acted else None
    async with opened(service.url, retry_limit=0) as runtime:
        episode = runtime.episode()
        with pytest.raises(ServiceUnavailable) as failed:
            await episode.reset(TASK, EpisodeOptions(seed=7))
            await act(episode, 0, "add 3")
            await episode.outcome()
        assert failed.value.retryable
        await episode.close()
    assert service.live == {} and [one.steps for one in service.made] == [["add 3"] if path != "/create" else []]


async def test_instance_that_the_service_no_longer_knows_is_released_all_the_same(
    service: OriginalService, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(service.url) as runtime:
        episode, _ = await begun(runtime)
        service.live.clear()
        await episode.close()
    assert not [one for one in caplog.records if one.levelname == "WARNING"]


async def test_ids_of_instances_are_fit_for_folders(service: OriginalService) -> None:
    async with opened(service.url) as runtime:
        episode, _ = await begun(runtime, Task("../a b/ü", "?", payload={"task_id": "t3"}))
        await episode.close()
    (name,) = (body["instance_id"] for path, body in service.asked if path == "/create")
    assert name.startswith(".._a_b__-7-")


async def test_turn_that_the_window_cut_is_not_sent(service: OriginalService) -> None:
    async with opened(service.url) as runtime:
        episode, _ = await begun(runtime)
        assert (await act(episode, 0, "add", ended="context_full")).status == "context_full"
        assert await episode.outcome() is None and service.made[0].steps == []
        await episode.close()


async def test_service_of_ours_is_asked_again_for_a_lost_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served("ledger") as (other, _):
        settings = settings_for(other.url, env_type="ledger")
        rows = [row async for row in environment_type(settings).tasks(settings, "heldout", 0)]
        assert len(rows) == 50
        async with opened(other.url, env_type="ledger") as runtime:
            assert runtime.shared.keeps_replies
            sent, lost = runtime.shared._sent, [0]

            async def lossy(path: str, body: bytes | None) -> Any:
                reply = await sent(path, body)
                if path == "/step" and lost[0] < 3:
                    lost[0] += 1
                    raise client_module.Failure("reset", "the reply was lost")
                return reply

            monkeypatch.setattr(runtime.shared, "_sent", lossy)
            (task,) = (Task("k", "?", payload=row["payload"]) for row in rows[:1])
            episode, initial = await begun(runtime, task)
            local = ENVIRONMENTS.parse("ledger")
            seeds = [row["payload"]["seed"] async for row in environment_type(local).tasks(local, "heldout", 0)]
            assert initial.messages[-1]["content"] == Assignment.make(seeds[0]).text
            lines = solution_text(Assignment.make(seeds[0]))
            for number, line in enumerate(lines):
                observation = await act(episode, number, line)
            assert observation.status == "finished" and lost == [3]
            ((_, facts),) = (await other.instances()).items()
            assert facts["num_steps"] == len(lines)
            assert await episode.outcome() == Outcome(1.0, True)
            await episode.close()
        assert await other.instances() == {}


async def test_server_that_is_down_leaves_rollouts_pending() -> None:
    with pytest.raises(ServiceUnavailable):
        async with opened("http://127.0.0.1:9", retry_limit=1):
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "keys", [{"url": "ftp://x"}, {"url": "http://me:secret@x"}, {"tools": {"t": {"type": "mcp", "command": ["x"]}}}]
)
def test_wrong_settings_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(TreadleConfig, data={"environment": {"type": "service", **keys}})
    assert "secret" not in str(refused.value)
