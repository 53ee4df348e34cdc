"""Every key of a run's config, found by introspection: a change on resume is refused or applied, never ignored."""

from __future__ import annotations

import copy
import itertools
import re
import shutil
import sys
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic.fields import FieldInfo
from typing_extensions import TypeAliasType

from treadle.agent.judges.registry import JUDGES
from treadle.core.config import Section, _flatten, is_operational, load_config
from treadle.core.errors import ConfigError, RunError
from treadle.core.registry import Entry, Registry
from treadle.core.runs.execute import fingerprint_of
from treadle.core.runs.records import json_round_trip
from treadle.core.runs.run import Run
from treadle.core.store.storage import LocalStorage
from treadle.datagen.exploration.filters import FILTERS
from treadle.datagen.exploration.strategies import STRATEGIES
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.environments.registry import ENVIRONMENTS
from treadle.environments.scorers.stdin_tests import ProgramSandboxSettings
from treadle.environments.tools.registry import TOOLS
from treadle.rl.credit.registry import CREDITS
from treadle.rl.rewards.registry import REWARDS
from treadle.rl.selection.methods.registry import METHODS
from treadle.tasks.catalog import flow_instances, semantic_of
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.run_setup import open_run
from treadle.web.record.table import write_record

REVISABLE = (
    ("scores", "judges"), ("scores", "redundancy"), ("scores", "best_of"), ("scores", "max_error_rate"), ("report",),
    ("rollouts", "samples_per_question"), ("rollouts", "max_questions"), ("rollouts", "max_questions_per_dataset"),
    ("rollouts", "datasets"), ("rollouts", "split"), ("scorers",), ("guided_rollouts", "samples_per_question"),
    ("guided_rollouts", "max_questions"), ("guided_rollouts", "max_questions_per_dataset"),
    ("guided_rollouts", "datasets"), ("guided_rollouts", "split"),
)  # fmt: skip

