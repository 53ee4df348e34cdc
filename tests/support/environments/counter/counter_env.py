"""An environment as AgentEvolver's service has them: an object per instance, named by its folder."""

import threading
import time
from typing import Any

import numpy as np


class BaseEnv:
    """Stand-in for the base class that such files import."""


class CounterEnv(BaseEnv):
    """Count up to the number that the task names."""

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any]) -> None:
        self.goal = int(task_id)
        self.by = params["by"]
        self.value = 0
        self.thread = threading.get_ident()

    def get_init_state(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the first state."""
        system = {"role": "system", "content": f"Count by {self.by}."}
        return {"state": [system, {"role": "user", "content": f"Reach {self.goal}."}], "info": {"goal": self.goal}}

    def step(self, action: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        """Count once if the action says so."""
        assert threading.get_ident() == self.thread, "objects that belong to a thread stay in it"
        if action["content"] == "block":
            time.sleep(300)
        if action["content"] == "nothing":
            return {}
        if action["content"] == "nan":
            return {"state": [{"role": "user", "content": ""}], "reward": float("nan")}
        self.value += self.by
        over = self.value >= self.goal
        message = {"role": "user", "content": str(self.value)}
        return {"state": [message], "reward": np.float32(over), "is_terminated": np.bool_(over), "info": params}

    def evaluate(self, messages: dict[str, Any], params: dict[str, Any]) -> Any:
        """Return the part of the way; `messages` may ask for what is no score."""
        if messages.get("content") == "dict":
            return {"score": 1.0}
        return self.value / self.goal

    async def get_info(self, messages: dict[str, Any], params: dict[str, Any]) -> str:
        """Return the tools."""
        return "count()"

    @staticmethod
    def get_query_list(split: str, params: dict[str, Any]) -> list[int]:
        """Return the ids of tasks."""
        return [int(params.get("first", 1)) + number for number in range(3 if split == "train" else 1)]
