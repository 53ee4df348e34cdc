"""Serve all peers as the model: canned responses after a fixed delay, and a log of every response sent.

Implements `/v1/chat/completions` (with tool calls) and `/v1/completions` (text, or token ids of the byte tokenizer),
without streaming, on a bare asyncio protocol, so that the client dominates the measurement. The item and the number of
the call are parsed from the prompt (work.py). Each response is logged in one line once its last byte is passed to the
kernel. Requests without an item (a peer's health check) are answered but not logged.

    python benchmarks/peers/server.py LOG --delay 0.2      prints the port, serves until its standard input closes
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import cast

import repeats
import work

_ITEM = re.compile(rb"\(item (\d{7})/(\d)\)")
_ITEM_IDS = re.compile(rb"40,105,116,101,109,32,((?:\d\d,){7})47,(\d\d),41\b")
_TOOL = re.compile(rb'"role":\s*"tool"')
_RESULT = b"</result>"
_TURN_START_ID = 257
"""Id of `<|im_start|>` in the byte tokenizer."""


def _ids(text: bytes) -> bytes:
    return b",".join(b"%d" % byte for byte in text)


_RESULT_IDS, _TURN_IDS = _ids(_RESULT), b",%d," % _TURN_START_ID


def call_of_chat(body: bytes) -> tuple[repeats.Call, int] | None:
    """Parse item, number of the call, and the item's number of calls; None for a request without an item."""
    found = _ITEM.search(body)
    return found and ((int(found[1]), len(_TOOL.findall(body))), int(found[2]))


def call_of_completion(body: bytes) -> tuple[repeats.Call, int] | None:
    """Parse the same from a prompt in ids or text, where tool results are blocks in the assistant's turn."""
    if found := _ITEM_IDS.search(body):
        digits = bytes(int(digit) for digit in found[1].split(b",")[:-1])
        return (int(digits), body.count(_RESULT_IDS, body.rfind(_TURN_IDS))), int(found[2]) - 48
    found = _ITEM.search(body)
    return found and ((int(found[1]), body.count(_RESULT, body.rfind(b"<|im_start|>"))), int(found[2]))


def _step(call: int, num_calls: int) -> int:
    """Return which of the three texts is due: an item with one call gets the last."""
    return min(2, call + 3 - num_calls)


@cache
def chat_reply(step: int) -> bytes:
    """Return a chat completion: a search, a program, or the answer."""
    name, argument = (("search", {"query": work.QUERY}), ("python", {"code": work.PROGRAM}), ("", {}))[step]
    message = {"role": "assistant", "content": work.THOUGHTS[step] + ("" if name else work.ANSWER)}
    if name:
        function = {"name": name, "arguments": json.dumps(argument)}
        message["tool_calls"] = [{"id": f"call_{step}", "type": "function", "function": function}]  # type: ignore[assignment]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if name else "stop", "logprobs": None}
    return _body("chat.completion", choice)


def text_reply(step: int, body: bytes) -> bytes:
    """Return the same as text with Treadle's tags, with ids if requested.

    If the stop string is a single letter, the text is cut after that letter.
    """
    with_ids, letter = b'"return_token_ids":true' in body, _ONE_LETTER.search(body)
    prompt = body[body.find(b'"prompt":') :].partition(b"]" if with_ids else b'","')[0]
    num_prompt = prompt.count(b",") + 1 if with_ids else len(prompt) // 4
    return _text_reply(step, num_prompt, with_ids, letter[1].decode() if letter else "")


def _text_reply(step: int, num_prompt: int, with_ids: bool, letter: str) -> bytes:
    tag, content = (("search", work.QUERY), ("python", work.PROGRAM), ("answer", work.ANSWER))[step]
    text = f"<think>{work.THOUGHTS[step]}</think><{tag}>{content}</{tag}>"
    if letter:
        text = text[: text.index(letter) + 1]
    choice = {"index": 0, "text": text, "finish_reason": "stop", "stop_reason": letter or f"</{tag}>"}
    ids = list(text.encode()) if with_ids else []
    return _body("text_completion", choice | ({"token_ids": ids} if ids else {}), num_prompt, len(ids) or 100)


def _body(kind: str, choice: dict[str, object], num_prompt: int = 700, num_new: int = 300) -> bytes:
    usage = {"prompt_tokens": num_prompt, "completion_tokens": num_new, "total_tokens": num_prompt + num_new}
    head = {"id": "stub", "object": kind, "created": 1_700_000_000, "model": work.MODEL}
    return _http(json.dumps(head | {"choices": [choice], "usage": usage}, separators=(",", ":")).encode())


def _http(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


_MODELS = _http(json.dumps({"object": "list", "data": [{"id": work.MODEL, "object": "model"}]}).encode())
_ONE_LETTER = re.compile(rb'"stop":\["(\w)"\]')
_STREAM = re.compile(rb'"stream":\s*true')


def answer(head: bytes, body: bytes) -> tuple[bytes, repeats.Call | None]:
    """Return the response to a request, and the call that it belongs to."""
    if head.startswith(b"GET"):
        return _MODELS, None
    if _STREAM.search(body):
        return _http(b'{"error": {"message": "this server does not stream"}}', b"400 Bad Request"), None
    if head.startswith(b"POST /v1/chat/completions"):
        call, num_calls = call_of_chat(body) or (None, 1)
        return chat_reply(_step(call[1] if call else 0, num_calls)), call
    if head.startswith(b"POST /v1/completions"):
        call, num_calls = call_of_completion(body) or (None, 1)
        return text_reply(_step(call[1] if call else 0, num_calls), body), call
    return _http(b'{"error": {"message": "not found"}}', b"404 Not Found"), None


class PeerConnection(asyncio.Protocol):
    """One connection with one request at a time, as all these clients send them."""

    def __init__(self, delay_s: float, sent: Callable[[repeats.Call], None]) -> None:
        self._delay_s = delay_s
        self._sent = sent
        self._data = bytearray()
        self._needed = self._head_end = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Collect one request, then schedule its response."""
        self._data += data
        if not self._needed:
            self._head_end = self._data.find(b"\r\n\r\n") + 4
            if self._head_end < 4:
                return
            length = re.search(rb"content-length: *(\d+)", bytes(self._data[: self._head_end]).lower())
            self._needed = self._head_end + (int(length[1]) if length else 0)
        if len(self._data) >= self._needed:
            head, body = bytes(self._data[: self._head_end]), bytes(self._data[self._head_end : self._needed])
            self._data.clear()
            self._needed = 0
            asyncio.get_running_loop().call_later(self._delay_s, self._answer, head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        response, call = answer(head, body)
        if self._transport.is_closing():
            return  # the client disconnected, so this call was not answered
        self._transport.write(response)
        if call is not None and not self._transport.get_write_buffer_size():
            self._sent(call)


async def serve(delay_s: float, log: Path) -> None:
    """Serve on a free port until standard input closes."""
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def note(call: repeats.Call) -> None:
        os.write(descriptor, repeats.line_of(call))

    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: PeerConnection(delay_s, note), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--delay", type=float, default=0.2)
    options = parser.parse_args()
    asyncio.run(serve(options.delay, options.log))
