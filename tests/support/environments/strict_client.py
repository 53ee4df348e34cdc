"""A client of the environment service, written from its specification: it accepts nothing else."""

from __future__ import annotations

from typing import Any

import aiohttp
import orjson

MESSAGE_KEYS = {"role", "content", "tool_calls"}
CALL_KEYS = {"id", "index", "type", "name", "arguments", "result"}


class Refused(Exception):
    """An error reply: its status and the parts of the error."""

    def __init__(self, status: int, code: str, message: str, *, retryable: bool) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message, self.retryable = status, code, message, retryable


class StrictClient:
    """Requests of one service; each method returns `data`, and raises Refused for an error."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def post(self, path: str, body: Any) -> tuple[int, bytes]:
        """Send a body and return status and body of the reply."""
        async with self.session.post(self.url + path, json=body) as response:
            assert response.content_type == "application/json"
            return response.status, await response.read()

    async def data(self, path: str, **body: Any) -> Any:
        status, raw = await self.post(path, body)
        reply = orjson.loads(raw)
        if status != 200:
            assert set(reply) == {"success", "error"} and reply["success"] is False
            assert set(reply["error"]) == {"code", "message", "retryable"}
            assert "\n" not in reply["error"]["message"] and "/" not in reply["error"]["message"]
            raise Refused(status, **reply["error"])
        assert set(reply) == {"success", "data"} and reply["success"] is True
        return reply["data"]

    async def profile(self, **fields: Any) -> list[str]:
        ids = await self.data("/get_env_profile", **fields)
        assert isinstance(ids, list) and all(isinstance(one, str) for one in ids)
        return ids

    async def create(self, task_id: str, **fields: Any) -> dict[str, Any]:
        state = self.checked(await self.data("/create", task_id=task_id, **fields))
        assert [message["role"] for message in state["state"]] == ["system", "user"]
        assert state["info"]["task_id"] == task_id
        assert state["info"]["instance_id"] == fields.get("instance_id", state["info"]["instance_id"])
        return state

    async def step(self, instance_id: str, content: str, **fields: Any) -> dict[str, Any]:
        action = {"role": "assistant", "content": content, **fields.pop("action", {})}
        state = self.checked(await self.data("/step", instance_id=instance_id, messages=action, **fields))
        assert len(state["state"]) == 1
        return state

    async def evaluate(self, instance_id: str, **fields: Any) -> float:
        score = await self.data("/evaluate", instance_id=instance_id, **fields)
        assert isinstance(score, float) and 0 <= score <= 1
        return score

    async def release(self, instance_id: str) -> bool:
        status, raw = await self.post("/release", {"instance_id": instance_id})
        assert status == 200 and raw in (b'{"success":true,"data":null}', b'{"success":false,"data":null}')
        return b"true" in raw

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url + path) as response:
            return response.status, await response.text()

    async def instances(self) -> dict[str, dict[str, Any]]:
        async with self.session.get(self.url + "/instances") as response:
            return {one["instance_id"]: one for one in await response.json()}

    async def metric(self, name: str) -> float:
        """Return the sum of the samples of a metric."""
        lines = (await self.get("/metrics"))[1].splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.partition("{")[0].split(" ")[0] == name)

    @staticmethod
    def checked(state: Any) -> dict[str, Any]:
        assert set(state) == {"state", "reward", "is_terminated", "info"}
        assert isinstance(state["reward"], float) and isinstance(state["is_terminated"], bool)
        for message in state["state"]:
            assert {"role", "content"} <= set(message) <= MESSAGE_KEYS and isinstance(message["content"], str)
            assert message["role"] in ("system", "user", "tool", "assistant")
            assert all(set(call) == CALL_KEYS for call in message.get("tool_calls") or ())
        found: dict[str, Any] = state
        return found
