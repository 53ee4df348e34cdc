"""Chat-only models: their allowed roles are checked before a run is created."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.run_setup import open_run

NOWHERE = {"endpoints": [{"url": "http://127.0.0.1:9/v1"}], "connect_timeout_s": 1.0}


def config(stages: list[str], chat_only: str, **roles: str) -> TreadleConfig:
    models: dict[str, Any] = {name: {"model": name, **NOWHERE} for name in ("own", *set(roles.values()))}
    models[chat_only]["api"] = "chat"
    pools = {"roles": {role: {"model": name} for role, name in roles.items()}}
    return load_config(TreadleConfig, data={"flow": {"stages": stages}, "models": models, "pools": pools})


@pytest.mark.parametrize(
    ("stages", "chat_only", "roles", "refused"),
    [
        (["rollouts"], "own", {}, ""),
        (["rollouts", "pools"], "own", {}, "this is the policy"),
        (["pools"], "own", {}, "this is the policy"),
        (["selection"], "own", {}, "this is the policy"),
        (["pools"], "hosted", {"critic": "hosted"}, "this is the critic"),
        (["pools"], "hosted", {"refiner": "hosted", "judge": "hosted"}, "this is the refiner"),
        (["rollouts", "pools"], "hosted", {"judge": "hosted"}, ""),
    ],
)
def test_chat_only_model_may_be_evaluated_and_judge_but_not_continue_text(
    tmp_path: Path, stages: list[str], chat_only: str, roles: dict[str, str], refused: str
) -> None:
    made = config(stages, chat_only, **roles)
    if not refused:
        assert open_run(tmp_path, "r", made)
        return
    with pytest.raises(ConfigError, match=f'models.{chat_only}: api = "chat" .* {refused}'):
        open_run(tmp_path, "r", made)
    assert not any(tmp_path.iterdir())


def test_chat_route_cannot_require_ids() -> None:
    data = {"models": {"own": {"model": "m", **NOWHERE, "api": "chat", "token_ids": "required"}}}
    with pytest.raises(ConfigError, match="the chat route has no token ids"):
        load_config(TreadleConfig, data=data)