OPERATIONAL = """
AttributionCredit.concurrency QuestionsSettings.scorers
CompanionSettings.command CompanionSettings.env CompanionSettings.folder CompanionSettings.name
CompanionSettings.ready_text CompanionSettings.ready_url CompanionSettings.reuse CompanionSettings.start_timeout_s
CompanionSettings.stop_timeout_s TreadleConfig.companions
BrowserSettings.memory_mb BrowserSettings.page_time_s BrowserSettings.pages_at_once
BrowserSettings.pages_per_browser BrowserSettings.program
Benchmark.headline DenseSettings.device EncoderSettings.batch_size EncoderSettings.device EncoderSettings.endpoints
EndpointSettings.api_key_env EndpointSettings.url
FetchSettings.allowed_networks FetchSettings.attempts FetchSettings.connect_timeout_s FetchSettings.max_fetches
FetchSettings.max_per_host FetchSettings.max_per_query FetchSettings.reader_processes FetchSettings.user_agent
ProviderSettings.api_key_envs ProviderSettings.max_queries_per_s ProviderSettings.request_timeout_s
ProviderSettings.retry_limit ProviderSettings.url ProviderSettings.zone
ReportSettings.model_prices
CurriculumSettings.phases QuestionSettings.preset FlowSettings.device_wait_s FlowSettings.iterations
FlowSettings.trackers FlowSettings.workers
ModelSettings.backoff_base_s ModelSettings.backoff_max_s ModelSettings.completion_price_per_million
ModelSettings.connect_timeout_s ModelSettings.endpoints
ModelSettings.headers ModelSettings.headers_env
ModelSettings.hedge_floor_s ModelSettings.max_in_flight ModelSettings.max_response_bytes ModelSettings.outage_wait_s
ModelSettings.probe_base_s ModelSettings.probe_max_s ModelSettings.prompt_price_per_million
ModelSettings.rate_limit_retries ModelSettings.request_timeout_s
ModelSettings.retry_limit ModelSettings.tokenizer
ConversionOptions.max_concurrent ConversionOptions.max_cost ConversionOptions.max_total_tokens
ConversionOptions.pending_pause_s ConversionOptions.pending_retries ConversionOptions.prompts
ConversionOptions.shards ConversionOptions.tokenizer TextSource.path
ExplorationOptions.max_concurrent ExplorationOptions.max_cost ExplorationOptions.max_total_tokens
ExplorationOptions.pending_pause_s ExplorationOptions.pending_retries ExplorationOptions.profiles
ExplorationOptions.prompts ExplorationOptions.wall_limit_s
PoolOptions.max_concurrent PoolOptions.max_cost PoolOptions.max_total_tokens PoolOptions.pending_pause_s
PoolOptions.pending_retries PoolOptions.prompts PoolOptions.shards
PhaseRollouts.max_concurrent PhaseRollouts.max_cost PhaseRollouts.max_total_tokens
PhaseRollouts.pending_pause_s PhaseRollouts.pending_retries PhaseRollouts.shards PhaseRollouts.wall_limit_s
AdvantagesOptions.max_concurrent AdvantagesOptions.max_cost AdvantagesOptions.max_total_tokens
AdvantagesOptions.pending_pause_s AdvantagesOptions.pending_retries CandidatesOptions.max_concurrent
CandidatesOptions.max_cost CandidatesOptions.max_total_tokens CandidatesOptions.pending_pause_s
CandidatesOptions.pending_retries ExperienceOptions.max_concurrent ExperienceOptions.max_cost
ExperienceOptions.max_total_tokens ExperienceOptions.pending_pause_s ExperienceOptions.pending_retries
ExperienceOptions.pool DpoOptions.devices DpoOptions.gradient_checkpointing DpoOptions.num_devices
DpoOptions.per_device_batch_size DpoOptions.preset DpoOptions.save_steps DpoOptions.stall_timeout_s DpoOptions.threads
DpoOptions.trackers DpoOptions.variant
GuidedOptions.max_concurrent GuidedOptions.max_cost GuidedOptions.max_total_tokens GuidedOptions.pending_pause_s
GuidedOptions.pending_retries GuidedOptions.shards GuidedOptions.wall_limit_s
PlanningSearchSettings.cache_folder PlanningSearchSettings.corpus PlanningSearchSettings.index_folder
PlanningSearchSettings.num_threads
CodeSandboxSettings.interpreter CodeSandboxSettings.max_running CodeSandboxSettings.pool_size
CodeSandboxSettings.start_timeout_s VisualInspectorSettings.folder
RlOptions.devices RlOptions.gpu_memory_share RlOptions.gradient_checkpointing RlOptions.num_devices RlOptions.num_nodes
RlOptions.per_device_batch_size RlOptions.preset RlOptions.stall_timeout_s RlOptions.tensor_parallel RlOptions.threads
RlOptions.attempts RlOptions.trackers RlOptions.variant RlOptions.wall_limit_s
RolloutOptions.max_concurrent RolloutOptions.max_cost RolloutOptions.max_total_tokens
RolloutOptions.pending_pause_s RolloutOptions.pending_retries RolloutOptions.shards RolloutOptions.wall_limit_s
SandboxSettings.interpreter SandboxSettings.max_running SandboxSettings.pool_size SandboxSettings.start_timeout_s
ScoresOptions.judgement_time_s ScoresOptions.max_concurrent ScoresOptions.max_cost ScoresOptions.max_total_tokens
ScoresOptions.pending_pause_s ScoresOptions.pending_retries ScoresOptions.symbolic_workers
SftRowsOptions.tokenizer
SearchSettings.cache_folder SearchSettings.corpus SearchSettings.index_folder SearchSettings.num_threads
ServiceClientSettings.connect_timeout_s ServiceClientSettings.endpoints ServiceClientSettings.max_response_bytes
ServiceClientSettings.request_timeout_s ServiceClientSettings.retry_limit ServiceClientSettings.start_wait_s
SftOptions.ddp_timeout_s SftOptions.devices SftOptions.gradient_checkpointing SftOptions.main_address
SftOptions.main_port SftOptions.num_devices SftOptions.num_nodes SftOptions.per_device_batch_size
SftOptions.plot_loss SftOptions.preset SftOptions.save_steps SftOptions.stall_timeout_s SftOptions.threads
SftOptions.trackers SftOptions.variant
TaskEnvironment.settings SourceSettings.path
TutorServer.module TutorServer.port TutorServer.startup_timeout_s TutorServer.tokenizer
VllmServer.compile VllmServer.devices VllmServer.gpu_memory_share VllmServer.kv_cache_gb VllmServer.port
VllmServer.startup_timeout_s VllmServer.threads VllmServer.variant
WebSettings.cache_mb WebSettings.recorded_in
ServiceSettings.api_key_env ServiceSettings.retry_limit ServiceSettings.timeout_s ServiceSettings.url
HttpToolSettings.api_key_env HttpToolSettings.headers_env HttpToolSettings.retry_limit HttpToolSettings.schema_file
HttpToolSettings.timeout_s
McpSettings.allowed_networks McpSettings.api_key_env McpSettings.read McpSettings.start_timeout_s McpSettings.url
WorkspaceSettings.engine WorkspaceSettings.folder
"""
"""Keys that may change between resumes. A key that is not here changes results, and a run is locked to it."""

