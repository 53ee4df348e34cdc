"""The parts of the engine `trl` that need no torch: commands, errors, rows, and what is asked of vLLM."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import orjson
import pytest
from support.training import trl_jobs

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.config import Machine
from treadle.core.engines.errors import Diverged, NothingLearned
from treadle.core.engines.events import EventFile
from treadle.core.engines.training import Advice, explain_failure
from treadle.core.errors import ConfigError, EndpointUnavailable, EngineError, ToolError
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import CompletionRequest
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.rl.engine.__main__ import main
from treadle.rl.engine.dynamic_sampling import NoSpread
from treadle.rl.engine.errors import BadEnvironment, BadPlan, kind_of
from treadle.rl.engine.rows import Payloads, check_rows, first_prompt, job_environments, read_tasks
from treadle.rl.engine.trl import commands as trl_commands
from treadle.rl.engine.trl.commands import check, train
from treadle.rl.engine.vllm_generation import VllmGenerator
from treadle.rl.training.events import RlEvents
from treadle.rl.training.plan import RlPlan
from treadle.rl.trl.config import trl_arguments

ENVIRONMENTS = {"default": trl_jobs.ENVIRONMENT}


@pytest.fixture
def codec(tmp_path: Path) -> ChatTokenizer:
    return ChatTokenizer.load(write_byte_tokenizer(tmp_path / "tokenizer"))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadPlan("x"), "arguments"),
        (ConfigError("x"), "arguments"),
        (BadEnvironment("x"), "environment"),
        (ToolError("x"), "tools"),
        (EndpointUnavailable("x"), "tools"),
        (Diverged("x"), "diverged"),
        (NothingLearned("x"), "nothing_learned"),
        (NoSpread("x"), "no_spread"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "no_memory"),
        (MemoryError(), "no_memory"),
        (EngineError("x"), "other"),
        (ZeroDivisionError("x"), "other"),
    ],
)
def test_errors_are_reported_by_kinds_known_to_the_stage(error: Exception, kind: str) -> None:
    assert kind_of(error) == kind


@pytest.mark.parametrize(
    ("command", "engine", "said"),
    [
        ("check", "ppo", "rl.engine: type = 'ppo' is unknown; known: trl, verl"),
        ("sell", "trl", "unknown command 'sell'"),
        ("check", "../../x", "is unknown"),
    ],
)
def test_unknown_values_are_refused_with_an_event(
    tmp_path: Path, command: str, engine: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {"plan": {"options": {"engine": engine}}, "events": str(tmp_path / "events.jsonl")}
    (tmp_path / "job.json").write_text(json.dumps(job))
    assert main(command, str(tmp_path / "job.json")) == 1
    (event,) = map(orjson.loads, (tmp_path / "events.jsonl").read_bytes().splitlines())
    assert event["event"] == "error" and event["kind"] == "arguments" and said in event["message"]
    assert "Traceback" in capsys.readouterr().err


def test_each_process_reports_its_error_and_the_first_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    log = RlEvents(path)
    for attempt in ("lost", "found"):
        # Rank 3 is why the others fail a moment later.
        for rank, engine in ((3, attempt), (0, "and so are we")):
            monkeypatch.setenv("RANK", str(rank))
            job = {"plan": {"options": {"engine": engine}}, "events": str(path)}
            (tmp_path / "job.json").write_text(json.dumps(job))
            assert main("check", str(tmp_path / "job.json")) == 1
        assert [event["rank"] for event in log.new()] == [3, 0]
        error = log.last.pop("error")
        assert error["rank"] == 3 and f"rl.engine: type = {attempt!r} is unknown" in error["message"]
        assert error["message"].endswith("(process 3)")


def test_tool_error_during_a_rollout_is_reported_as_one(tmp_path: Path) -> None:
    child: Any = SimpleNamespace(failure=EngineError, log_path=tmp_path / "log")
    advice = Advice(refused="", memory="", killed="")
    error = {"kind": kind_of(ToolError("search: gone")), "message": "ToolError: search: gone"}
    assert str(explain_failure(child, 1, error, advice)) == (
        "lost a tool or a service (ToolError: search: gone); fix that, and the next attempt resumes from the last state"
    )


@pytest.mark.parametrize(
    ("given", "num_devices", "seen"), [(None, 1, "0"), (None, 2, "0,1"), ("5, 7,6", 1, "5"), ("5, 7,6", 2, "5,7")]
)
def test_training_sees_only_the_gpus_of_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, num_devices: int, seen: str
) -> None:
    # Through `setenv` first, so that what the engine sets in this process ends with the test.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given or "")
    if given is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.delenv("RANK", raising=False)
    plan = _for_gpus(num_devices)
    trained: list[str] = []
    trainer = ModuleType("treadle.rl.engine.trl.trainer")
    trainer.train_policy = lambda *_: trained.append(os.environ["CUDA_VISIBLE_DEVICES"])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, trainer.__name__, trainer)
    monkeypatch.setattr(os, "execv", lambda _, argv: trained.append(os.environ["CUDA_VISIBLE_DEVICES"]))
    environment = {"environments": trl_jobs.environments_json()}
    job = {"plan": json.loads(plan.to_json()), "path": "job.json", **environment}
    train(job, EventFile(tmp_path / "events.jsonl"))
    assert trained[0] == seen


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record types of the policies whose attention `check` examined; torch, TRL and the like are stand-ins."""
    looked: list[str] = []
    policy = SimpleNamespace(get_text_config=lambda: "mamba")
    names = [*trl_arguments(trl_jobs.make_plan(), Path()), *trl_arguments(_for_gpus(), Path())]
    stand_ins: dict[str, dict[str, Any]] = {
        "trl": {"GRPOConfig": dataclasses.make_dataclass("GRPOConfig", [(name, Any, None) for name in {*names}])},
        "peft": {"LoraConfig": dict},
        "transformers": {"AutoConfig": SimpleNamespace(from_pretrained=lambda folder: policy)},
        "treadle.rl.engine.attention": {"require_supported": looked.append},
    }
    for name, contents in stand_ins.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(trl_commands, "version", lambda package: "1")
    return looked


