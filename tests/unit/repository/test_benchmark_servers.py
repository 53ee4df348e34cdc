"""The official `openai` client talks to the servers that benchmarks measure clients with."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from openai import OpenAI

ROOT = Path(__file__).resolve().parents[3]
QUESTION = [{"role": "user", "content": "(item 0000001/3) What is the height?"}]


@contextmanager
def client_of(*command: str) -> Iterator[OpenAI]:
    """Yield a client of a server that prints its port and ends when its standard input closes."""
    argv = [sys.executable, *command, "--delay", "0"]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdin is not None
        port = int(server.stdout.readline())
        with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="EMPTY", max_retries=0) as client:
            yield client
        server.stdin.close()


def test_server_of_peers_has_chat_calls_and_completions(tmp_path: Path) -> None:
    with client_of("benchmarks/peers/server.py", str(tmp_path / "log")) as client:
        (model,) = client.models.list()
        chat = client.chat.completions.create(model=model.id, messages=QUESTION)  # type: ignore[arg-type]
        (call,) = chat.choices[0].message.tool_calls or ()
        assert call.type == "function" and call.function.name == "search"
        assert chat.choices[0].finish_reason == "tool_calls" and chat.usage is not None
        text = client.completions.create(model=model.id, prompt=QUESTION[0]["content"])
        assert "<search>" in text.choices[0].text and text.usage is not None
        with pytest.raises(openai.BadRequestError, match="does not stream"):
            client.chat.completions.create(model=model.id, messages=QUESTION, stream=True)  # type: ignore[call-overload]
        with pytest.raises(openai.NotFoundError, match="not found"):
            client.embeddings.create(model=model.id, input="x")
    assert len((tmp_path / "log").read_bytes().splitlines()) == 2


def test_server_of_canned_turns_has_completions_alone() -> None:
    with client_of("-m", "benchmarks.parts.stub_server") as client:
        (model,) = client.models.list()
        text = client.completions.create(model=model.id, prompt=[257, 1, 2], stop=["</search>"])
        assert text.choices[0].text.endswith("year of completion</search>") and text.choices[0].finish_reason == "stop"
        assert text.usage is not None and text.usage.prompt_tokens == 3
        with pytest.raises(openai.BadRequestError, match="does not stream"):
            client.completions.create(model=model.id, prompt=[257, 1, 2], stream=True)
        with pytest.raises(openai.NotFoundError, match="only /v1/completions"):
            client.chat.completions.create(model=model.id, messages=QUESTION)  # type: ignore[arg-type]
