"""verl itself, on the CPU: it composes our configuration, runs our agent loop under its own workers with a stub of its
servers, asks our reward, estimates advantages, and saves and merges a sharded policy. Training needs GPUs."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.training.verl_e2e import prepare_folder

from treadle.core.chat import ChatTokenizer
from treadle.core.config import load_config
from treadle.core.engines.environments import engine_environ, install
from treadle.environments.question.settings import QuestionSettings
from treadle.rl.engine.verl.folder import VerlFolder
from treadle.rl.presets import EVOLVER_PRESETS, PLANNING_PRESETS
from treadle.rl.training.events import RlEvents

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "unit" / "golden"


@pytest.fixture(scope="session")
def python() -> Path:
    """Python of the installed engine environment of `verl`."""
    return install("verl", "cpu", notify=lambda line: print(line, file=sys.stderr, flush=True)) / "bin" / "python"


def run(python: Path, folder: Path, *arguments: str | Path, expect: int = 0, **variables: str) -> str:
    """Run a program in verl's environment with Treadle and the tests' support on its path; return what it printed."""
    environ = engine_environ({"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")})
    environ |= {
        "PYTHONPATH": f"{variables.pop('first', TESTS)}:{environ['PYTHONPATH']}:{TESTS}",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    work = folder / "work"
    work.mkdir(exist_ok=True)
    argv = [str(python), *map(str, arguments)]
    done = subprocess.run(argv, cwd=work, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    said = done.stdout.decode(errors="replace")
    assert done.returncode == expect, said[-4_000:]
    return said


@pytest.fixture(scope="module")
def found(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return how verl interprets a job's files and our loop."""
    folder = tmp_path_factory.mktemp("verl")
    prepare_folder(folder)
    run(python, folder, TESTS / "support" / "training" / "verl_probe.py", folder / "answer.json", folder)
    answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return answer


def test_verl_wheel_installs_no_tests_or_scripts_package(python: Path) -> None:
    packages = python.parents[1] / "lib" / "python3.11" / "site-packages"
    assert (packages / "verl").is_dir()
    assert not (packages / "tests").exists() and not (packages / "scripts").exists()


@pytest.mark.covers("pareto-30")
def test_generated_overrides_compose_and_unknown_keys_fail(found: dict[str, Any]) -> None:
    composed = found["composed"]
    assert composed["said"] == dict.fromkeys(("job", "et-agent-7b", "lora", *PLANNING_PRESETS, *EVOLVER_PRESETS), "")
    assert "trainer.save_every" in composed["unknown"]
    assert all("Could not override" in said for said in composed["fork"].values()) and len(composed["fork"]) == 5
    assert composed["values"] == {
        "n": 8,
        "loop": "treadle",
        "dual_clip": 3.0,
        "strategy": "fsdp2",
        "address": "1/rl@phase-1",
        "note": "it's \\ 'quoted' ${trainer.nnodes}",
    }


def test_verl_dataset_reads_rows_and_drops_long_prompts(found: dict[str, Any]) -> None:
    assert found["rows"] == {
        "keys": ["key-0", "key-1", "key-2"],
        "index": [0, 1, 2],
        "prompt": [{"content": "Use tools.", "role": "system"}, {"content": "Question 0?", "role": "user"}],
        "sources": ["math_effi_rl"],
    }


def test_verl_reads_the_rows_of_each_step_also_after_a_resume(found: dict[str, Any]) -> None:
    assert found["steps"] == [[["key-1", "key-0"], ["key-2", "key-1"], ["key-0", "key-2"]]] * 3


def test_packed_sequences_do_not_attend_to_each_other(found: dict[str, Any]) -> None:
    assert found["packed"] < 1e-5


@pytest.mark.covers("pareto-31")
def test_verl_worker_rewards_four_sessions_from_their_siblings(found: dict[str, Any]) -> None:
    example = found["worked_example"]
    assert example["calls"] == [1, 2, 3, 6] and example["rewards"] == [2, 1, 0, -3]
    assert example["reward_at_last_token"]


@pytest.mark.covers("pareto-31")
def test_crash_in_one_session_fails_the_group(found: dict[str, Any]) -> None:
    assert found["worked_example"]["crash"].startswith("GroupFailed: group u of step 1 failed")