def _for_gpus(num_devices: int = 1) -> RlPlan:
    machine = Machine(variant="cuda", num_devices=num_devices)
    return trl_jobs.make_plan().model_copy(update={"machine": machine})


@pytest.mark.parametrize(
    ("plan", "expected"), [(trl_jobs.make_plan(), ["mamba"]), (_for_gpus(), []), (_for_gpus(2), [])]
)
def test_attention_support_is_checked_only_for_cpu_plans(
    tmp_path: Path, looked_at: list[str], plan: RlPlan, expected: list[str]
) -> None:
    environment = {"environments": trl_jobs.environments_json()}
    job = {"plan": json.loads(plan.to_json()), "output": str(tmp_path), "model": str(tmp_path), **environment}
    check(job, EventFile(tmp_path / "events.jsonl"))
    (event,) = map(orjson.loads, (tmp_path / "events.jsonl").read_bytes().splitlines())
    assert event["event"] == "prepared" and event["versions"]["trl"] == "1"
    assert looked_at == expected


def test_environment_that_differs_from_the_plan_is_refused() -> None:
    plan = json.loads(trl_jobs.make_plan().to_json())
    job: dict[str, Any] = {"environments": trl_jobs.environments_json(), "plan": plan}
    assert job_environments(job) == ENVIRONMENTS
    job["environments"]["default"]["max_total_calls"] = 1
    with pytest.raises(BadEnvironment, match=r"\(environment, digest .*install one version on all machines"):
        job_environments(job)


def test_rows_are_restored_as_tasks_with_their_answers(tmp_path: Path, codec: ChatTokenizer) -> None:
    path = tmp_path / "rows.parquet"
    trl_jobs.write_rows(path)
    rows = read_tasks(path, Payloads(None))
    assert [row.key for row in rows] == ["q0", "q1", "q2", "q3"]
    assert rows[0].answers == ("5",) and rows[0].domain == "math"
    messages = trl_jobs.ENVIRONMENT.first_messages(rows[0])
    assert first_prompt(path, ENVIRONMENTS, codec) == codec.prompt_ids(messages)


def test_rows_that_differ_from_the_plan_are_refused(tmp_path: Path, codec: ChatTokenizer) -> None:
    path = tmp_path / "rows.parquet"
    trl_jobs.write_rows(path)
    rows = read_tasks(path, Payloads(None))
    check_rows(rows, 4, 200, ENVIRONMENTS, codec)
    with pytest.raises(BadPlan, match="4 rows, but the plan has 5"):
        check_rows(rows, 5, 200, ENVIRONMENTS, codec)
    longest = len(first_prompt(path, ENVIRONMENTS, codec))
    with pytest.raises(BadPlan, match="4 of 4 prompts are longer than rl.max_prompt_tokens"):
        check_rows(rows, 4, longest - 1, ENVIRONMENTS, codec)


class _Engine:
    """Replaces vLLM's `LLM`: answers each request with `ok`, an end of turn, and made-up probabilities."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Any]] = []

    def generate(self, prompts: list[Any], sampling_params: list[Any], use_tqdm: bool) -> list[Any]:
        """See vLLM."""
        self.asked = list(zip(prompts, sampling_params, strict=True))
        ids = [111, 107, 258]
        places = [{id_: SimpleNamespace(logprob=-0.5), 1: SimpleNamespace(logprob=-1.0)} for id_ in ids]
        made = SimpleNamespace(token_ids=ids, logprobs=places, finish_reason="stop", stop_reason=258)
        return [SimpleNamespace(outputs=[made], prompt_token_ids=prompt["prompt_token_ids"]) for prompt in prompts]


def test_vllm_requests_ask_for_ids_with_stop_strings_and_seeds(
    codec: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("vllm")
    module.SamplingParams = lambda **parameters: parameters  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    engine = _Engine()
    synced: list[int] = []
    trainer = SimpleNamespace(
        state=SimpleNamespace(global_step=0),
        _last_loaded_step=-1,
        vllm_generation=SimpleNamespace(llm=engine, sync_weights=lambda: synced.append(1)),
    )
    generator = VllmGenerator(trainer, codec)
    generator.refresh()
    generator.refresh()
    trainer.state.global_step = 1
    generator.refresh()
    assert len(synced) == 2, "weights go over once for each state of them"

    sampling = Sampling(temperature=0.7, top_p=1.0, top_k=-1)
    requests = [CompletionRequest([1, 2, seed], 9 + seed, sampling, ("</python>",), seed) for seed in range(2)]
    answers = generator.generate(requests)
    assert [prompt for prompt, _ in engine.asked] == [{"prompt_token_ids": [1, 2, 0]}, {"prompt_token_ids": [1, 2, 1]}]
    parameters = [asked for _, asked in engine.asked]
    assert [(one["max_tokens"], one["seed"]) for one in parameters] == [(9, 0), (10, 1)]
    assert parameters[0]["stop"] == ["</python>"] and parameters[0]["include_stop_str_in_output"] is True
    assert parameters[0]["temperature"] == 0.7 and parameters[0]["top_k"] == -1
    assert answers[0].token_ids == (111, 107, 258) and answers[0].text.startswith("ok")
    assert answers[0].logprobs == (-0.5, -0.5, -0.5) and answers[0].stop_reason is None
    assert answers[0].entropies == pytest.approx((0.6711,) * 3, abs=1e-3)
