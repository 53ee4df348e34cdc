"""Later iterations are derived from a config: what they start from, and whose checkpoints they name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle.core.config import load_config
from treadle.core.errors import ConfigError, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import fingerprint_of
from treadle.core.runs.locked_config import create_or_open_run
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.tasks.catalog import flow_instances, instance, semantic_of
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.order import flow_addresses

ENDPOINTS = [{"url": "http://127.0.0.1:1/v1"}]
MODELS: dict[str, Any] = {
    "base": {"model": "m", "server": {"type": "vllm", "model": "org/base", "revision": "abc", "max_model_len": 64}},
    "tuned": {"model": "m", "server": {"type": "vllm", "model": "1/sft"}},
    "reinforced": {"model": "m", "server": {"type": "vllm", "model": "1/rl@phase-2"}},
    "large": {"model": "m", "endpoints": ENDPOINTS},
    "tutor": {"model": "t", "server": {"type": "tutor"}},
}
STAGES = ["pools", "sft_rows", "sft", "rl", "rollouts", "scores", "report"]
FLOW = {"stages": STAGES, "models": ["base", "tuned", "reinforced"], "iterations": 3}


def config(**more: Any) -> TreadleConfig:
    data = {
        "models": MODELS,
        "environment": {"search": {"enabled": False}},
        "flow": FLOW,
        "sft": {"model": "org/base", "revision": "abc"},
        "rl": {"start": "1/sft"},
        "curriculum": {"phases": 2},
        **more,
    }
    return load_config(TreadleConfig, data=data)


def at(address: str, **more: Any) -> Instance:
    return instance(config(**more), Address.parse(address))


def checkpoint(address: str, **more: Any) -> list[str]:
    return list(map(str, at(address, **more).inputs["checkpoint"]))


def played_by(address: str, **more: Any) -> dict[str, str]:
    """Role -> what the server of its model loads, or what it is asked for as."""
    roles = at(address, **more).settings.roles
    return {name: getattr(role.model.server, "model", role.model.model) for name, role in roles.items()}


def without(*stages: str) -> dict[str, Any]:
    return {**FLOW, "stages": [stage for stage in STAGES if stage not in stages], "models": ["base"]}


def test_every_iteration_has_all_stages_in_order() -> None:
    addresses = [str(address) for address in flow_addresses(config())]
    first = [address.removeprefix("1/") for address in addresses if address.startswith("1/")]
    assert addresses == [f"{iteration}/{name}" for iteration in (1, 2, 3) for name in first]
    assert len(first) == 4 + 2 * 4 + 3 * 2 + 1


def test_first_iteration_equals_a_single_one() -> None:
    alone, many = (config(flow={**FLOW, "iterations": number}) for number in (1, 3))
    for address in flow_addresses(alone):
        if address.stage != "questions":
            fingerprints = [fingerprint_of(instance(one, address), {}) for one in (alone, many)]
            assert fingerprints[0] == fingerprints[1], address
            assert instance(alone, address).inputs == instance(many, address).inputs


@pytest.mark.parametrize(("left_out", "last"), [((), "rl@phase-2"), (("rl",), "sft"), (("sft",), "rl@phase-2")])
def test_iteration_starts_from_the_last_checkpoint_of_the_previous_one(left_out: tuple[str, ...], last: str) -> None:
    given = {"flow": without(*left_out), **({"rl": {"start": "org/base"}} if "sft" in left_out else {})}
    for iteration in (2, 3):
        policy = f"{iteration - 1}/{last}"
        assert checkpoint(f"{iteration}/pools", **given) == [policy]
        assert played_by(f"{iteration}/pools", **given)["policy"] == policy
        first_trained = f"{iteration}/{'rl@phase-1' if 'sft' in left_out else 'sft'}"
        assert checkpoint(first_trained, **given) == [policy]
        options = at(first_trained, **given).settings.options
        assert (getattr(options, "start", None) or options.model, options.revision) == (policy, "")


def test_outputs_of_an_iteration_belong_to_it_in_all_tables() -> None:
    for iteration in (1, 2, 3):
        tuned = at(f"{iteration}/rollouts@tuned")
        assert tuned.settings.model.server.model == f"{iteration}/sft"
        assert tuned.inputs["questions"] == (Address(iteration, "questions"),)
        assert checkpoint(f"{iteration}/rollouts@tuned") == [f"{iteration}/sft"]
        assert checkpoint(f"{iteration}/rollouts@reinforced") == [f"{iteration}/rl@phase-2"]
        assert checkpoint(f"{iteration}/rollouts@phase-1") == checkpoint(f"{iteration}/rl@phase-1")
        assert checkpoint(f"{iteration}/rl@phase-1") == [f"{iteration}/sft"]
        assert checkpoint(f"{iteration}/rl@phase-2") == [f"{iteration}/rl@phase-1"]
        assert at(f"{iteration}/rollouts@base").settings.model.server.model == "org/base"
    served = {**MODELS, "tuned": {"model": "1/sft", "endpoints": ENDPOINTS}}
    asked = [at(f"{iteration}/rollouts@tuned", models=served).settings.model.model for iteration in (1, 2)]
    assert asked == ["1/sft", "2/sft"]


def test_iteration_report_reads_the_scores_of_all_earlier_ones() -> None:
    for last in (1, 2, 3):
        read = list(map(str, at(f"{last}/report").inputs["scores"]))
        assert read == [f"{number}/scores@{name}" for number in range(1, last + 1) for name in FLOW["models"]]


def test_stages_outside_iterations_are_shared_by_all() -> None:
    flow = {**without("pools", "sft_rows", "sft"), "models": ["base", "tuned"]}
    assert checkpoint("3/rollouts@tuned", flow=flow) == ["1/sft"]
    assert checkpoint("1/rl@phase-1", flow=flow) == ["1/sft"]
    assert checkpoint("2/rl@phase-1", flow=flow) == ["1/rl@phase-2"]


def test_default_roles_follow_the_policy_and_named_ones_stay() -> None:
    policy = "1/rl@phase-2"
    assert set(played_by("2/pools").values()) == {policy}
    judged = {"roles": {"judge": {"model": "large"}}}
    assert played_by("2/pools", pools=judged) == {"policy": policy, "critic": policy, "refiner": policy, "judge": "m"}
    named = {"roles": {"policy": {"model": "base"}, "critic": {"model": "base"}, "refiner": {"model": "tuned"}}}
    assert played_by("2/pools", pools=named, flow=without()) == {
        "policy": policy, "critic": "org/base", "refiner": "2/sft", "judge": "org/base",
    }  # fmt: skip
    assert checkpoint("2/pools", pools=named, flow=without()) == [policy, "2/sft"]


def test_override_assigns_roles_in_one_iteration() -> None:
    named = {"roles": {"policy": {"model": "base"}, "refiner": {"model": "large"}}}
    cold = {"1/pools": {"roles": {"policy": {"model": "tutor"}}}}
    taught = at("1/pools", pools=named, overrides=cold)
    assert {role: part.name for role, part in taught.settings.roles.items()} == {
        "policy": "tutor", "critic": "tutor", "refiner": "large", "judge": "tutor",
    }  # fmt: skip
    assert at("2/pools", pools=named, overrides=cold) == at("2/pools", pools=named)
    again = {"2/pools": {"roles": {"policy": {"model": "base"}}}}
    assert set(played_by("2/pools", overrides=again).values()) == {"org/base"}, "it says base, so base it is"
    assert checkpoint("2/pools", overrides=again) == []
    judged = {"2/pools": {"roles": {"critic": {"model": "tuned"}}}}
    assert played_by("2/pools", overrides=judged) == {
        "policy": "1/rl@phase-2", "critic": "2/sft", "refiner": "1/rl@phase-2", "judge": "2/sft",
    }  # fmt: skip
    assert checkpoint("2/pools", overrides=judged, flow=without()) == ["1/rl@phase-2", "2/sft"]
    with pytest.raises(ConfigError, match="roles.critic.model names 'none'"):
        at("2/pools", overrides={"2/pools": {"roles": {"critic": {"model": "none"}}}})


def test_user_run_servers_are_asked_for_the_policy_and_the_tutor_stays() -> None:
    for name, played in (("large", "1/rl@phase-2"), ("tutor", "t")):
        roles = {"roles": {"policy": {"model": name}}}
        assert at("2/pools", pools=roles).settings.roles["policy"].model.model == played
        assert checkpoint("2/pools", pools=roles) == ["1/rl@phase-2"]


def test_model_entry_settings_serve_the_policy() -> None:
    server = at("2/pools").settings.roles["policy"].model.server
    assert (server.revision, server.max_model_len) == ("", 64)


def test_overrides_keep_their_values(tmp_path: Path) -> None:
    overrides = {
        "2/sft": {"model": "org/base"},
        "3/rl@phase-1": {"start": "1/rl@phase-2"},
        "1/rollouts@base": {"max_questions": 3},
    }
    assert at("2/sft", overrides=overrides).settings.options.model == "org/base"
    assert checkpoint("2/sft", overrides=overrides) == []
    assert checkpoint("3/sft", overrides=overrides) == ["2/rl@phase-2"]
    assert checkpoint("3/rollouts@phase-1", overrides=overrides) == ["1/rl@phase-2"]
    assert at("2/rollouts@base", overrides=overrides).settings.options.max_questions is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sft": {"model": "2/sft"}}, "1/sft: sft.model = 2/sft: no instance"),
        ({"overrides": {"2/sft": {"model": "2/sft"}}}, "2/sft: sft.model = 2/sft is the output of this stage"),
        ({"rl": {"start": "2/sft"}}, "1/rl@phase-1: rl.start = 2/sft is not made before this phase"),
        ({"overrides": {"2/rl@phase-1": {"start": "1/rl@phase-3"}}}, "start = 1/rl@phase-3: no instance"),
        ({"overrides": {"4/sft": {"model": "org/base"}}}, "overrides names '4/sft', which is not in this flow"),
        ({"flow": {**FLOW, "stages": ["pools", "rollouts"]}}, "no stage of the flow trains"),
        ({"flow": {**FLOW, "stages": ["selection"]}}, "add sft or rl to flow.stages"),
        ({"flow": {**FLOW, "iterations": 101}}, "flow.iterations"),
        ({"flow": {**FLOW, "iterations": 0}}, "flow.iterations"),
    ],
)
def test_impossible_iterations_are_refused_before_any_work(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    (tmp_path / "questions.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    questions = {"sources": [{"path": str(tmp_path / "questions.jsonl"), "domain": "math"}]}
    with pytest.raises(ConfigError, match=said):
        flow_instances(config(questions=questions, **given))


def test_model_of_a_later_iteration_is_refused_in_an_earlier_one() -> None:
    late = {**MODELS, "tuned": {"model": "m", "server": {"type": "vllm", "model": "2/sft"}}}
    with pytest.raises(ConfigError, match="models.tuned.server.model = 2/sft: no instance"):
        at("1/rollouts@tuned", models=late)
    assert checkpoint("3/rollouts@tuned", models=late) == ["2/sft"]


def test_missing_iteration_is_refused_with_an_existing_one() -> None:
    with pytest.raises(ConfigError, match="4/sft: the flow has 3 iterations; write 3/sft"):
        at("4/sft")


def test_run_may_get_more_iterations(tmp_path: Path) -> None:
    def opened(iterations: int, **more: Any) -> Run:
        given = config(flow={**FLOW, "iterations": iterations, **more})
        resolved = given.model_dump(mode="json")
        return create_or_open_run(tmp_path, "r", resolved, semantic_of(given), schema=TreadleConfig)

    run = opened(1)
    run.storage.put(run.key("journal/1/pools/f/00000001.journal"), b"")  # the lock begins with work
    assert opened(3).config()["flow"]["iterations"] == 3
    with pytest.raises(RunError, match=r"flow\.stages"):
        opened(3, stages=["sft"], models=["base"])