KINDS: tuple[Registry[Any], ...] = (
    ENVIRONMENTS, TOOLS, REWARDS, CREDITS, JUDGES, METHODS, STRATEGIES, FILTERS,
)  # fmt: skip
"""Registries, of whose types the shipped ones are tried; a run is not locked to its scorers."""
OF_SCORERS = (ProgramSandboxSettings,)
"""Sections that only scorers have."""

FIXED = {
    "TutorServer.type", "VllmServer.type", "SourceSettings.from",
    "QuestionSettings.type", "QuestionSettings.code_file", "QuestionSettings.code_sha256",
    "PlanningSettings.type", "PlanningSettings.code_file", "PlanningSettings.code_sha256",
    "ServiceSettings.type", "ServiceSettings.code_file", "ServiceSettings.code_sha256", "ServiceSettings.tools",
    "LedgerSettings.type", "LedgerSettings.code_file", "LedgerSettings.code_sha256", "LedgerSettings.tools",
    "ColbenchSettings.type", "ColbenchSettings.code_file", "ColbenchSettings.code_sha256", "ColbenchSettings.tools",
    "FrontendSettings.type", "FrontendSettings.code_file", "FrontendSettings.code_sha256", "FrontendSettings.tools",
    "BfclSettings.type", "BfclSettings.code_file", "BfclSettings.code_sha256", "BfclSettings.tools",
    "HttpToolSettings.type", "HttpToolSettings.code_file", "HttpToolSettings.code_sha256",
    "McpSettings.type", "McpSettings.code_file", "McpSettings.code_sha256",
    "WorkspaceSettings.type", "WorkspaceSettings.code_file", "WorkspaceSettings.code_sha256",
    "WorkspaceSettings.backend",
    "EfficiencyReward.type", "EfficiencyReward.code_file", "EfficiencyReward.code_sha256",
    "EmReward.type", "EmReward.code_file", "EmReward.code_sha256",
    "PlanningReward.type", "PlanningReward.code_file", "PlanningReward.code_sha256",
    "JudgeReward.type", "JudgeReward.code_file", "JudgeReward.code_sha256",
    "OutcomeReward.type", "OutcomeReward.code_file", "OutcomeReward.code_sha256",
    "OutcomeCredit.type", "OutcomeCredit.code_file", "OutcomeCredit.code_sha256",
    "CuriousStrategy.type", "CuriousStrategy.code_file", "CuriousStrategy.code_sha256",
    "LexicalFilter.type", "LexicalFilter.code_file", "LexicalFilter.code_sha256",
    "EmbeddingFilter.type", "EmbeddingFilter.code_file", "EmbeddingFilter.code_sha256",
    "AttributionCredit.type", "AttributionCredit.code_file", "AttributionCredit.code_sha256",
    "Pareto.type", "Pareto.code_file", "Pareto.code_sha256", "Random.type", "Random.code_file", "Random.code_sha256",
    "Correctness.type", "Correctness.code_file", "Correctness.code_sha256", "Correctness.subject",
    "Correctness.prompt_text", "Correctness.rubric_text",
    "Rubric.type", "Rubric.code_file", "Rubric.code_sha256", "Rubric.prompt_text", "Rubric.rubric_text",
}  # fmt: skip
"""Keys with one possible value. The type of a server, tool, environment or rule, and the back end of a workspace,
change with others."""

