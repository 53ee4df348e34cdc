"""`treadle eval` derives an ordinary config from its options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.tasks.catalog import semantic_of
from treadle.tasks.config import TreadleConfig
from treadle.tasks.evaluation import EvalOptions, evaluation_config, model_name, run_name, unknown_template
from treadle.tasks.planning.order import flow_addresses

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
URL = "http://localhost:8000/v1"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder of benchmarks, one in each form."""
    for name in ("gsm8k/test.jsonl", "aime24/test.json", "amc23/test.parquet", "mmlu-pro/test-00000-of-00001.parquet"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}")
    return tmp_path


def asked(*benchmarks: str, data_root: Path | None = None, **more: Any) -> EvalOptions:
    given: dict[str, Any] = {"model": "org/Some-Model", "endpoints": (URL,), **more}
    return EvalOptions(benchmarks=benchmarks, data_root=data_root, **given)


def made(wanted: EvalOptions, *texts: str, root: Path, overrides: tuple[str, ...] = ()) -> TreadleConfig:
    """Return the configuration with these files below it."""
    files = [root / f"{number}.toml" for number in range(len(texts))]
    for path, text in zip(files, texts, strict=True):
        path.write_text(text)
    return evaluation_config(wanted, root / "outputs", "r", files, overrides)


def test_benchmark_name_is_found_in_its_folder_in_any_form(data: Path) -> None:
    names = ("gsm8k", "aime24", "amc23", "mmlu-pro")
    config = made(asked(*names, data_root=data), root=data)
    paths = [source.path for source in config.questions.sources if source.path is not None]
    assert [path.relative_to(data).as_posix() for path in paths] == [
        "gsm8k/test.jsonl", "aime24/test.json", "amc23/test.parquet", "mmlu-pro/test-00000-of-00001.parquet",
    ]  # fmt: skip
    assert [source.dataset for source in config.questions.sources] == list(names)
    assert {(source.split, source.limit) for source in config.questions.sources} == {("heldout", 500)}
    assert [str(address) for address in flow_addresses(config)] == [
        "1/questions", "1/rollouts@Some-Model", "1/scores@Some-Model", "1/report",
    ]  # fmt: skip


def test_options_override_files_and_set_overrides_options(data: Path) -> None:
    files = (
        "[rollouts]\nmax_concurrent = 3\nsampling = { temperature = 0.1, top_k = 7 }\n",
        "[questions.benchmarks.mine]\ndomain = 'qa'\n[flow]\nstages = ['pools']\n",
    )
    (data / "own.jsonl").write_text("{}")
    wanted = asked(
        f"mine={data / 'own.jsonl'}", temperature=0.3, max_questions=9, samples=4, max_tokens=77, max_cost=2.0,
        prices=(1.0, 3.0), api_key_env="SOME_KEY", tokenizer=Path("tok"),
    )  # fmt: skip
    config = made(wanted, *files, root=data, overrides=("rollouts.sampling.temperature=0.9",))
    rollouts, model = config.rollouts, config.models["Some-Model"]
    assert (rollouts.sampling.temperature, rollouts.sampling.top_k, rollouts.sampling.max_tokens) == (0.9, 7, 77)
    assert (rollouts.samples_per_question, rollouts.max_concurrent, rollouts.max_cost) == (4, 3, 2.0)
    assert config.questions.sources[0].limit == 9 and config.flow.stages == ("rollouts", "scores", "report")
    assert (model.model, model.cost(1e6, 1e6), model.tokenizer) == ("org/Some-Model", 4.0, Path("tok"))
    assert [(one.url, one.api_key_env) for one in model.endpoints] == [(URL, "SOME_KEY")]
    assert unknown_template(config) == () and unknown_template(made(asked("gsm8k", data_root=data), root=data))


@pytest.mark.parametrize(
    ("options", "tools"),
    [
        ({}, ("python",)),
        ({"corpus": (Path("c.jsonl"),)}, ("search", "python")),
        ({"retrievers": ("http://localhost:1243",)}, ("search", "python")),
        ({"tools": frozenset({"search"}), "corpus": (Path("c.jsonl"),)}, ("search",)),
        ({"tools": frozenset({"python"}), "corpus": (Path("c.jsonl"),)}, ("python",)),
        ({"tools": frozenset()}, ()),
    ],
)
def test_agent_searches_if_a_search_source_exists(data: Path, options: dict[str, Any], tools: tuple[str, ...]) -> None:
    environment = made(asked("gsm8k", data_root=data, **options), root=data).environment
    assert set(environment.enabled_tools) == set(tools)