@pytest.mark.covers("pareto-33")
def test_verl_worker_reproduces_the_shared_scenario(found: dict[str, Any]) -> None:
    plain = [item for group in found["contract"]["plain"] for item in group["items"]]
    under_verl = [item for group in found["contract"]["verl"] for item in group]
    assert len(plain) == 24 and {item["branch_depth"] for item in plain} >= {0, 1, 2}
    for ours, theirs in zip(plain, under_verl, strict=True):
        assert (ours["completion"], ours["logprobs"]) == (theirs["completion"], theirs["logprobs"])
        runs = [[value, len(list(run))] for value, run in itertools.groupby(theirs["mask"])]
        assert ours["mask"] == runs and ours["total_tokens"] == theirs["length"]
        assert theirs["reward"] == pytest.approx(ours["reward"], abs=1e-6)
        assert theirs["reward"] == 0 or theirs["reward_at"] == theirs["length"] - 1


@pytest.mark.covers("pareto-33")
def test_verl_advantages_match_the_reference(found: dict[str, Any]) -> None:
    plain = [item["advantage"] for group in found["contract"]["plain"] for item in group["items"]]
    assert found["contract"]["advantages"] == pytest.approx(plain, abs=1e-5)
    assert found["example_a"] == pytest.approx([0.9272, 0.6998, -0.4068, 0.8157, -0.4068, -1.6292], abs=5e-5)


def test_advantages_of_turns_are_in_verls_batch_as_they_are(found: dict[str, Any]) -> None:
    credited = found["credited"]
    assert credited["estimator"] == "treadle_turns" and credited["most_turns"] > 1 and credited["error"] < 1e-5
    assert credited["modules"] == [
        "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES=treadle.rl.engine.verl.turn_credit"
    ]
    rewards = [item["reward"] for item in found["contract"]["plain"][0]["items"]]
    assert sorted(credited["rewards"]) == pytest.approx(sorted(rewards), abs=1e-6)


def test_verl_processes_know_the_estimator_by_the_variable_alone(python: Path, tmp_path: Path) -> None:
    asked = "from verl.trainer.ppo.core_algos import get_adv_estimator_fn as f; print(f('treadle_turns').__name__)"
    said = run(python, tmp_path, "-c", asked, VERL_USE_EXTERNAL_MODULES="treadle.rl.engine.verl.turn_credit")
    assert said.split()[-1] == "advantages_of_turns"


def test_verl_ray_workers_pass_trajectories_to_the_trainer(python: Path, tmp_path: Path) -> None:
    settings = load_config(QuestionSettings, data={"system_prompt": "Use tools.", "search": {"enabled": False}})
    prepare_folder(tmp_path, settings, interpreter=sys.executable)
    said = run(
        python, tmp_path, TESTS / "support" / "training" / "verl_ray_probe.py", tmp_path / "answer.json", tmp_path
    )
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["status"] == ["finished", "failure", "finished"], said[-4_000:]
    whole, failed, _ = answer["groups"]
    assert len(whole) == 8 and failed == []
    codec = ChatTokenizer.load(tmp_path / "start")
    called = [item for item in whole if item["columns"]["tool_calls"]]
    assert called and len(called) < 8
    for item in whole:
        assert len(item["ids"]) == len(item["mask"]) == len(item["scores"]) == len(item["logprobs"])
        assert item["columns"]["acc"] == 1.0 and item["versions"] == [4, 4]
        assert item["scores"][-1] == pytest.approx(item["columns"]["f_tool"] * item["columns"]["f_len"])
    for item in called:
        inserted = [index for index, mask in zip(item["ids"], item["mask"], strict=True) if not mask]
        assert codec.decode(inserted) == "<result>12</result>"
    (why,) = VerlFolder(tmp_path / "verl").failures(1, validation=False)
    assert "this server is broken" in why


