"""The client of AgentEvolver's trainer, written after the specification: its bodies, and what it reads of replies.

It sends all five fields in every request, and knows no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp


class OriginalClient:
    """Requests of one service; raises ClientResponseError for another status than 200, as the original raises."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def _request(
        self,
        endpoint: str,
        env_type: str | None = None,
        task_id: str | None = None,
        instance_id: str | None = None,
        messages: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Any:
        body = {
            "env_type": env_type,
            "task_id": task_id,
            "instance_id": instance_id,
            "messages": messages or {},
            "params": params or {},
        }
        async with self._session.post(f"{self._url}/{endpoint}", json=body) as response:
            response.raise_for_status()
            return await response.json()

    async def get_env_profile(
        self, env_type: str, split: str = "train", params: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Return the ids of tasks; the split goes into the parameters."""
        reply = await self._request("get_env_profile", env_type, params={"split": split, **(params or {})})
        ids: list[str] = reply["data"]
        return ids

    async def create_instance(
        self,
        env_type: str,
        task_id: str,
        instance_id: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the first state."""
        state: dict[str, Any] = (await self._request("create", env_type, task_id, instance_id, params=params))["data"]
        return state

    async def step(self, instance_id: str, action: Mapping[str, Any]) -> dict[str, Any]:
        """Return the next state."""
        state: dict[str, Any] = (await self._request("step", None, None, instance_id, action))["data"]
        return state

    async def evaluate(self, instance_id: str, params: Mapping[str, Any]) -> float:
        """Return the score."""
        score: float = (await self._request("evaluate", instance_id=instance_id, params=params))["data"]
        return score

    async def get_info(self, instance_id: str) -> Any:
        """Return the description of the tools."""
        return (await self._request("get_info", instance_id=instance_id))["data"]

    async def release_instance(self, instance_id: str) -> bool:
        """Return what the service says of the release."""
        reply = await self._request("release", instance_id=instance_id)
        assert set(reply) == {"success", "data"} and reply["data"] is None
        is_released: bool = reply["success"]
        return is_released