PROVIDER = {"type": "bright_data", "api_key_envs": ["ONE_KEY", "OTHER_KEY"], "zone": "z", "url": "http://127.0.0.1:9"}
FAR = {"model": "m", "endpoints": [{"url": "http://127.0.0.1:9/v1"}]}
BY_HAND: dict[str, tuple[Any, ...]] = {
    "FlowSettings.models": (["near"],),
    "TreadleConfig.models": (dict.fromkeys(("near", "vllm", "tutor"), FAR),),
    "TreadleConfig.overrides": ({"1/rollouts@near": {"max_questions": 2}},),
    "QuestionsSettings.scorers": ({"x": {"type": "qa"}},),
    "SourceSettings.scorer": ("qa",),
    "Benchmark.scorer": ("qa",),
    "QuestionSettings.preset": ("et-agent-rl",),
    "QuestionSettings.roles": ({},),
    "QuestionSettings.tools": ({},),
    "HttpToolSettings.parameters": ({"properties": {"a": {"type": "string"}}},),
    "HttpToolSettings.headers_env": ({"X-Key": "KEY"},),
    "HttpToolSettings.api_key_env": ("KEY",),
    "McpSettings.api_key_env": ("KEY",),
    "McpSettings.allowed_networks": (["10.0.0.0/8"],),
    "McpSettings.names": ({"a": "b"},),
    "McpSettings.command": (["python3"],),
    "McpSettings.url": ("http://127.0.0.1:10/mcp",),
    "EnvironmentRole.model": ("near",),
    "TreadleConfig.environments": ({"other": {"max_turns": 3}},),
    "QuestionsSettings.environments": ({"default": {"kind": "x"}},),
    "TaskEnvironment.settings": ({"max_turns": 3},),
    "SourceSettings.environment": ("other",),
    "QuestionSettings.format_prompts": ({"assertion": "Yes or no?"},),
    "SftOptions.preset": ("et-agent-7b",),
    "RlOptions.preset": ("et-agent-7b",),
    "AdvantagesOptions.critic": ("near",),
    "DpoOptions.preset": ("sweet-llama-8b",),
    "ExperienceOptions.encoder": ({"type": "hashing"},),
    "ExperienceWriterRole.model": ("near",),
    "ValidatorRole.model": ("near",),
    "DpoOptions.devices": ([1],),
    "DpoOptions.trackers": (["wandb"],),
    "RlOptions.devices": ([1],),
    "RlOptions.engine": ("trl",),
    "SftOptions.engine": ("support.training.own_engines:CopySft",),
    "SftOptions.devices": ([1],),
    "VllmServer.devices": ([1],),
    "RlOptions.num_devices": (2,),
    "RlOptions.prompts_per_step": (8,),
    "RlOptions.variant": ("cuda",),
    "RlOptions.trackers": (["wandb"],),
    "FlowSettings.trackers": (["tensorboard"],),
    "SelectionOptions.quotas": ({"qa": 5},),
    "RlOptions.shares": ({"default": 1.0},),
    "JudgeReward.model": ({"model": "other", "endpoints": [{"url": "http://127.0.0.1:9/v1"}]},),
    "AttributionCredit.model": ({"model": "other", "endpoints": [{"url": "http://127.0.0.1:9/v1"}]},),
    "ReportSettings.areas": ({"questions": "math"},),
    "ReportSettings.headline": (["questions"],),
    "ReportSettings.prices": ({"near": {"prompt_per_million": 1.0, "completion_per_million": 2.0}},),
    "ReportSettings.model_prices": ({"near": {"prompt_per_million": 1.0, "completion_per_million": 2.0}},),
    "ReportSettings.tool_fees": ({"search": 0.005},),
    "Correctness.models": (["near"],),
    "Correctness.domains": (["qa"],),
    "Rubric.models": (["near"],),
    "Rubric.domains": (["qa"],),
    "RedundancyOptions.model": ("near",),
    "BestOfOptions.model": ("near",),
    "CurriculumSettings.sampling_model": ("near",),
    "CurriculumSettings.sigma_tool": ([0.2, 0.1, 0.05],),
    "CurriculumSettings.sigma_length": ([0.2, 0.1, 0.05],),
    "SftOptions.trackers": (["wandb"],),
    "EndpointSettings.api_key_env": ("KEY",),
    "QuestionsSettings.benchmarks": ({"own": {"domain": "math"}, "other": {"domain": "math"}},),
    "SearchSettings.service": ({"endpoints": [{"url": "http://127.0.0.1:9"}], "fingerprint": "x"},),
    "SearchSettings.summarizer": ("near",),
    "PlanningSearchSettings.service": ({"endpoints": [{"url": "http://127.0.0.1:9"}], "fingerprint": "x"},),
    "PlanningSearchSettings.route": ("web",),
    "PlanningSearchSettings.web": ({"provider": {**PROVIDER, "engine": "google"}},),
    "PlanningCrawlSettings.summarizer": ("near",),
    "PlanningSettings.roles": ({},),
    "BfclSettings.roles": ({},),
    "ColbenchSettings.roles": ({},),
    "HumanRole.model": ("near",),
    "PageHumanRole.model": ("near",),
    "FrontendSettings.roles": ({},),
    "LedgerSettings.roles": ({},),
    "ServiceSettings.roles": ({},),
    "ServiceSettings.url": ("http://127.0.0.1:10",),
    "ServiceSettings.api_key_env": ("KEY",),
    "ServiceSettings.splits": ({"train": "dev"},),
    "PlanningSettings.tools": ({},),
    "SearchSettings.route": ("web",),
    "SearchSettings.web": ({"provider": {**PROVIDER, "engine": "google"}},),
    "WebSettings.provider": ({**PROVIDER, "engine": "google"},),
    "QuestionsSettings.search": ({"questions": "both"},),
    "FetchSettings.allowed_networks": (["10.0.0.0/8"],),
    "ProviderSettings.url": ("http://127.0.0.1:10",),
    "ServiceClientSettings.endpoints": ([{"url": "http://127.0.0.1:10"}, {"url": "http://127.0.0.1:11"}],),
    "EncoderSettings.endpoints": ([{"url": "http://127.0.0.1:10/v1"}, {"url": "http://127.0.0.1:11/v1"}],),
    "ModelSettings.extra_body": ({"reasoning_effort": "low"},),
    "ModelSettings.headers": ({"X-Org": "lab"},),
    "ModelSettings.headers_env": ({"X-Key": "KEY"},),
    "ModelSettings.endpoints": ([{"url": "http://127.0.0.1:10/v1"}, {"url": "http://127.0.0.1:11/v1"}],),
    "PolicyRole.model": ("near",),
    "ExplorerRole.model": ("near",),
    "SummariserRole.model": ("near",),
    "SolverRole.model": ("near",),
    "ExplorationOptions.grader": ("llm",),
    "MixtureSettings.synthetic": (0.5,),
    "TeacherRole.model": ("near",),
    "HelperRole.model": ("near",),
    "JudgeRole.model": ("near",),
    "ModelSettings.server": ({"type": "tutor", "persona": "noisy"},),
}
"""Other values for keys whose types do not tell any."""


