"""The played vLLM of the table of servers answers as the real one does, in all that Treadle reads."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

from support.model_servers.played_servers import SERVERS, WINDOW, Player
from support.tables.given_questions import TOKENIZER

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.serving import ServedModel
from treadle.core.llm.config import ModelSettings
from treadle.core.llm.failures import failure_of
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.preflight import STOP_TEXTS
from treadle.core.llm.stops import stop_within
from treadle.core.llm.types import ServerFacts
from treadle.core.llm.wire import parse_chat, parse_probe

(PLAYED,) = [one for one in SERVERS if one.name == "vLLM"]
READ_KEYS = ("text", "token_ids", "prompt_token_ids", "finish_reason", "stop_reason", "index")
GREEDY = {"max_tokens": 12, "temperature": 0.0, "include_stop_str_in_output": True, "return_token_ids": True}


def post(url: str, **body: Any) -> tuple[int, bytes]:
    """Return status and body of an answer."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def observed(url: str, model: str) -> dict[str, object]:
    """Return what the table claims of a server, as it answers raw requests: fields, ids, stop strings, errors."""
    completions, chat = f"{url}/completions", f"{url}/chat/completions"
    _, free = post(completions, model=model, prompt=STOP_TEXTS[0], **GREEDY)
    stop = stop_within(parse_probe(free).text)
    _, stopped = post(completions, model=model, prompt=STOP_TEXTS[0], stop=[stop], **GREEDY)
    answer, (choice,) = parse_probe(stopped), json.loads(stopped)["choices"]
    words = [{"role": "user", "content": "Say hello."}]
    _, without = post(completions, model=model, prompt="x", max_tokens=1)
    _, said = post(chat, model=model, messages=words, max_tokens=8)
    parse_chat(said)
    message = json.loads(said)["choices"][0]["message"]
    refusals = {
        "too long": post(completions, model=model, prompt="long " * 2 * WINDOW, max_tokens=1),
        "another model": post(chat, model="another", messages=words, max_tokens=1),
    }
    return {
        "fields": {key: type(choice.get(key)).__name__ for key in READ_KEYS},
        "stop": (answer.finish_reason, answer.stop_reason == stop, answer.text.endswith(str(stop)), answer.own_end),
        "ids": (answer.token_ids is not None, answer.prompt_ids is not None, bool(answer.completion_tokens)),
        "without ids": json.loads(without)["choices"][0].get("token_ids"),
        "chat": (type(message["content"]).__name__, PLAYED.reasoning in message),
        "refusals": {name: (status, failure_of(status, {}, data).kind) for name, (status, data) in refusals.items()},
    }  # fmt: skip


async def facts_of(url: str, model: str, api: str, vocabulary: ChatTokenizer | None = None) -> ServerFacts:
    data = {"model": model, "endpoints": [{"url": url}], "api": api, "retry_limit": 0}
    async with ModelPool("m", ModelSettings.model_validate(data)) as pool:
        return await pool.check(vocabulary)


async def test_played_vllm_answers_as_the_real_one(served_embedded_model: ServedModel) -> None:
    real = served_embedded_model
    async with Player(PLAYED, lambda request: "ok", TOKENIZER) as server:
        played = await asyncio.to_thread(observed, server.url, server.model)
        assert played == await asyncio.to_thread(observed, real.url, real.model)
        assert real.tokenizer_folder is not None
        tokenizer = ChatTokenizer.load(real.tokenizer_folder)
        for api in ("completions", "chat"):
            ours = await facts_of(server.url, server.model, api)
            theirs = await facts_of(real.url, real.model, api, tokenizer if api == "completions" else None)
            for name in ("token_ids", "refused_keys", "needs_reasoning"):
                assert getattr(ours, name) == getattr(theirs, name), name
            assert list(ours.stops.values()) == list(theirs.stops.values())
            assert (ours.max_model_len, theirs.max_model_len) == (WINDOW, 2048)
