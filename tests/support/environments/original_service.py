"""A service written after the specification of AgentEvolver's: its replies, errors and omissions, word for word.

It knows no `request_id`: a repeated step acts twice. The environment is a counter: `add N` moves it, `submit` ends.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

TASKS = {"train": ["t3", "t5"], "test_normal": ["t4"]}
_FIELDS: dict[str, tuple[type, ...]] = {
    "env_type": (str, type(None)),
    "task_id": (str, type(None)),
    "instance_id": (str, type(None)),
    "messages": (dict,),
    "params": (dict,),
}
CUT = web.Response()
"""Reply of a `mishap` that breaks the connection."""
TRACEBACK = (
    '\x1b[36mray::CounterEnv.step()\x1b[39m (pid=7, ip=10.0.0.1)\n  File "/home/someone/env.py", line 3, in step\n'
    "ValueError: say add N or submit\n"
)


@dataclass
class Counter:
    """One instance."""

    target: int
    value: int = 0
    steps: list[str] = field(default_factory=list)


@dataclass
class OriginalService:
    """Instances, and what was asked. `mishap` may replace the reply to a request, before or after it acted.

    Attributes:
        mishap: Function from path, number of the request on it and whether it has acted; None lets the reply be.
    """

    url: str = ""
    live: dict[str, Counter] = field(default_factory=dict)
    made: list[Counter] = field(default_factory=list)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    mishap: Callable[[str, int, bool], web.Response | None] = lambda path, number, acted: None

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a request."""
        if request.method == "GET":
            schema = {"paths": {}, "components": {"ServiceRequest": {"properties": dict.fromkeys(_FIELDS, {})}}}
            return web.json_response(schema) if request.path == "/openapi.json" else web.Response(text="OK")
        body = json.loads(await request.text())
        wrong = [name for name, kinds in _FIELDS.items() if name in body and not isinstance(body[name], kinds)]
        if wrong:
            return web.json_response(
                {"detail": [{"type": "type", "loc": ["body", wrong[0]], "msg": "wrong"}]}, status=422
            )
        path = request.path
        number = sum(one == path for one, _ in self.asked)
        self.asked.append((path, body))
        if (reply := self.mishap(path, number, False)) is not None:
            return reply
        reply = self._answer(path, body)
        other = self.mishap(path, number, True)
        if other is CUT and request.transport is not None:
            request.transport.abort()
        return other or reply

    def _answer(self, path: str, body: dict[str, Any]) -> web.Response:
        params = body.get("params", {})
        if path == "/get_env_profile":
            if body.get("env_type", "appworld") != "counter":
                return _detail("Traceback (most recent call last):\nKeyError: 'unknown env'\n", 500)
            return _success(TASKS[params.get("split", "train")])
        name = body.get("instance_id")
        if path == "/release":
            return web.json_response({"success": self.live.pop(name or "", None) is not None, "data": None})
        if path == "/create":
            if not body.get("task_id"):
                return _detail("task_id is required", 400)
            self.live[str(name)] = counter = Counter(int(body["task_id"][1:]))
            self.made.append(counter)
            messages = [
                {"role": "system", "content": "Count."},
                {"role": "user", "content": f"Reach {counter.target}."},
            ]
            info = {"instance_id": name, "task_id": body["task_id"]}
            return _success({"state": messages, "info": info})  # without reward and is_terminated
        if name not in self.live:
            return _detail(f"Instance {name} not found!", 400)
        return self._of_instance(path, self.live[name], body, params)

    def _of_instance(self, path: str, counter: Counter, body: dict[str, Any], params: dict[str, Any]) -> web.Response:
        if path == "/evaluate":
            is_right = counter.value == counter.target
            return _success(float(is_right) if params.get("sparse") else {"valid": is_right, "error": "mismatch"})
        text = body["messages"]["content"]
        counter.steps.append(text)
        if text == "submit":
            return _success(_state("", 1.0 if counter.value == counter.target else 0.0, ended=True))
        if (found := re.fullmatch(r"add (\d+)", text)) is None:
            return _detail(TRACEBACK, 400)
        counter.value += int(found[1])
        return _success(_state(f"It is {counter.value}.", 0.0, ended=False))


def _state(text: str, reward: float, *, ended: bool) -> dict[str, Any]:
    message = {"role": "tool", "content": text}
    return {"state": [message], "reward": reward, "is_terminated": ended, "info": {}}


def _success(data: Any) -> web.Response:
    return web.json_response({"success": True, "data": data})


def _detail(text: str, status: int) -> web.Response:
    return web.json_response({"detail": text}, status=status)


@contextlib.asynccontextmanager
async def original_service() -> AsyncIterator[OriginalService]:
    """Serve on loopback for the duration of the block."""
    service = OriginalService()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", service.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield service
    finally:
        await runner.cleanup()
