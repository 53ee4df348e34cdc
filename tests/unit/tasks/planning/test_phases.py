"""Curriculum phases are derived from a config: order, policies, servers, sigmas, inputs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from treadle.core.config import differing_keys, load_config
from treadle.core.errors import ConfigError, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import fingerprint_of
from treadle.core.runs.locked_config import create_or_open_run
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.environments.question.settings import ET_AGENT_RL
from treadle.rl.config import ET_AGENT_7B, RlOptions
from treadle.rl.phases import rl_options
from treadle.sft.config import ET_AGENT_7B as SFT_ET_AGENT_7B
from treadle.tasks.catalog import flow_instances, instance, semantic_of
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.iterations import at_iteration
from treadle.tasks.planning.order import flow_addresses
from treadle.tasks.planning.plan import changed_keys
from treadle.tasks.planning.run_setup import open_run
from treadle.tasks.shard_worker import open_for_work

ENDPOINTS = [{"url": "http://127.0.0.1:1/v1"}]
MODELS: dict[str, Any] = {
    "served": {"model": "m", "server": {"type": "vllm", "model": "org/base", "revision": "abc", "max_model_len": 64}},
    "tuned": {"model": "m", "server": {"type": "vllm", "model": "1/rl@phase-3"}},
    "elsewhere": {"model": "m", "endpoints": ENDPOINTS},
    "tutor": {"model": "t", "server": {"type": "tutor"}},
}


ON_HUB = {"start": "org/base", "revision": "abc"}


def config(**more: Any) -> TreadleConfig:
    data = {"models": MODELS, "environment": {"search": {"enabled": False}}, "flow": {"stages": ["rl"]}, **more}
    return load_config(TreadleConfig, data=data)


def at(address: str, **more: Any) -> Instance:
    return instance(config(**more), Address.parse(address))


def inputs(address: str, **more: Any) -> dict[str, list[str]]:
    return {name: [str(one) for one in bound] for name, bound in at(address, **more).inputs.items() if bound}


def test_every_phase_samples_scores_selects_and_trains_before_the_next_one() -> None:
    flow = {"stages": ["sft", "selection", "rl", "rollouts", "scores", "report"], "models": ["served", "tuned"]}
    addresses = [str(address) for address in flow_addresses(config(flow=flow, curriculum={"phases": 2}))]
    assert addresses == [
        "1/questions", "1/sft",
        "1/rollouts@phase-1", "1/scores@phase-1", "1/selection@phase-1", "1/rl@phase-1",
        "1/rollouts@phase-2", "1/scores@phase-2", "1/selection@phase-2", "1/rl@phase-2",
        "1/rollouts@served", "1/scores@served", "1/rollouts@tuned", "1/scores@tuned", "1/report",
    ]  # fmt: skip


def test_standalone_selection_is_that_of_the_first_phase() -> None:
    addresses = [str(address) for address in flow_addresses(config(flow={"stages": ["selection"]}))]
    assert addresses == ["1/questions", "1/rollouts@phase-1", "1/scores@phase-1", "1/selection@phase-1"]


def test_each_phase_samples_and_trains_from_the_previous_policy() -> None:
    servers = [at(f"1/rollouts@phase-{phase}").settings.model.server for phase in (1, 2, 3)]
    assert [server.model for server in servers] == ["1/sft", "1/rl@phase-1", "1/rl@phase-2"]
    assert [(server.revision, server.max_model_len) for server in servers] == [("", 64)] * 3
    assert [at(f"1/rl@phase-{phase}").settings.options.start for phase in (1, 2, 3)] == [one.model for one in servers]
    for phase, server in enumerate(servers, 1):
        assert inputs(f"1/rollouts@phase-{phase}") == {"questions": ["1/questions"], "checkpoint": [server.model]}
        assert inputs(f"1/rl@phase-{phase}") == {
            "rl_rows": [f"1/selection@phase-{phase}"], "questions": ["1/questions"], "checkpoint": [server.model],
        }  # fmt: skip


def test_external_start_model_binds_no_checkpoint() -> None:
    assert "checkpoint" not in inputs("1/rollouts@phase-1", rl={"start": "org/base", "revision": "abc"})
    assert inputs("1/rollouts@phase-2", rl={"start": "org/base", "revision": "abc"})["checkpoint"] == ["1/rl@phase-1"]


def test_hub_id_is_sampled_and_trained_at_one_revision() -> None:
    given = {"rl": {"start": "org/base", "revision": "abc"}}
    server = at("1/rollouts@phase-1", **given).settings.model.server
    trained = at("1/rl@phase-1", **given).settings.options
    assert (server.model, server.revision) == (trained.start, trained.revision) == ("org/base", "abc")
    later = at("1/rollouts@phase-2", **given).settings.model.server, at("1/rl@phase-2", **given).settings.options
    assert [one.revision for one in later] == ["", ""]
    other = at("1/rl@phase-1", rl={"start": "org/base", "revision": "abd"})
    assert fingerprint_of(at("1/rl@phase-1", **given), {}) != fingerprint_of(other, {})
    assert at("1/rollouts@phase-1", rl={"start": "org/other"}).settings.model.server.revision == ""
    for revision in ("", "abd"):
        with pytest.raises(ConfigError, match=r"models.served.server.revision = abc .* set rl.revision = abc"):
            at("1/rollouts@phase-1", rl={"start": "org/base", "revision": revision})


@pytest.mark.parametrize("start", ["1/sft", "embedded", "."])
def test_revision_of_a_non_hub_model_is_refused(start: str) -> None:
    with pytest.raises(ConfigError, match=f"1/rl@phase-1: rl.revision = abc needs a hub id, but rl.start = {start}"):
        at("1/rl@phase-1", rl={"start": start, "revision": "abc"})
    with pytest.raises(ConfigError, match=f"1/rl@phase-1: rl.revision = abd needs a hub id.*{start}"):
        at("1/rl@phase-1", rl=ON_HUB, overrides={"1/rl@phase-1": {"start": start, "revision": "abd"}})


def test_phase_start_has_its_own_revision_or_none() -> None:
    def trained(**changes: Any) -> tuple[str, str]:
        options = at("1/rl@phase-1", rl=ON_HUB, overrides={"1/rl@phase-1": changes}).settings.options
        return options.start, options.revision

    assert trained(start="embedded") == ("embedded", "")
    assert trained(start="org/other") == ("org/other", "")
    assert trained(start="org/other", revision="abd") == ("org/other", "abd")
    assert trained(start="org/base", learning_rate=1e-6) == ("org/base", "abc")


def test_folder_with_changed_files_is_sampled_again(tmp_path: Path) -> None:
    fingerprints = []
    for weights in (b"some", b"others"):
        (tmp_path / "model.safetensors").write_bytes(weights)
        fingerprints.append(fingerprint_of(at("1/rollouts@phase-1", rl={"start": str(tmp_path)}), {}))
    assert fingerprints[0] != fingerprints[1]


def test_phase_with_another_start_is_sampled_from_it_too() -> None:
    overrides = {"1/rl@phase-2": {"start": "1/sft"}}
    assert at("1/rollouts@phase-2", overrides=overrides).settings.model.server.model == "1/sft"
    assert inputs("1/rl@phase-2", overrides=overrides)["checkpoint"] == ["1/sft"]
    assert inputs("1/rl@phase-3", overrides=overrides)["checkpoint"] == ["1/rl@phase-2"]


@pytest.mark.parametrize("start", ["1/rl@phase-1", "1/rl@phase-3", "1/rl@phase-9", "1/rl", "2/sft"])
def test_phase_cannot_start_from_a_later_result(start: str) -> None:
    with pytest.raises(ConfigError, match=f"1/rl@phase-1: rl.start = {start} is not made before this phase; use 1/sft"):
        rl_options(at_iteration(config(rl={"start": start}), 1), Address.parse("1/rl@phase-1"))
    later = {"1/rl@phase-3": {"start": "1/rl@phase-1"}}
    assert inputs("1/rl@phase-3", overrides=later)["checkpoint"] == ["1/rl@phase-1"]


def test_user_run_servers_are_asked_for_the_policy_by_address() -> None:
    elsewhere = {"curriculum": {"sampling_model": "elsewhere"}}
    names = [at(f"1/rollouts@phase-{phase}", **elsewhere).settings.model.model for phase in (1, 2)]
    assert names == ["1/sft", "1/rl@phase-1"]
    assert at("1/rollouts@phase-1", **elsewhere, rl={"start": "org/base"}).settings.model.model == "m"


def test_tutor_samples_every_phase_and_still_waits_for_the_previous_policy() -> None:
    given = {"curriculum": {"sampling_model": "tutor"}, "rl": {"start": "embedded"}}
    assert at("1/rollouts@phase-2", **given).settings.model.server == config().models["tutor"].server
    assert inputs("1/rollouts@phase-2", **given)["checkpoint"] == ["1/rl@phase-1"]


def test_phase_rollouts_have_their_own_defaults_keys_and_name() -> None:
    made = at("1/rollouts@phase-2", curriculum={"rollouts": {"max_questions": 7}}).settings
    assert (made.model_name, made.options.max_questions) == ("phase-2", 7)
    assert (made.options.samples_per_question, made.options.split, made.options.sampling.temperature) == (
        16,
        "train",
        1,
    )
    changed = {"1/rollouts@phase-2": {"samples_per_question": 8, "max_concurrent": 3}}
    assert at("1/rollouts@phase-2", overrides=changed).settings.options.samples_per_question == 8
    assert at("1/rollouts@phase-1", overrides=changed).settings.options.samples_per_question == 16
    fewer = {"1/rollouts@phase-2": {"samples_per_question": 8}}
    assert semantic_of(config(overrides=changed)) == semantic_of(config(overrides=fewer))


def test_phase_selection_reads_the_rows_of_all_earlier_phases() -> None:
    assert inputs("1/selection@phase-3") == {
        "rollouts": ["1/rollouts@phase-3"], "scores": ["1/scores@phase-3"], "questions": ["1/questions"],
        "previous": ["1/selection@phase-1", "1/selection@phase-2"],
    }  # fmt: skip
    assert at("1/selection@phase-3").settings.phase == 3
    assert inputs("1/scores@phase-3") == {"rollouts": ["1/rollouts@phase-3"], "questions": ["1/questions"]}


def sigmas(**more: Any) -> list[tuple[float, float]]:
    options = [at(f"1/rl@phase-{phase}", **more).settings.options for phase in (1, 2, 3)]
    return [(one.reward.sigma_tool, one.reward.sigma_length) for one in options]


def test_sigmas_decrease_between_phases_unless_given() -> None:
    assert sigmas() == [(0.1, 0.1), (0.05, 0.05), (0.025, 0.025)]
    assert sigmas(rl={"reward": {"sigma_tool": 0.3}}) == [(0.3, 0.1), (0.3, 0.05), (0.3, 0.025)]
    assert sigmas(overrides={"1/rl@phase-2": {"reward": {"sigma_tool": None}}}) == sigmas()
    steeper = {"1/rl@phase-2": {"reward": {"sigma_length": 0.7}}}
    assert sigmas(overrides=steeper) == [
        (0.1, 0.1),
        (0.05, 0.7),
        (0.025, 0.025),
    ]


@pytest.mark.covers("pareto-28")
def test_phase_with_all_zero_sigmas_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    given = {
        "questions": {"sources": [{"path": str(tmp_path / "questions.jsonl"), "domain": "math"}]},
        "curriculum": {"sigma_tool": [0.1, 0.0, 0.0], "sigma_length": [0.1, 0.0, 0.1]},
    }
    with pytest.raises(ConfigError, match="1/rl@phase-2: sigma_tool and sigma_length are both 0"):
        flow_instances(config(**given))
    assert len(flow_instances(config(**given, rl={"reward": {"allow_zero_sigmas": True}}))) == 13


@pytest.mark.parametrize("start", ["/models/nowhere", "./nowhere", "models/of/mine", "", "org/na me", "org/base\n"])
def test_start_that_is_neither_a_folder_nor_a_hub_id_is_refused_before_any_work(start: str) -> None:
    with pytest.raises(ConfigError, match="1/rl@phase-1: rl.start = .* is neither a folder that exists nor a hub id"):
        at("1/rollouts@phase-1", rl={"start": start}, curriculum={"sampling_model": "elsewhere"})


VERL = {"engine": "verl"}


@pytest.mark.covers("pareto-28")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rl": {**VERL, "lr_scheduler_type": "linear"}}, "1/rl@phase-1: rl.lr_scheduler_type: verl supports constant"),
        ({"rl": {**VERL, "precision": "fp32"}}, "rl.precision: vLLM inside verl"),
        ({"rl": {**VERL, "finetuning_type": "lora", "lora_dropout": 0.1}}, "no dropout"),
        ({"rl": {**VERL, "variant": "cpu"}}, "verl trains on NVIDIA GPUs only"),
        ({"rl": {**VERL, "extra": {"trainer.save_freq": 7}}}, "trainer.save_freq is set by other keys"),
        ({"rl": {**VERL, "extra": {"data.trust_remote_code": True}}}, "never run"),
        ({"rl": {**VERL, "num_devices": 4, "tensor_parallel": 3}}, "does not divide 4 GPUs"),
        ({"rl": {**VERL, "num_devices": 3}}, "evenly over 3 GPUs"),
        ({"rl": {"num_nodes": 4}}, "1/rl@phase-1: rl: TRL trains on one machine"),
        ({"rl": {"variant": "cpu", "precision": "fp16"}}, "fp16 cannot be trained on a CPU"),
        ({"rl": {"per_device_batch_size": 7}}, "not a multiple of rl.per_device_batch_size = 7"),
        ({"rl": {"checkpoint_rule": "best"}}, "needs validation; set rl.validation_questions"),
        ({"overrides": {"1/rl@phase-3": {"num_nodes": 2}}}, "1/rl@phase-3: rl: TRL trains on one machine"),
        ({"selection": {"max_questions": 2}}, "selection.max_questions = 2 is less than rl.prompts_per_step = 4"),
        ({"selection": {"quotas": {"qa": 3}}}, "the sum of selection.quotas = 3 is less than"),
        ({"curriculum": {"rollouts": {"max_questions": 3}}}, "curriculum.rollouts.max_questions = 3 is less than"),
        (
            {"selection": {"min_rollouts": 20}},
            r"1/selection@phase-1: selection.min_rollouts = 20 is more than samples_per_question = 16",
        ),
        ({"curriculum": {"rollouts": {"samples_per_question": 1}}}, "more than samples_per_question = 1 "),
        (
            {"curriculum": {"rollouts": {"samples_per_question": 5000}}},
            "samples_per_question = 5,000 .* more than 3,000",
        ),
        ({"curriculum": {"rollouts": {"split": "heldout"}}}, "held-out questions are never trained on"),
        ({"curriculum": {"rollouts": {"sampling": {"temperature": 0.0}}}}, "sampled at temperature 0"),
        (
            {"overrides": {"1/rollouts@phase-2": {"samples_per_question": 3}}},
            "1/selection@phase-2: selection.min_rollouts",
        ),
    ],
)
def test_impossible_selection_or_training_is_refused_before_any_work(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    (tmp_path / "questions.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    questions = {"sources": [{"path": str(tmp_path / "questions.jsonl"), "domain": "math"}]}
    with pytest.raises(ConfigError, match=said):
        flow_instances(config(questions=questions, **given))
    phase = 3 if "phase-3" in said else 2 if "phase-2" in said else 1
    with pytest.raises(ConfigError, match=said):  # Also alone, as `treadle stage` and the deployments make it.
        at(f"1/rollouts@phase-{phase}", **given)


def test_selection_without_training_may_have_any_size() -> None:
    few = {"flow": {"stages": ["selection"]}, "selection": {"max_questions": 2}}
    assert at("1/selection@phase-1", **few).settings.options.max_questions == 2
    with pytest.raises(ConfigError, match="prompts_per_step"):
        at("1/rl@phase-1", **few)


@pytest.mark.parametrize("model", ["1/rl@phase-9", "2/sft", "1/rl", "1/sft@x"])
def test_model_that_no_instance_makes_is_refused(model: str) -> None:
    served = {**MODELS["tuned"], "server": {"type": "vllm", "model": model}}
    with pytest.raises(ConfigError, match=f"models.tuned.server.model = {model}: no instance"):
        at("1/rollouts@tuned", models={**MODELS, "tuned": served})
    with pytest.raises(ConfigError, match=f"sft.model = {model}(: no instance| is the output)"):
        at("1/sft", sft={"model": model})


def test_cyclic_dependency_is_refused(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    questions = {"sources": [{"path": str(tmp_path / "questions.jsonl"), "domain": "math"}]}
    stages = {"stages": ["pools", "sft_rows", "sft", "rl"]}
    with pytest.raises(ConfigError, match=r"1/pools depends on its own output \(its checkpoint is 1/rl@phase-3\)"):
        flow_instances(config(questions=questions, flow=stages, pools={"roles": {"policy": {"model": "tuned"}}}))
    with pytest.raises(ConfigError, match="1/sft depends on its own output"):
        flow_instances(config(questions=questions, flow={"stages": ["sft", "rl"]}, sft={"model": "1/rl@phase-1"}))


@pytest.mark.parametrize("engine", [{}, {"engine": "verl"}])
def test_rewards_judge_math_like_the_scores_of_their_phase(engine: dict[str, Any]) -> None:
    def algebra(**more: Any) -> Any:
        settings = at("1/rl@phase-2", **{**more, "rl": {**engine, **more.get("rl", {})}}).settings
        assert settings.options.symbolic is (settings.algebra is not None)
        return settings.algebra and (settings.algebra.limit_s, settings.algebra.memory_mib)

    assert algebra() == (2.0, 1024)
    assert algebra(scores={"symbolic_limit_s": 5.0, "symbolic_memory_mib": 512}) == (5.0, 512)
    assert algebra(scores={"symbolic": False}) is None
    assert algebra(overrides={"1/scores@phase-2": {"symbolic": False}}) is None
    assert algebra(overrides={"1/scores@phase-1": {"symbolic": False}}) == (2.0, 1024)
    assert algebra(rl={"symbolic": False}) is None
    assert algebra(scores={"symbolic": False}, rl={"symbolic": True}) == (2.0, 1024)


def test_preset_of_one_phase_replaces_its_existing_keys() -> None:
    overrides = {"1/rl@phase-2": {"preset": "et-agent-7b", "learning_rate": 3e-6}}
    given = {
        "rl": {"weight_decay": 0.5, "symbolic": False, "reward": {"scale": 3.0}},
        "overrides": overrides,
    }
    second = at("1/rl@phase-2", **given).settings.options
    assert (second.engine.type, second.prompts_per_step, second.weight_decay) == ("verl", 64, 0.01)
    assert (second.learning_rate, second.reward.scale, second.start) == (3e-6, 2.0, "1/rl@phase-1")
    assert at("1/rl@phase-1", **given).settings.options.engine.type == "trl"
    for unknown in ("et", ["et"]):
        with pytest.raises(ConfigError, match=r"overrides.*1/rl@phase-2.*: unknown preset"):
            at("1/rl@phase-2", overrides={"1/rl@phase-2": {"preset": unknown}})


def test_preset_name_does_not_matter_only_its_values() -> None:
    by_name, spelled_out = {"preset": "et-agent-7b"}, dict(ET_AGENT_7B)
    fingerprints = [fingerprint_of(at("1/rl@phase-1", rl=rl), {}) for rl in (by_name, spelled_out)]
    assert fingerprints[0] == fingerprints[1]
    assert semantic_of(config(rl=by_name)) == semantic_of(config(rl=spelled_out))
    tuned = [semantic_of(config(sft=sft)) for sft in (by_name, dict(SFT_ET_AGENT_7B))]
    assert tuned[0] == tuned[1]
    within = [{"preset": "et-agent-rl", "search": {"enabled": False}}, {**ET_AGENT_RL, "search": {"enabled": False}}]
    met = [semantic_of(config(environment=environment)) for environment in within]
    assert met[0] == met[1]


def test_adapter_settings_do_not_affect_full_training_fingerprints() -> None:
    fingerprints = [fingerprint_of(at("1/rl@phase-1", rl=rl), {}) for rl in ({"lora_rank": 64}, {})]
    assert fingerprints[0] == fingerprints[1]
    assert at("1/rl@phase-1", rl={"lora_rank": 64, "finetuning_type": "lora"}).settings.options.lora_rank == 64
    assert semantic_of(config(sft={"lora_rank": 64})) == semantic_of(config())
    assert at("1/rl@phase-1", rl={"lora_dropout": 0.5}).settings.options.lora_dropout == 0.0


def test_adapters_of_one_phase_use_the_keys_of_the_table() -> None:
    overrides = {"1/rl@phase-2": {"finetuning_type": "lora"}}
    wide, narrow = (config(rl={"lora_rank": rank}, overrides=overrides) for rank in (64, 16))
    trained = [instance(wide, Address.parse(f"1/rl@phase-{phase}")).settings.options for phase in (1, 2)]
    assert [(options.finetuning_type, options.lora_rank) for options in trained] == [("full", 8), ("lora", 64)]
    assert semantic_of(wide)["rl"] == semantic_of(narrow)["rl"]
    assert semantic_of(wide)["overrides"] != semantic_of(narrow)["overrides"]


@pytest.mark.parametrize(
    ("given", "said"), [({"lora_rank": "abc"}, "rl.lora_rank"), ({"lora_target": ",,"}, "names no module")]
)
def test_adapter_keys_are_validated_even_without_adapters(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(rl=given)


def test_further_phases_leave_earlier_ones_unchanged() -> None:
    more = {"phases": 4, "sigma_tool": [0.1, 0.05, 0.025, 0.02], "sigma_length": [0.1, 0.05, 0.025, 0.02]}
    for phase in (1, 2, 3):
        for stage in ("rollouts", "selection", "rl"):
            address = f"1/{stage}@phase-{phase}"
            assert fingerprint_of(at(address), {}) == fingerprint_of(at(address, curriculum=more), {}), address


def test_run_may_get_more_phases_and_keeps_its_sigmas(tmp_path: Path) -> None:
    def opened(*sigmas: float) -> Run:
        given = config(curriculum={"phases": len(sigmas), "sigma_tool": sigmas, "sigma_length": [0.1] * 5})
        resolved = given.model_dump(mode="json")
        return create_or_open_run(tmp_path, "r", resolved, semantic_of(given), schema=TreadleConfig)

    run = opened(0.1, 0.05)
    run.storage.put(run.key("journal/1/rollouts@phase-1/f/00000001.journal"), b"")  # the lock begins with work
    assert opened(0.1, 0.05, 0.02).config()["curriculum"]["phases"] == 3
    for others in ((0.2, 0.05, 0.02), (0.1, 0.05, 0.03), (0.1, 0.05)):
        with pytest.raises(RunError, match=r"curriculum.sigma_tool.* -> .*choose a new run id"):
            opened(*others)
    assert opened(0.1, 0.05, 0.02, 0.01).config()["curriculum"]["sigma_tool"] == [0.1, 0.05, 0.02, 0.01]


def test_run_can_grow_and_reports_only_differences(tmp_path: Path) -> None:
    sigmas = [0.1, 0.05, 0.025]
    made = config(curriculum={"phases": 3, "sigma_tool": sigmas, "sigma_length": sigmas})
    run = Run.create(tmp_path, "r", {}, semantic_of(made))
    run.storage.put(run.key("journal/1/rollouts@phase-1/f/00000001.journal"), b"")

    def opened(*sigma_tool: float, **more: Any) -> Run:
        curriculum = {"phases": len(sigma_tool), "sigma_tool": sigma_tool, "sigma_length": (0.1, 0.05, 0.025, 0.01)}
        given = config(curriculum=curriculum, **more)
        return create_or_open_run(tmp_path, "r", {}, semantic_of(given), schema=TreadleConfig)

    with pytest.raises(RunError, match=r"\(curriculum\.sigma_tool\[2\]: 0\.025 -> 0\.5\);"):
        opened(0.1, 0.05, 0.5, 0.01)
    with pytest.raises(RunError, match=r"\(seed: 0 -> 1\);"):
        opened(0.1, 0.05, 0.025, seed=1)
    assert opened(0.1, 0.05, 0.025, 0.01).info.semantic["curriculum"]["sigma_tool"] == [0.1, 0.05, 0.025, 0.01]


def test_extended_run_can_be_planned_opened_and_helped(tmp_path: Path) -> None:
    first = config(curriculum={"phases": 2, "sigma_tool": [0.1, 0.05], "sigma_length": [0.1, 0.05]})
    run = Run.create(tmp_path, "r", first.model_dump(mode="json"), semantic_of(first))
    run.storage.put(run.key("journal/1/rollouts@phase-1/f/00000001.journal"), b"")
    more = (
        "curriculum.phases=3",
        "curriculum.sigma_tool=[0.1, 0.05, 0.02]",
        "curriculum.sigma_length=[0.1, 0.05, 0.02]",
    )
    assert open_for_work(tmp_path, "r", "1/rl@phase-3", more)[0].settings.phase == 3
    grown = load_config(TreadleConfig, (), more, base=run.config())
    changed, refused = changed_keys(grown, semantic_of(grown), tmp_path, "r")
    assert changed and not refused
    assert open_run(tmp_path, "r", grown).info.semantic["curriculum"]["sigma_tool"] == [0.1, 0.05, 0.02]


def test_bracketed_dict_key_does_not_count_as_growth() -> None:
    older, newer = (semantic_of(config(questions={"domains": domains})) for domains in ({}, {"[x]": "qa"}))
    assert differing_keys(older, newer, TreadleConfig) == ["questions.domains.[x]: None -> 'qa'"]


def test_summarizer_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "contents": "A"}\n')
    search = {"corpus": [str(tmp_path / "corpus.jsonl")], "summarizer": "elsewhere"}
    with pytest.raises(ConfigError, match="environment.search.summarizer: rl does not support it"):
        at("1/rl@phase-1", environment={"search": search})
    web = {"provider": {"type": "serper", "api_key_envs": ["KEY"]}}
    reader = {"type": "planning", "dialect": "web", "search": {"web": web}, "crawl_page": {"summarizer": "elsewhere"}}
    with pytest.raises(ConfigError, match="environment.crawl_page.summarizer: rl does not support it"):
        at("1/rl@phase-1", environment=reader)


MIXTURE: dict[str, Any] = {
    "environments": {"guess": {"type": "support.rollouts.dialogues:Guess"}},
    "questions": {"sources": [{"path": "a.jsonl"}, {"path": "b.jsonl", "environment": "guess", "payload": ["secret"]}]},
}


def test_phase_over_two_environments_knows_both_and_their_shares() -> None:
    settings = at("1/rl@phase-1", **MIXTURE, rl={"shares": {"default": 0.25, "guess": 0.75}}).settings
    assert list(settings.named_environments()) == ["default", "guess"]
    assert settings.options.shares == {"default": 0.25, "guess": 0.75}
    with pytest.raises(ConfigError, match=r"^1/rl@phase-1: rl.shares names 'gues', but the sources .* default, guess;"):
        at("1/rl@phase-1", **MIXTURE, rl={"shares": {"default": 0.25, "gues": 0.75}})


def test_paper_config_spells_out_the_preset_and_needs_few_task_runs() -> None:
    path = Path(__file__).parents[4] / "configs" / "et-agent-7b.toml"
    paper = load_config(TreadleConfig, (path,))
    assert set(tomllib.loads(path.read_text())["rl"]) == {*ET_AGENT_7B, "preset", "start"}
    assert paper.rl == RlOptions(preset="et-agent-7b")
    assert len(flow_addresses(paper)) == 23


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("1/rl@phase-4", "the curriculum has 3 phases; the last one is 1/rl@phase-3"),
        ("1/rollouts@phase-4", "the curriculum has 3 phases"),
        ("1/rl", "names no phase of the curriculum; write it as 1/rl@phase-1"),
        ("1/selection@served", "write it as 1/selection@phase-1"),
        ("1/sft@phase-1", "there is one sft per iteration"),
        ("1/rollouts@phase-0", "names no model"),
        (f"1/rl@phase-{'9' * 5000}", "names no phase of the curriculum"),
        (f"{'9' * 5000}/rl@phase-1", "is not a stage instance"),
    ],
)
def test_impossible_phase_is_refused_with_a_valid_one(address: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        at(address)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"curriculum": {"phases": 4}}, "sigma_tool has 3 values for 4 phases"),
        ({"curriculum": {"sampling_model": "nobody"}}, "curriculum.sampling_model names 'nobody'"),
        ({"models": {"phase-2": MODELS["tutor"]}}, "this name is reserved for the policy of a phase"),
        ({"curriculum": {"sigma_tool": [-0.1, 0, 0]}}, "curriculum.sigma_tool.0"),
    ],
)
def test_invalid_curriculum_is_refused_by_its_key(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(**given)