def test_service_replaces_a_configured_corpus_and_vice_versa(data: Path) -> None:
    corpus = "[environment.search]\ntop_n = 2\nengine = 'dense'\ncorpus = ['c.jsonl']\n"
    service = "[environment.search.service]\nendpoints = [{ url = 'http://localhost:1' }]\n"
    at = ("http://localhost:1243",)
    search = made(asked("gsm8k", data_root=data, retrievers=at), corpus, root=data).environment.search
    assert search.service is not None and search.corpus == () and (search.engine, search.top_n) == ("bm25", 2)
    search = made(asked("gsm8k", data_root=data, corpus=(Path("d.jsonl"),)), service, root=data).environment.search
    assert search.service is None and search.corpus == (Path("d.jsonl"),)
    by_key = "environment.search.corpus=['e.jsonl']"
    assert made(asked("gsm8k", data_root=data), root=data, overrides=(by_key,)).environment.search.enabled


def test_web_counts_as_a_search_source_and_combines_with_a_service(data: Path) -> None:
    web = "[environment.search.web]\nprovider = { type = 'searxng', url = 'http://localhost:1' }\n"
    search = made(asked("gsm8k", data_root=data), web, root=data).environment.search
    assert search.enabled and search.uses_web and not search.uses_local
    both = made(asked("gsm8k", data_root=data, retrievers=("http://localhost:1243",)), web, root=data)
    assert both.environment.search.uses_web and both.environment.search.uses_local


def test_environment_of_ones_own_has_no_tools_to_set(data: Path) -> None:
    own = 'environment.type="support.rollouts.dialogues:Guess"'
    wanted = asked("aime24", data_root=data)
    assert made(wanted, root=data, overrides=(own, "environment.top=8")).environment.type.endswith(":Guess")
    with pytest.raises(ConfigError, match=r"--tools, --corpus and --retriever are for environment.type"):
        made(asked("aime24", data_root=data, tools=("python",)), root=data, overrides=(own,))


def test_judge_decides_and_votes(data: Path) -> None:
    config = made(asked("gsm8k", data_root=data, judge="Big", judge_endpoints=(URL,)), root=data)
    assert config.models["judge"].api == "chat" and config.models["judge"].model == "Big"
    assert config.scores.judges.models == ("judge",) and config.scores.redundancy.model == "judge"
    assert [str(address) for address in flow_addresses(config)][1] == "1/rollouts@Some-Model"
    with pytest.raises(ConfigError, match="judge Big has no server; name it with --judge-endpoint"):
        made(asked("gsm8k", data_root=data, judge="Big"), root=data)
    with pytest.raises(ConfigError, match="both called 'judge'"):
        made(asked("gsm8k", data_root=data, model="judge", judge="Big", judge_endpoints=(URL,)), root=data)


def test_chat_only_service_uses_chat_and_its_own_template(data: Path) -> None:
    config = made(asked("gsm8k", data_root=data, chat=True), root=data)
    assert config.models["Some-Model"].api == "chat" and unknown_template(config) == ()
    known = "[models]\nown = { model = 'own', endpoints = [{ url = 'http://localhost:1/v1' }] }\n"
    alone = {"model": None, "endpoints": (), "chat": True}
    assert made(asked("gsm8k", data_root=data, **alone), known, root=data).models["own"].api == "chat"


TWO = (
    "[flow]\nmodels = ['base']\n[models]\nbase = { model = 'base', endpoints = [{ url = 'http://localhost:1/v1' }] }\n"
    "tuned = { model = 'old-tuned', endpoints = [{ url = 'http://localhost:2/v1' }] }\n"
)
STARTED = "[models]\nown = { model = 'own', server = { type = 'vllm', model = 'org/own' } }\n"
JUDGE_ALONE = "[models]\njudge = { model = 'mine', endpoints = [{ url = 'http://localhost:1/v1' }] }\n"