ENCODER = {
    "type": "endpoint", "model": "m", "query_prefix": "", "passage_prefix": "",
    "endpoints": [{"url": "http://127.0.0.1:9/v1"}],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Key:
    """One key at one place of a configuration."""

    name: str
    """Class and field."""
    place: tuple[str | int, ...]
    field: FieldInfo


def is_table(field: FieldInfo) -> bool:
    """Return whether a key is a section, whose own keys are tried."""
    kind = field.annotation
    if isinstance(kind, TypeAliasType):
        kind = typing.get_args(kind.__value__)[0]
    return isinstance(kind, type) and issubclass(kind, Section)


def keys_of(section: Section, place: tuple[str | int, ...] = ()) -> Iterator[Key]:
    """All keys with a value, of a section and of the sections below it."""
    for name, field in type(section).model_fields.items():
        value, here = getattr(section, name), (*place, name)
        is_text = isinstance(value, Section) and value.as_text() is not None
        if is_text or not is_table(field):
            yield Key(f"{type(section).__name__}.{name}", here, field)
        if is_text:
            continue
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple) else ()
        for part, item in ((None, value), *inner):
            if isinstance(item, Section):
                yield from keys_of(item, here if part is None else (*here, part))


def at(tree: Any, place: tuple[str | int, ...]) -> Any:
    for part in place:
        tree = tree[part]
    return tree


