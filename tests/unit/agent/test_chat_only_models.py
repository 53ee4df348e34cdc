"""Chat-only models: their allowed roles are checked before a run is created."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.datagen.operators import load_operators
from treadle.datagen.operators.hint_at_tail import HintAtTail
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.run_setup import open_run

POOLS = Address.parse("1/pools")
NOWHERE = {"endpoints": [{"url": "http://127.0.0.1:9/v1"}], "connect_timeout_s": 1.0}


def config(stages: list[str], chat_only: str, **roles: str) -> TreadleConfig:
    models: dict[str, Any] = {name: {"model": name, **NOWHERE} for name in ("own", *set(roles.values()))}
    models[chat_only]["api"] = "chat"
    pools = {"roles": {role: {"model": name} for role, name in roles.items()}}
    tools = {"python": {"enabled": False}, "search": {"enabled": False}}
    data = {"flow": {"stages": stages}, "models": models, "pools": pools, "environment": tools}
    return load_config(TreadleConfig, data=data)


@pytest.mark.parametrize(
    ("stages", "chat_only", "roles"),
    [
        (["rollouts"], "own", {}),
        (["rollouts", "pools"], "own", {}),
        (["pools"], "hosted", {"critic": "hosted"}),
        (["pools"], "hosted", {"refiner": "hosted", "judge": "hosted"}),
    ],
)
def test_chat_only_model_may_be_evaluated_and_have_every_role_of_pools(
    tmp_path: Path, stages: list[str], chat_only: str, roles: dict[str, str]
) -> None:
    assert open_run(tmp_path, "r", config(stages, chat_only, **roles))


def test_chat_only_policy_is_not_trained_on_its_own_rollouts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='models.own: api = "chat" has no token ids'):
        open_run(tmp_path, "r", config(["selection"], "own"))
    assert not any(tmp_path.iterdir())


class Beginner(HintAtTail):
    """Operator that needs the critic to continue a begun text as it is."""

    name = "beginner"
    needs_prefill = ("critic",)


class Muddled(HintAtTail):
    name = "muddled"
    needs_prefill = "critic"


@pytest.mark.parametrize("roles", [{}, {"policy": "local", "critic": "own"}])
def test_operator_that_needs_a_prefill_is_refused_by_name_before_a_run(tmp_path: Path, roles: dict[str, str]) -> None:
    made = config(["pools"], "own", **roles)
    pools = made.pools.model_copy(update={"operators": (f"{__name__}:Beginner",)})
    with pytest.raises(
        ConfigError, match=r'operator beginner begins replies of the critic, which models\.own \(api = "chat"\)'
    ):
        instance(made.model_copy(update={"pools": pools}), POOLS)


def test_operator_that_needs_a_prefill_of_another_role_is_accepted() -> None:
    made = config(["pools"], "own", policy="own", critic="local", refiner="own")
    operators = (f"{__name__}:Beginner", "global_refine", "self_correct", "reflect")
    assert instance(made.model_copy(update={"pools": made.pools.model_copy(update={"operators": operators})}), POOLS)
    with pytest.raises(ConfigError, match="needs_prefill = 'critic', which must be a tuple"):
        load_operators([f"{__name__}:Muddled"])


def test_chat_route_cannot_require_ids() -> None:
    data = {"models": {"own": {"model": "m", **NOWHERE, "api": "chat", "token_ids": "required"}}}
    with pytest.raises(ConfigError, match="the chat route has no token ids"):
        load_config(TreadleConfig, data=data)