@pytest.mark.parametrize(
    ("files", "options", "overrides", "line"),
    [
        (TWO, {"model": "org/tuned"}, (), "another model of the configuration would both be called 'tuned'"),
        (TWO, {"model": None}, ("flow.models=['tuned']",), "configure base, but --set evaluates tuned"),
        (STARTED, {"model": "org/new", "endpoints": ()}, (), "starts a server of own, not of org/new; .* --endpoint"),
        (JUDGE_ALONE, {"model": None, "endpoints": (), "judge": "Big", "judge_endpoints": (URL,)}, (), "both called"),
    ],
    ids=["name of another table", "other model by --set", "server of another model", "judge over the evaluated one"],
)
def test_never_evaluates_another_model_than_requested(
    data: Path, files: str, options: dict[str, Any], overrides: tuple[str, ...], line: str
) -> None:
    with pytest.raises(ConfigError, match=line):
        made(asked("gsm8k", data_root=data, **options), files, root=data, overrides=overrides)


def test_settings_of_a_configured_model_do_not_apply_to_another(data: Path) -> None:
    own = "[models]\nown = { model = 'own', tokenizer = 'tok', revision = 'v1', max_model_len = 4096 }\n"
    same = made(asked("gsm8k", data_root=data, model="own"), own, root=data).models["own"]
    assert (same.tokenizer, same.revision, same.max_model_len) == (Path("tok"), "v1", 4096)
    config = made(asked("gsm8k", data_root=data, model="org/new"), own, root=data)
    new = config.models["new"]
    assert (new.tokenizer, new.revision, new.max_model_len) == (None, "", 4096)
    assert unknown_template(config) == ("new",)
    named = asked("gsm8k", data_root=data, model="org/new", tokenizer=Path("theirs"))
    assert made(named, own, root=data).models["new"].tokenizer == Path("theirs")


@pytest.mark.parametrize("preset", ["smoke", "eval-reference"])
def test_preset_means_the_same_for_run_and_eval(tmp_path: Path, preset: str) -> None:
    path = CONFIGS / f"{preset}.toml"
    by_run = load_config(TreadleConfig, (path,))
    assert semantic_of(evaluation_config(EvalOptions(), tmp_path, "r", (path,))) == semantic_of(by_run)


def test_preset_evaluates_another_model_on_files_elsewhere(data: Path) -> None:
    headline = ("aime24", "amc23", "math500", "2wiki", "bamboogle", "musique")
    for name in headline:
        (data / name).mkdir(exist_ok=True)
        (data / name / "test.jsonl").write_text("{}")
    preset = (CONFIGS / "eval-reference.toml",)
    wanted = EvalOptions(model="Other", endpoints=(URL,), data_root=data, max_questions=3)
    config = evaluation_config(wanted, data, "r", preset)
    assert [source.dataset for source in config.questions.sources] == list(headline)
    assert {source.limit for source in config.questions.sources} == {3}
    assert all(source.path is not None and data in source.path.parents for source in config.questions.sources)
    assert config.flow.models == ("Other",) and "agent" not in config.models
    other = config.models["Other"]
    assert (other.model, other.max_model_len, len(other.endpoints)) == ("Other", 32768, 1)
    smoke = evaluation_config(EvalOptions(model="m", endpoints=(URL,)), data, "r", (CONFIGS / "smoke.toml",))
    assert smoke.models["m"].server is None and smoke.models["judge"].server is not None


def test_reference_has_the_published_settings() -> None:
    config = load_config(TreadleConfig, (CONFIGS / "eval-reference.toml",))
    sampling, search = config.rollouts.sampling, config.environment.search
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.6, 0.95, 20, 0.0)
    assert (sampling.repetition_penalty, sampling.max_tokens) == (1.1, 4096)
    assert (search.top_n, search.document_chars, search.max_calls, search.summarizer) == (4, 1200, 6, "summarizer")
    python = config.environment.python
    assert (python.max_calls, python.time_limit_s, python.sandbox.max_running) == (6, 120.0, 32)
    assert python.max_output_chars == 1000
    assert (config.environment.rollout_time_s, config.rollouts.max_concurrent) == (1200.0, 32)
    assert {source.limit for source in config.questions.sources} == {500}
    votes = config.scores.redundancy
    assert (votes.votes, votes.sampling.temperature, votes.sampling.repetition_penalty) == (10, 0.6, 1.05)
    assert (votes.sampling.top_p, votes.sampling.max_tokens) == (0.95, 128)