def other_values(key: Key, value: Any, copies: Path) -> Iterator[Any]:
    """Return alternative values of a key, as written in a file; some may be refused."""
    yield from BY_HAND.get(key.name, ())
    kinds = _flatten(key.field.annotation)
    for kind in kinds:
        if typing.get_origin(kind) is typing.Literal:
            yield from (choice for choice in typing.get_args(kind) if choice != value)
    if Path in kinds:
        yield from [str(copies / Path(value).name)] if value else [sys.executable]
    elif isinstance(value, bool) or (value is None and bool in kinds):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value / 2, value * 0.9, value - 1, 0.3)
    elif isinstance(value, str):
        yield from (value + "x", "")
    elif isinstance(value, list):
        paths = isinstance(value and value[0], str) and "/" in value[0]
        yield from ([str(copies / Path(item).name) for item in value],) if paths else (value[:-1], [*value, "x"])
        yield from ([*value, {"path": str(copies / "questions.jsonl"), "domain": "math"}],)
    elif isinstance(value, dict):
        yield from ({}, {"x": "qa"}, {"x": 1})
    elif value is None:
        yield from (7, 0.7, "x", ["x"])


def changed(base: TreadleConfig, key: Key, copies: Path) -> TreadleConfig | None:
    """Return the config with one key changed to the first allowed value; None if there is none."""
    tree = base.model_dump(mode="json")
    for value in other_values(key, at(tree, key.place), copies):
        attempt = copy.deepcopy(tree)
        at(attempt, key.place[:-1])[key.place[-1]] = value
        try:
            config = load_config(TreadleConfig, data=attempt)
        except ConfigError:
            continue
        if at(config.model_dump(mode="json"), key.place) != at(tree, key.place):
            return config
    return None


def sections_below(kind: Any) -> set[type[Section]]:
    """All sections that a configuration can hold, by the types of the keys."""
    found: set[type[Section]] = set()
    for item in _flatten(kind):
        if isinstance(item, type) and issubclass(item, Section) and item not in found:
            found |= {item}.union(*(sections_below(field.annotation) for field in item.model_fields.values()))
        else:
            found |= set().union(*(sections_below(argument) for argument in typing.get_args(item)))
    return found


