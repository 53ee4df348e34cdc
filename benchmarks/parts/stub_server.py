"""Serve three canned turns with minimal CPU, each after a fixed delay.

The turn is derived from the prompt's ids, so any client, journal or resume can drive the server. It implements just
enough HTTP for one request at a time per connection, on a bare asyncio protocol, so that the client dominates the
measurement.

    python -m benchmarks.parts.stub_server --delay 0.2      prints the port, serves until its standard input closes
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from typing import cast

import orjson

MODEL = "stub"
RESULT_TEXT = "The tower of Vessoria was finished in 1874 by Oren Maal; it is 213 m high. " * 5
TURNS = (
    "<think>" + "I should look up when the tower of Vessoria was finished. " * 4 + "</think><search>tower of "
    "Vessoria, year of completion</search>",
    "<think>" + "The document names the year and the height; now I compute. " * 4 + "</think><python>height = 213\n"
    "print(height * 2 + 1874)</python>",
    "<think>" + "The program printed the number that was asked for. " * 4 + "</think><answer>The number is "
    "\\boxed{2300}.</answer>",
)
TURN_START_ID, TURN_END_ID = 257, 258
"""Ids of `<|im_start|>` and `<|im_end|>` in the byte tokenizer."""


def ids_of(text: str) -> list[int]:
    """Return the ids of the byte tokenizer: the bytes."""
    return list(text.encode())


def reply(turn: int, num_prompt: int, letter: str | None = None, *, has_stops: bool = True) -> bytes:
    """Return one completion as the server sends it, cut after `letter` if the preflight tests stop strings.

    Without stop strings, as in a dialogue, the model ends its turn itself.
    """
    text = TURNS[turn]
    if letter is not None:
        text = text[: text.index(letter) + 1]
    stop = "</search>" if turn == 0 else "</python>" if turn == 1 else "</answer>"
    ids = ids_of(text) if has_stops else [*ids_of(text), TURN_END_ID]
    reason = stop if has_stops else None
    choice = {"index": 0, "text": text, "token_ids": ids, "finish_reason": "stop", "stop_reason": reason}
    usage = {"prompt_tokens": num_prompt, "completion_tokens": len(ids), "total_tokens": num_prompt + len(ids)}
    return orjson.dumps(
        {"id": "stub", "object": "text_completion", "created": 0, "model": MODEL, "choices": [choice], "usage": usage}
    )


def _http(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def _refusal(status: bytes, message: str) -> bytes:
    return _http(orjson.dumps({"error": {"message": message, "code": int(status[:3])}}), status)


_ONE_LETTER = re.compile(rb'"stop":\["(\w)"\]')
_MARK = orjson.dumps(ids_of("</result>"))[1:-1]
_START = b",%d," % TURN_START_ID
_OPENING = orjson.dumps([TURN_START_ID, *ids_of("assistant\n")])[1:-1]
_STOPS = b'"stop":["'
_MODELS = _http(
    orjson.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "max_model_len": 1 << 20}]})
)
_NO_ROUTE = _refusal(b"404 Not Found", "this server has only /v1/completions and /v1/models")
_NO_STREAM = _refusal(b"400 Bad Request", "this server does not stream")
_STREAM = re.compile(rb'"stream":\s*true')


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._data = bytearray()
        self._needed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Collect one request, then schedule its response."""
        self._data += data
        if not self._needed:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._data[:end]).lower()
            if head.startswith(b"get"):
                self._data.clear()
                self._transport.write(_MODELS)
                return
            self._needed = end + 4 + int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        if len(self._data) >= self._needed:
            asyncio.get_running_loop().call_later(self._delay_s, self._answer, bytes(self._data))
            self._data.clear()
            self._needed = 0

    def _answer(self, request: bytes) -> None:
        if not request.startswith(b"POST /v1/completions "):
            self._transport.write(_NO_ROUTE)
            return
        if _STREAM.search(request):
            self._transport.write(_NO_STREAM)
            return
        # Results within the last assistant's turn, and in a dialogue the turns before it.
        num_before = max(0, request.count(_OPENING) - 1)
        turn = min(request.count(_MARK, max(0, request.rfind(_START))) + num_before, 2)
        prompt = request[request.find(b"[") : request.find(b"]")]
        letter = _ONE_LETTER.search(request)
        found = letter[1].decode() if letter else None
        self._transport.write(_http(reply(turn, prompt.count(b",") + 1, found, has_stops=_STOPS in request)))


async def serve(delay_s: float) -> None:
    """Serve on a free port until standard input closes."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(delay_s), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay", type=float, default=0.2)
    asyncio.run(serve(parser.parse_args().delay))