def test_smoke_needs_no_network_and_five_rows_are_shipped() -> None:
    config = load_config(TreadleConfig, (CONFIGS / "smoke.toml",))
    assert all(model.server is not None and model.server.type == "tutor" for model in config.models.values())
    assert config.environment.search.encoder.type == "hashing" and config.environment.search.engine == "dense"
    (source,) = config.questions.sources
    rows = [json.loads(line) for line in (CONFIGS.parent / str(source.path)).read_text().splitlines()]
    assert len(rows) == source.limit == 5
    assert all((CONFIGS.parent / path).is_file() for path in config.environment.search.corpus)


def test_model_and_run_names_follow_from_the_request() -> None:
    names = ["Qwen/Qwen2.5-7B-Instruct", "models/mine/", "gpt-4o:2024 x", "--", "a" * 300]
    assert [model_name(name) for name in names[:4]] == ["Qwen2.5-7B-Instruct", "mine", "gpt-4o-2024-x", "model"]
    assert run_name(EvalOptions(model=names[0], benchmarks=("gsm8k=x/y.jsonl", "2wiki"))) == (
        "eval-Qwen2.5-7B-Instruct-gsm8k-2wiki"
    )
    assert len(run_name(EvalOptions(model=names[4], benchmarks=("gsm8k",)))) == 100
    mine = (Path("mine.toml"),)
    assert run_name(EvalOptions(model="m", benchmarks=("mine=x.jsonl",)), mine) == "eval-m-mine"
    for asked_less in (EvalOptions(model="m"), EvalOptions(benchmarks=("mine=x.jsonl",))):
        with pytest.raises(ConfigError, match="name the run with --run"):
            run_name(asked_less, mine)


def test_benchmark_is_listed_once_regardless_of_case(data: Path) -> None:
    (data / "GSM8K").mkdir()
    (data / "GSM8K/test.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match="is given twice"):
        made(asked("gsm8k", "GSM8K", data_root=data), root=data)


def test_several_configured_models_are_evaluated_together_but_not_changed_by_options(data: Path) -> None:
    two = (
        "[models]\na = { model = 'a', server = { type = 'tutor' } }\nb = { model = 'b', server = { type = 'tutor' } }\n"
    )
    config = made(EvalOptions(benchmarks=("gsm8k",), data_root=data), two, root=data)
    assert len(flow_addresses(config)) == 6
    with pytest.raises(ConfigError, match="the configuration has a, b"):
        made(asked("gsm8k", data_root=data), two, root=data)


def test_smoke_uses_the_demo_tokenizer(tmp_path: Path) -> None:
    named_checkpoint = write_byte_tokenizer(tmp_path / "tokenizer")
    for path in named_checkpoint.iterdir():
        assert (CONFIGS / "smoke/tokenizer" / path.name).read_bytes() == path.read_bytes()


def test_benchmark_of_an_environment_brings_all_its_tasks(data: Path) -> None:
    config = made(asked("bfcl-multi-turn", "gsm8k", data_root=data), root=data)
    own, file = config.questions.sources
    assert (own.is_environment, own.environment, own.split, own.limit) == (True, "bfcl-multi-turn", "heldout", None)
    assert file.limit == 500
    environment = config.environments["bfcl-multi-turn"]
    assert environment.type == "bfcl" and environment.turn_dialect.ends_every_turn
    (first,) = made(asked("bfcl-multi-turn", max_questions=3), root=data).questions.sources
    assert first.limit == 3
    changed = made(asked("bfcl-multi-turn"), root=data, overrides=('environments.bfcl-multi-turn.categories=["base"]',))
    assert changed.environments["bfcl-multi-turn"].model_dump()["categories"] == ("base",)


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        ("bfcl-multi-turn=tasks.jsonl", {}, "provides its own tasks"),
        ("bfcl-multi-turn,domain=qa", {}, "provides its own tasks"),
        ("bfcl-multi-turn", {"tools": frozenset({"python"})}, "not 'bfcl'"),
    ],
)
def test_benchmark_of_an_environment_takes_no_file_and_no_tools(
    data: Path, text: str, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        made(asked(text, **more), root=data)
