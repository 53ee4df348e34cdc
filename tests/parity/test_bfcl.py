"""Verdicts of the environment `bfcl` compared with those of the package's runner. Run by `make parity`.

Every task is played as its gold calls say and in five ways that differ in one place, with the calls as text of a model.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.environments.served_environment import served as environments_served
from support.runs.command_line import Desk
from support.servers.scripted_server import RecordedRequest, Reply, served

from treadle.agent.contract import EpisodeOptions, StepContext, Task
from treadle.agent.dialects.forms.hermes import write_call
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.core.engines.cache import cache_root
from treadle.core.engines.environments import install, python_of
from treadle.environments.registry import ENVIRONMENTS, environment_type
from treadle.environments.types import EnvironmentRuntime, Resources

SIDE = Path(__file__).with_name("bfcl_side.py")
STAND_INS = Path(__file__).parents[1] / "support" / "bfcl"
SETTINGS = ENVIRONMENTS.parse({"type": "bfcl"})
DIALECT = FunctionsDialect()
DONE = "Done."
NUM_AT_ONCE = 8


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    install("bfcl")
    folder = tmp_path_factory.mktemp("bfcl")
    env = {**os.environ, "BFCL_PROJECT_ROOT": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(STAND_INS)}
    done = subprocess.run([python_of("bfcl"), SIDE], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    counts = Counter((one["kind"], one["verdict"][0]) for one in found)
    assert counts["gold", True] == 800 and len(found) == 6 * 800
    assert all(min(counts[kind, True], counts[kind, False]) > 20 for kind in ("changed", "added", "reordered"))
    return found


def turns_of(conversation: Mapping[str, Any]) -> Iterator[str]:
    """Yield the turns of the model as text; one with unreadable calls is the last before the user goes on."""
    for steps in conversation["turns"]:
        for calls in steps:
            texts = [given if isinstance(given, str) else json.dumps(given) for _, given in calls]
            yield "\n".join(write_call(name, text) for (name, _), text in zip(calls, texts, strict=True))
        if not any(isinstance(given, str) for calls in steps[-1:] for _, given in calls):
            yield DONE


async def played(runtime: EnvironmentRuntime, conversation: Mapping[str, Any]) -> bool | None:
    episode = runtime.episode()
    await episode.reset(Task("k", "?", payload=dict.fromkeys(("id", "task_id"), conversation["id"])), EpisodeOptions())
    status = None
    for number, text in enumerate(turns_of(conversation)):
        assert status is None
        turn = DIALECT.read(text, number, "end_of_turn")
        status = (await episode.step(turn, StepContext(float("inf"), seed=number))).status
    outcome = await episode.outcome()
    await episode.close()
    assert status == "finished" and outcome is not None
    return outcome.success


async def test_verdicts_are_those_of_the_package(conversations: list[dict[str, Any]]) -> None:
    async with environment_type(SETTINGS).open(SETTINGS, Resources()) as runtime:
        differing = [
            (one["id"], one["kind"], one["verdict"])
            for one in conversations
            if await played(runtime, one) != one["verdict"][0]
        ]
    assert differing == []


async def test_verdicts_through_service_and_client_are_those_of_the_package(
    conversations: list[dict[str, Any]],
) -> None:
    """Calls go over the wire as native ones, several conversations at once."""
    async with environments_served("bfcl") as (client, service):
        settings = ENVIRONMENTS.parse(
            {"type": "service", "url": client.url, "env_type": "bfcl", "tool_calls": "native", "resume": "restart"}
        )
        async with environment_type(settings).open(settings, Resources()) as runtime:
            waiting = iter(conversations)
            differing: list[tuple[Any, ...]] = []

            async def play_waiting() -> None:
                for one in waiting:
                    if (found := await played(runtime, one)) != one["verdict"][0]:
                        differing.append((one["id"], one["kind"], one["verdict"], found))

            await asyncio.gather(*(play_waiting() for _ in range(NUM_AT_ONCE)))
        assert len(service.instances) == 0
    assert differing == []


@pytest.mark.parametrize("category", ["base", "miss_func", "miss_param", "long_context"])
def test_verdicts_of_eval_are_those_of_the_package(
    conversations: list[dict[str, Any]], category: str, tmp_path: Path
) -> None:
    """One model per kind of conversation plays all tasks of a category over a chat service."""
    chosen = [one for one in conversations if one["id"].rpartition("_")[0] == f"multi_turn_{category}"]
    scripts = {(one["kind"], one["id"]): list(turns_of(one)) for one in chosen}
    kinds = sorted({kind for kind, _ in scripts})
    # A server cannot tell tasks apart that begin alike.
    begun = Counter(one["first"] for one in chosen)
    chosen = [one for one in chosen if begun[one["first"]] == 6]
    ids = {one["first"]: one["id"] for one in chosen}
    assert len(ids) > 190

    def answer(kind: str, request: RecordedRequest) -> Reply:
        messages = request.messages or []
        name = ids.get(str(messages[0]["content"]))
        if name is None:
            return Reply(DONE)  # a check of the server
        script = scripts[kind, name]
        return Reply(script[sum(message["role"] == "assistant" for message in messages)])

    desk = Desk(tmp_path)
    with contextlib.ExitStack() as stack:
        models = ""
        for kind in kinds:
            server = stack.enter_context(served(functools.partial(answer, kind), chat_only=True))
            models += f'[models.{kind}]\nmodel = "scripted"\napi = "chat"\nendpoints = [{{ url = "{server.url}" }}]\n'
        (tmp_path / "models.toml").write_text(f"flow.models = {json.dumps(kinds)}\n{models}")
        common = ("eval", "models.toml", "--benchmark", "bfcl-multi-turn", "--run", "r")
        chosen_category = ("--set", f'environments.bfcl-multi-turn.categories=["{category}"]')
        desk.treadle(*common, *chosen_category, TREADLE_CACHE=str(cache_root())).succeeded()
    questions = desk.rows("r", "1/questions", "questions")
    keys = {row["question_key"]: json.loads(row["payload"])["id"] for row in questions}
    for kind in kinds:
        rows = desk.rows("r", f"1/scores@{kind}", "scores")
        found = {keys[row["question_key"]]: row["correct"] for row in rows if keys[row["question_key"]] in ids.values()}
        assert found == {one["id"]: one["verdict"][0] for one in chosen if one["kind"] == kind}, kind