@pytest.fixture(scope="module")
def merged(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two states that verl sharded and saved, and the model that `finish` made of each."""
    folder = tmp_path_factory.mktemp("states")
    job = prepare_folder(folder)
    states = [folder / "output" / name for name in ("global_step_2", "global_step_4")]
    shards = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    run(python, folder, *shards, TESTS / "support" / "training" / "verl_shards.py", job["model"], *states)
    for state, options in zip(states, ({}, {"finetuning_type": "lora", "lora_rank": 4}), strict=True):
        plan = {**job["plan"], "options": {**job["plan"]["options"], **options}}
        final = folder / f"model-{state.name}"
        path = folder / f"finish-{state.name}.json"
        path.write_text(json.dumps({**job, "plan": plan, "state": str(state), "final": str(final)}))
        run(python, folder, "-m", "treadle.rl.engine", "finish", path)
    return folder


@pytest.mark.parametrize("state", ["global_step_2", "global_step_4"])
def test_sharded_state_exports_a_model_with_the_base_tokenizer(merged: Path, state: str) -> None:
    start, model = merged / "start", merged / f"model-{state}"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (model / name).read_bytes() == (start / name).read_bytes()
    assert json.loads((model / "config.json").read_text())["dtype"] == "bfloat16"
    assert (model / "model.safetensors").read_bytes() != (start / "model.safetensors").read_bytes()
    assert not list(merged.glob("*.merged")) and not list(merged.glob("*.tmp"))


def test_reports_the_greedy_sample_of_the_model(merged: Path) -> None:
    events = RlEvents(merged / "events.jsonl")
    told = [event for event in events.new() if event["event"] == "greedy"]
    assert len(told) == 2 and all(len(event["ids"]) == 4 for event in told)


def test_rejects_shards_that_differ_from_the_live_policy(python: Path, merged: Path) -> None:
    compare = """
import sys
from pathlib import Path
from treadle.core.errors import EngineError
from treadle.rl.engine.verl.model_folder import compare_with_live
for live in map(Path, sys.argv[2:]):
    try:
        print(compare_with_live(Path(sys.argv[1]), live) > 10)
    except EngineError as error:
        print(error)
"""
    live, start = merged / "output" / "global_step_2" / "actor" / "huggingface", merged / "start"
    said = run(python, merged, "-c", compare, merged / "model-global_step_2", live, start, merged / "work")
    same, other, missing = said.splitlines()[-3:]
    assert same == "True" and "merged weights are not those of the live policy" in other
    assert "saved no copy in" in missing


def test_rejects_adapters_that_differ_from_the_shards(python: Path, merged: Path) -> None:
    compare = """
import json, sys
from pathlib import Path
from safetensors.torch import load_file, save_file
from treadle.core.errors import EngineError
from treadle.rl.engine.verl.model_folder import compare_with_shards
from treadle.rl.engine.verl.model_folder import merge
state, made = map(Path, sys.argv[1:])
merge(state, made)
adapters = made / "lora_adapter"
weights, config = adapters / "adapter_model.safetensors", adapters / "adapter_config.json"
def compare(alpha):
    try:
        print(compare_with_shards(adapters, state / "actor", rank=4, alpha=alpha) > 10)
    except EngineError as error:
        print(error)
compare(8)
compare(16)
whole = load_file(weights)
name = sorted(whole)[-1]
save_file({**whole, name: whole[name] + 1}, weights)
compare(8)
save_file({name: whole[name] for name in sorted(whole)[1:]}, weights)
compare(8)
"""
    said = run(python, merged, "-c", compare, merged / "output" / "global_step_4", merged / "work" / "adapters")
    # torch warns between the lines.
    same, scaled, other, fewer = (line for line in said.splitlines() if line.startswith(("True", "merged adapters")))
    assert same == "True" and "rank 4 and alpha 8 instead of 4 and 16" in scaled
    assert "are not those of the policy in training" in other and "have different tensor names" in fewer


def test_does_not_load_a_state_that_references_code(python: Path, merged: Path, tmp_path: Path) -> None:
    look = """
import os, shutil, sys
from pathlib import Path
import torch
from treadle.core.errors import EngineError
from treadle.rl.engine.verl import model_folder
from treadle.rl.engine.verl.model_folder import check_state, merge
written, copy, ran = map(Path, sys.argv[1:])
check_state(written)
class Evil:
    def __reduce__(self):
        return os.system, (f"touch {ran}",)
shutil.copytree(written, copy)
shard = next((copy / "actor").glob("model_world_size_*_rank_0.pt"))
for options in ({}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4}):
    torch.save({"x": Evil()}, shard, **options)
    for load in (check_state, lambda state: merge(state, ran.with_name("made"))):
        try:
            load(copy)
        except EngineError as error:
            print("refused", error)
try:
    model_folder._saved_adapters(copy / "actor")
except Exception as error:
    print("refused", type(error).__name__)