@pytest.fixture
def bases(tmp_path: Path) -> list[TreadleConfig]:
    """Return configurations with all kinds of sections, with their files: search in process, by services, on the web"""
    write_byte_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "questions.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    (tmp_path / "texts.jsonl").write_text('{"input": "1 + 1?", "output": "<answer>2</answer>"}\n')
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "contents": "A"}\n')
    record = write_record(LocalStorage(tmp_path), [], made_by="test", work="work")
    (tmp_path / record.folder).rename(tmp_path / "record")
    shutil.copytree(tmp_path, tmp_path / "copies", ignore=shutil.ignore_patterns("copies"))
    tokenizer = f"{tmp_path}/tokenizer"
    servers: list[dict[str, Any]] = [{"type": "vllm"}, {"type": "tutor", "tokenizer": tokenizer}]
    near = {"model": "m", "tokenizer": tokenizer, "endpoints": [{"url": "http://127.0.0.1:9/v1"}]}
    started = {server["type"]: {"model": "m", "tokenizer": tokenizer, "server": server} for server in servers}
    tree = {
        "models": {"near": near, **started},
        "companions": [{"name": "desk", "command": ["serve"], "ready_url": "http://127.0.0.1:9/healthz"}],
        "questions": {
            "sources": [
                {"path": f"{tmp_path}/questions.jsonl", "domain": "math"},
                {"hub": "some/one", "revision": "f" * 40, "domain": "math"},
            ],
            "benchmarks": {"own": {"domain": "math"}},
            "environments": {"default": {}},
        },
        "environments": {"other": {"search": {"enabled": False}, "python": {"enabled": False}}},
        "environment": {
            "search": {"corpus": [f"{tmp_path}/corpus.jsonl"], "chunk_words": 50, "encoder": ENCODER},
            "format_prompts": {"fill_in": "Fill it in."},
            "roles": {"host": {"model": "vllm"}},
            "context": {"max_samples": 4},
        },
        "conversion": {"texts": [{"path": f"{tmp_path}/texts.jsonl"}]},
        "sft": {"main_address": "node-0", "finetuning_type": "lora"},
        "rl": {"engine": "verl", "finetuning_type": "lora"},
        "dpo": {"finetuning_type": "lora"},
        "report": {"prices": {"vllm": {"prompt_per_million": 0.5, "completion_per_million": 1.5}}},
        "scores": {
            "judges": {"on_failed": "rule", "domains": ["qa", "math"]},
            "redundancy": {"votes": 9, "sampling": {"max_tokens": 64}},
            "best_of": {"attempts": 4},
        },
        "flow": {"stages": ["rollouts", "scores", "rl", "report"], "models": ["near", "vllm", "tutor"]},
    }
    others = {"scores": {"judges": {"type": "rubric", "rubric": "Short."}}, "selection": {"method": "random"}}
    apart = {**tree, **others, "environment": {"search": {"service": {"endpoints": [{"url": "http://127.0.0.1:9"}]}}}}
    apart["exploration"] = {"filters": [{"type": "embedding", "encoder": ENCODER}]}
    apart["rl"] = {**tree["rl"], "reward": {"type": "planning"}}
    judge = {"type": "judge", "model": {"model": "m", "endpoints": [{"url": "http://127.0.0.1:9/v1"}]}}
    judged = {
        "models": {"near": near},
        "questions": tree["questions"],
        "environment": {"search": {"enabled": False}},
        "rl": {"reward": judge},
        "experience": {"summariser": {"model": "near"}},
        "flow": {"stages": ["rollouts", "scores", "rl"], "models": ["near"]},
    }
    exact = {**judged, "rl": {"reward": {"type": "em"}, "credit": {**judge, "type": "attribution"}}}
    web = {"recorded_in": f"{tmp_path}/record", "provider": PROVIDER}
    # Policies are reinforced with recorded searches alone, so without that stage here.
    abroad = {
        **tree,
        "environment": {"search": {"web": web}},
        "flow": {"stages": ["rollouts", "scores", "report"], "models": ["near", "vllm", "tutor"]},
    }
    # Tools in branches of their own, since keys of containers and servers exclude each other.
    (tmp_path / "copies" / "corpus.jsonl").touch()
    http = {"type": "http", "url": "http://127.0.0.1:9/x", "description": "Look it up."}
    tools = {
        "desk": http,
        "shop": {"type": "mcp", "url": "http://127.0.0.1:9/mcp"},
        "local": {"type": "mcp", "command": ["python"], "read": [f"{tmp_path}/corpus.jsonl"]},
        "box": {"type": "workspace"},
        "ship": {"type": "workspace", "backend": "container", "image": "x"},
    }
    with_tools = {
        **tree,
        "environment": {**tree["environment"], "tools": tools},
        "flow": {"stages": ["rollouts", "scores", "report"], "models": ["near", "vllm", "tutor"]},
    }
    planning = {
        **tree,
        "environment": {
            "type": "planning",
            "search": {"corpus": [f"{tmp_path}/corpus.jsonl"], "chunk_words": 50, "encoder": ENCODER},
            "roles": {"filler": {"model": "vllm"}},
            "tools": {"desk": http},
        },
        "flow": with_tools["flow"],
    }
    planning_apart = {**planning, "environment": {"type": "planning", **apart["environment"]}}
    played = {
        "models": {"near": near},
        "questions": {"sources": [{"from": "environment"}]},
        "environment": {"type": "bfcl", "roles": {"host": {"model": "near"}}},
        "flow": {"stages": ["rollouts", "scores", "report"], "models": ["near"]},
    }
    remote = {**played, "environment": {"type": "service", "roles": {"host": {"model": "near"}}}}
    ledger = {**played, "environment": {"type": "ledger", "roles": {"host": {"model": "near"}}}}
    talked = {
        "models": {"near": near, "human": near},
        "questions": {"sources": [{"path": f"{tmp_path}/questions.jsonl", "domain": "math"}]},
        "environment": {"type": "colbench/backend", "roles": {"host": {"model": "near"}}},
        "flow": {"stages": ["rollouts", "scores", "report"], "models": ["near"]},
    }
    shown = {**talked, "environment": {"type": "colbench/frontend", "roles": {"host": {"model": "near"}}}}
    known = (tree, apart, abroad, with_tools, planning, planning_apart, judged, exact)
    trees = (*known, played, remote, ledger, talked, shown)
    return [load_config(TreadleConfig, data=data) for data in trees]