"""
    state, ran = merged / "output" / "global_step_4", tmp_path / "ran"
    said = run(python, tmp_path, "-c", look, state, tmp_path / "copy", ran)
    assert said.count("refused") == 7 and said.count("it references code that no state of verl has") == 2
    assert not ran.exists() and not ran.with_name("made").exists()


def test_training_is_monitored_and_resumed(python: Path, tmp_path: Path) -> None:
    """The trainer is a stub: it writes what verl and the loop write, and crashes in step 2 of the first attempt."""
    job = prepare_folder(tmp_path, num_rows=9, prompts_per_step=3, save_steps=1)
    stub = {"first": str(TESTS / "support" / "stub_verl_package")}
    train = ("-m", "treadle.rl.engine", "train", tmp_path / "job.json")
    run(python, tmp_path, *train, expect=1, STUB_DIES_AT="2", **stub)
    events = RlEvents(tmp_path / "events.jsonl")
    told = [event["event"] for event in events.new() if event["event"] != "heartbeat"]
    assert told == ["begin", "step", "saved", "error"]
    assert "verl ended with code 3; 1 groups could not be rolled out" in events.last["error"]["message"]
    assert events.begin is not None and events.begin["num_trained_parameters"] > 10_000
    shutil.rmtree(tmp_path / "output" / "global_step_2")
    (tmp_path / "job.json").write_text(json.dumps({**job, "resume": str(tmp_path / "output" / "global_step_1")}))
    run(python, tmp_path, *train, **stub)
    told = [event["event"] for event in events.new() if event["event"] != "heartbeat"]
    assert told == ["begin", "step", "saved", "step", "saved", "end"]
    assert events.begin["resumed_step"] == 1 and events.last["end"] == {"event": "end", "step": 3, "epoch": 1.0}
    assert [step.step for step in events.steps] == [1, 2, 3] and events.steps[0].num_equal_groups == 2
    assert events.steps[2].loss == pytest.approx(1 / 3) and events.steps[2].score == pytest.approx(1 / 6)
    # Groups that the killed attempt left of step 2 are not counted again.
    assert [(step.num_groups, step.num_rollouts) for step in events.steps] == [(3, 6)] * 3
    dumped = {path.name: len(path.read_text().splitlines()) for path in (tmp_path / "rollouts").iterdir()}
    assert dumped == {f"step-{step:06d}.jsonl": 6 for step in (1, 2, 3)}


@pytest.mark.sweep
def test_training_without_gradients_fails(python: Path, tmp_path: Path) -> None:
    prepare_folder(tmp_path, num_rows=6, prompts_per_step=3)
    stub = {"first": str(TESTS / "support" / "stub_verl_package"), "STUB_GRADIENT": "0"}
    run(python, tmp_path, "-m", "treadle.rl.engine", "train", tmp_path / "job.json", expect=1, **stub)
    events = RlEvents(tmp_path / "events.jsonl")
    assert [event["event"] for event in events.new() if event["event"] != "heartbeat"][-2:] == ["saved", "error"]
    assert events.last["error"]["kind"] == "nothing_learned"


def test_plan_rejected_by_verl_is_reported_as_rejected(python: Path, tmp_path: Path) -> None:
    job = prepare_folder(tmp_path)
    job["plan"]["options"]["extra"] = {"trainer.save_every": 3}
    (tmp_path / "job.json").write_text(json.dumps(job))
    run(python, tmp_path, "-m", "treadle.rl.engine", "check", tmp_path / "job.json", expect=1)
    events = RlEvents(tmp_path / "events.jsonl")
    (error,) = events.new()
    assert error["kind"] == "arguments" and "trainer.save_every" in error["message"]
    job["plan"]["options"]["extra"] = {}
    (tmp_path / "job.json").write_text(json.dumps(job))
    # One of the four prompts is too long: a plan must not count it.
    run(python, tmp_path, "-m", "treadle.rl.engine", "check", tmp_path / "job.json", expect=1)
    (error,) = events.new()
    assert error["kind"] == "arguments" and "verl keeps 3 of 4 rows" in error["message"]
    job["plan"]["num_rows"] = 3
    (tmp_path / "job.json").write_text(json.dumps(job))
    run(python, tmp_path, "-m", "treadle.rl.engine", "check", tmp_path / "job.json")
    (prepared,) = events.new()
    assert prepared["versions"]["verl"] == "0.9.1"