def fingerprints(config: TreadleConfig) -> dict[str, str]:
    return {str(instance.address): fingerprint_of(instance, {}) for instance in flow_instances(config)}


def test_every_changed_key_is_refused_with_its_difference_or_applied(
    tmp_path: Path, bases: list[TreadleConfig]
) -> None:
    tried: dict[str, str] = {}
    for number, base in enumerate(bases):
        try_keys(tmp_path, f"r{number}", base, tried)
    shipped = {kind for registry in KINDS for kind in registry.shipped_settings()}
    # Engines stand as a text here.
    every = {
        f"{kind.__name__}.{name}"
        for kind in sections_below(TreadleConfig) | shipped
        if (not issubclass(kind, Entry) or kind in shipped) and kind not in OF_SCORERS
        for name, field in kind.model_fields.items()
        if not is_table(field)
    }
    assert every - tried.keys() == FIXED
    assert {name for name, outcome in tried.items() if outcome == "taken over"} == set(OPERATIONAL.split())


def try_keys(tmp_path: Path, run_id: str, base: TreadleConfig, tried: dict[str, str]) -> None:
    """Change each key that was not tried yet on resume, and note what became of it."""
    plain, semantic = base.model_dump(mode="json"), semantic_of(base)
    run = Run.create(tmp_path / "root", run_id, plain, semantic)
    run.storage.put(run.key("journal/1/rollouts@near/f/00000001.journal"), b"")  # the lock begins with the first work
    usual, in_force = fingerprints(base), plain
    for key in keys_of(base):
        if key.name in tried or (config := changed(base, key, tmp_path / "copies")) is None:
            continue
        try:
            run = open_run(tmp_path / "root", run_id, config)
        except RunError as error:
            tried[key.name] = "refused"
            # Lists are shown as a whole, tables key by key.
            shown = ".".join(itertools.takewhile(lambda part: isinstance(part, str), key.place))
            assert re.search(rf"[( ]{re.escape(shown)}\b.*: .* -> .*; choose a new run id", str(error))
            assert Run.open(tmp_path / "root", run_id).config() == in_force
        else:
            tried[key.name] = "taken over"
            in_force = config.model_dump(mode="json")
            assert run.config() == Run.open(tmp_path / "root", run_id).config() == in_force
            assert run.info.semantic == json_round_trip(semantic_of(config))
            made = fingerprints(config)
            # One more iteration adds instances, and changes no others.
            both = usual.keys() & made.keys()
            changed_here = {address.split("@")[0] for address in both if made[address] != usual[address]}
            if any(key.place[: len(place)] == place for place in REVISABLE) and not is_operational(key.field):
                tried[key.name] = "revised"
                # Without judges their settings have no effect. Existing rollouts are reused.
                own = {"1/rollouts"} if key.place[0] == "rollouts" else {"1/scores", "1/report"}
                assert changed_here <= own, f"{key.name} would change results"
            else:
                assert run.info.semantic == semantic
                assert not changed_here, f"{key.name} is operational, but would make results again"
