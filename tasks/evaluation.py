"""Turn the options of `treadle eval` into an ordinary run configuration.

Documented in docs/guides/evaluation.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.core.config import load_config, merge, parse_override, validate
from treadle.core.errors import ConfigError
from treadle.core.runs.run import Run, run_exists
from treadle.datagen.questions.benchmarks import SCORED_DOMAINS
from treadle.datagen.questions.sources import QuestionsSettings
from treadle.environments.registry import environment_name
from treadle.environments.settings import DEFAULT_TYPE
from treadle.retriever.config import IndexSettings
from treadle.tasks.benchmark_sources import (
    ENVIRONMENTS,
    benchmark_name,
    benchmark_source,
    environment_source,
    file_below,
)
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.flow_plan import FlowPlan

MAX_QUESTIONS = 500
"""Default number of rows per benchmark (arXiv 2601.06860)."""
DEFAULTS: Mapping[str, Any] = {
    # A benchmark with missing rows is a different benchmark: bad rows stop it, and only identical texts are duplicates.
    "questions": {"max_error_rate": 0.0, "near_duplicate_threshold": 1.0},
    "rollouts": {"sampling": {"temperature": 0.6, "top_p": 0.95}},
}
"""Defaults of an evaluation that differ from the defaults of a run."""
_STAGES = ("rollouts", "scores", "report")
_RUN_ID_CHARS = 100
_JUDGE = "judge"
_CORRECTNESS, _RUBRIC = "correctness", "rubric"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """Options of an evaluation. None or empty falls back to the configuration files, then to the defaults.

    Attributes:
        model: Name of the model in requests.
        endpoints: Base URLs of its servers.
        api_key_env: Environment variable with their API key.
        chat: True if they have only the chat route.
        tokenizer: Folder with the model's tokenizer and chat template.
        prices: Price of a million prompt tokens and of a million sampled tokens.
        benchmarks: `NAME=FILE,KEY=VALUE,…` with keys of `questions.sources`, or only `NAME`, which is looked up in
            `data_root` or provides its own tasks, such as `bfcl-multi-turn`.
        data_root: Folder with one subfolder per benchmark.
        max_questions: Number of rows of each benchmark, from its start.
        samples: Rollouts per question.
        tools: Names of the tools that may be called.
        corpus: Document files to search.
        retrievers: Base URLs of retrieval services to search instead.
        temperature: Sampling temperature.
        max_tokens: Maximum number of new tokens per turn.
        max_total_tokens: Token budget of all rollouts together.
        max_cost: Cost budget of all rollouts together.
        judge: Name of a model that judges answers to mathematical questions and votes on redundant calls.
        judge_endpoints: Base URLs of its servers.
        judge_key_env: Environment variable with their API key.
        judge_type: Type of the judge, as in `scores.judges.type`.
        judge_prompt: Its system prompt, or a file with it.
        judge_rubric: Its rubric, or a file with it.
        best_of: Number of rollouts per question of which the judge picks the best.
        scorer: What scores the answers: a shipped type, an entry point, or a class as `my_scorers.py:Class`.
    """

    model: str | None = None
    endpoints: tuple[str, ...] = ()
    api_key_env: str | None = None
    chat: bool = False
    tokenizer: Path | None = None
    prices: tuple[float, float] | None = None
    benchmarks: tuple[str, ...] = ()
    data_root: Path | None = None
    max_questions: int | None = None
    samples: int | None = None
    tools: frozenset[str] | None = None
    corpus: tuple[Path, ...] = ()
    retrievers: tuple[str, ...] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    max_total_tokens: int | None = None
    max_cost: float | None = None
    judge: str | None = None
    judge_endpoints: tuple[str, ...] = ()
    judge_key_env: str | None = None
    judge_type: str | None = None
    judge_prompt: str | None = None
    judge_rubric: str | None = None
    best_of: int | None = None
    scorer: str | None = None


def run_name(options: EvalOptions, files: Sequence[Path] = ()) -> str:
    """Return the default run name of a model and its benchmarks; raise ConfigError if the options lack one."""
    if files and (options.model is None or not options.benchmarks):
        raise ConfigError("name the run with --run: there is no default name for a run from a configuration file")
    if options.model is None:
        raise _no_model()
    if not options.benchmarks:
        raise _no_benchmark()
    names = map(benchmark_name, options.benchmarks)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(["eval", model_name(options.model), *names]))[:_RUN_ID_CHARS]


def model_name(model: str) -> str:
    """Return the name of a model in the run and its report: its path without anything before the last slash."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", model.rstrip("/").rsplit("/", 1)[-1]).lstrip("._-")
    return name or "model"


def evaluation_config(
    options: EvalOptions, root: str | Path, run_id: str, files: Sequence[Path] = (), overrides: Sequence[str] = ()
) -> TreadleConfig:
    """Return the configuration of an evaluation: defaults, files, options, `--set`, later ones winning.

    If neither files nor a model are given, an existing run continues with its own configuration instead of defaults and
    files. Raises ConfigError in one sentence for anything that is missing or unknown.
    """
    resumes = not files and options.model is None and run_exists(root, run_id)
    base = Run.open(root, run_id).config() if resumes else DEFAULTS
    given = load_config(TreadleConfig, files, base=base)
    tree = given.model_dump(mode="json", exclude_unset=True)
    tree["flow"] = {**tree.get("flow", {}), "stages": _STAGES, "iterations": 1}
    changed = _put_model(tree, given, options)
    _put_benchmarks(tree, given, options)
    _put_scorer(tree, options)
    _put_tools(tree, options, overrides)
    _put_judge(tree, given, options)
    tree["rollouts"] = merge(tree.get("rollouts", {}), _rollouts(given, options))
    config = load_config(TreadleConfig, (), overrides, base=tree)
    compared = FlowPlan(config).compared_models()
    if changed is not None and compared != (changed,):
        raise ConfigError(
            f"--model and its options configure {changed}, but --set evaluates {', '.join(compared)}; drop one of them"
        )
    for name in FlowPlan(config).compared_models():
        _check_model(name, config)
    return config


def unknown_template(config: TreadleConfig) -> tuple[str, ...]:
    """Return the evaluated models without a configured chat template; they are prompted in ChatML, which may be wrong.

    Models behind the chat route are left out: the service applies its own template.
    """
    models = ((name, config.models[name]) for name in FlowPlan(config).compared_models())
    return tuple(
        name for name, model in models if model.tokenizer is None and model.server is None and model.api != "chat"
    )


def _check_model(name: str, config: TreadleConfig) -> None:
    model = config.models[name]
    if not model.endpoints and model.server is None:
        raise ConfigError(f"model {name} has no server; name it with --endpoint, as in http://localhost:8000/v1")
    if config.rollouts.max_cost is not None and not model.is_priced:
        raise ConfigError(f"--max-cost needs the token prices of {name}: give --prices, as in 0.15/0.60 per million")


def _no_model() -> ConfigError:
    return ConfigError(
        "no model is named; give --model and --endpoint, a configuration file with a [models.<name>] table, "
        "or --run with the name of a run that exists"
    )


def _no_benchmark() -> ConfigError:
    return ConfigError(
        "no benchmark is given; name one with its file, as in --benchmark gsm8k=test.jsonl, "
        "or a configuration file with [questions] sources"
    )


def _put_model(tree: dict[str, Any], given: TreadleConfig, options: EvalOptions) -> str | None:
    """Put the evaluated model into `tree` on top of the one in the files.

    Returns its name, or None if the options change nothing.
    """
    changes = _model_keys(options)
    agents = FlowPlan(given).compared_models() if given.models else ()
    if not agents and options.model is None:
        raise _no_model()
    if options.model is None and not changes and not options.endpoints and options.api_key_env is None:
        return None
    if len(agents) > 1:
        raise ConfigError(
            f"--model and its options configure one model, but the configuration has {', '.join(agents)}; "
            "change it there, or name one of them with --set flow.models='[\"...\"]' in its place"
        )
    name = model_name(options.model) if options.model is not None else agents[0]
    models = dict(tree.get("models", {}))
    old = models.pop(agents[0], {}) if agents else {}
    if name in models:
        raise ConfigError(
            f"--model {options.model} and another model of the configuration would both be called {name!r}; rename "
            f"the table [models.{name}], or evaluate that one with --set flow.models='[\"{name}\"]' in place of --model"
        )
    table = merge(_for_model(old, options.model, options.endpoints, "--endpoint"), changes)
    _put_servers(table, options.endpoints, options.api_key_env)
    tree["models"] = {name: table, **models}
    tree["flow"] = {**tree["flow"], "models": [name]}
    return name


def _for_model(table: Mapping[str, Any], model: str | None, endpoints: Sequence[str], option: str) -> dict[str, Any]:
    """Return the keys of a model's table in the files that still apply to `model`.

    A tokenizer, a revision and additional keys of requests belong to one model, headers to its servers. Raises
    ConfigError if the table starts a server of another model.
    """
    is_other = model is not None and table.get("model", model) != model
    if is_other and table.get("server") and not endpoints:
        raise ConfigError(
            f"the configuration starts a server of {table['model']}, not of {model}; name the server of "
            f"{model} with {option}, or change the table's `server`"
        )
    dropped = {
        *(("tokenizer", "revision", "extra_body") if is_other else ()),
        *(("server", "headers", "headers_env") if endpoints else ()),
    }
    return {key: value for key, value in table.items() if key not in dropped}


def _put_servers(table: dict[str, Any], urls: Sequence[str], api_key_env: str | None) -> None:
    """Put the servers of a model, and the variable of their API key, into its table."""
    if urls:
        table["endpoints"] = [{"url": url} for url in urls]
    if api_key_env is not None:
        table["endpoints"] = [{**one, "api_key_env": api_key_env} for one in table.get("endpoints", ())]


def _model_keys(options: EvalOptions) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "model": options.model,
        "tokenizer": options.tokenizer and str(options.tokenizer),
        "api": "chat" if options.chat else None,
    }
    if options.prices is not None:
        keys["prompt_price_per_million"], keys["completion_price_per_million"] = options.prices
    return _without_none(keys)


def _put_benchmarks(tree: dict[str, Any], given: TreadleConfig, options: EvalOptions) -> None:
    """Put the benchmark sources into `tree` in place of the files' sources; without benchmarks, adapt the latter."""
    questions = tree.setdefault("questions", {})
    if options.benchmarks:
        most = options.max_questions or MAX_QUESTIONS
        names = [benchmark_name(text).lower() for text in options.benchmarks]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigError(f"benchmark {min(twice)} is given twice; use a separate run for each file")
        questions["sources"] = [
            environment_source(text, options.max_questions)
            or benchmark_source(text, options.data_root, given.questions, most)
            for text in options.benchmarks
        ]
        played = {
            name: {"type": kind}
            for name, kind in ENVIRONMENTS.items()
            if name in map(benchmark_name, options.benchmarks)
        }
        tree["environments"] = merge(played, tree.get("environments", {}))
    elif not given.questions.sources:
        raise _no_benchmark()
    else:
        for source, settings in zip(questions["sources"], given.questions.sources, strict=True):
            if options.data_root is not None and not settings.is_environment:
                source["path"] = str(file_below(options.data_root, settings.dataset_name))
            if options.max_questions is not None:
                source["limit"] = options.max_questions


def _put_scorer(tree: dict[str, Any], options: EvalOptions) -> None:
    """Put the scorer into the sources that name none; a class becomes an entry of the table `scorers`."""
    if options.scorer is None:
        return
    name = options.scorer
    if ":" in name:
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition(":")[2]).lower()
        tree["scorers"] = {**tree.get("scorers", {}), name: {"type": options.scorer}}
    for source in tree["questions"]["sources"]:
        if source.get("scorer") is None:
            source["scorer"] = name


def _put_tools(tree: dict[str, Any], options: EvalOptions, overrides: Sequence[str]) -> None:
    """Put the tools into `tree`. Without a corpus or service, search is disabled unless it was requested.

    Environments other than `question` have tools of their own or none.
    """
    plays_only = bool(options.benchmarks) and all(benchmark_name(text) in ENVIRONMENTS for text in options.benchmarks)
    kind = ENVIRONMENTS[options.benchmarks[0]] if plays_only else environment_name(_overridden(tree, overrides))
    if kind != DEFAULT_TYPE:
        if options.corpus or options.retrievers or options.tools is not None:
            raise ConfigError(
                f'--tools, --corpus and --retriever are for environment.type = "{DEFAULT_TYPE}", not {kind!r}; leave '
                "them out"
            )
        return
    environment = tree.setdefault("environment", {})
    search = dict(environment.get("search", {}))
    if options.corpus and options.retrievers:
        raise ConfigError("--corpus and --retriever cannot be combined; give one of them")
    if options.corpus:
        search.pop("service", None)
        search["corpus"] = [str(path) for path in options.corpus]
    if options.retrievers:
        search = {key: value for key, value in search.items() if key not in IndexSettings.model_fields}
        search["service"] = {"endpoints": [{"url": url} for url in options.retrievers]}
    environment["search"] = search
    if options.tools is not None:
        environment["python"] = {**environment.get("python", {}), "enabled": "python" in options.tools}
        search["enabled"] = "search" in options.tools
    final = _overridden(tree, overrides)
    can_search = any(final["environment"]["search"].get(name) for name in ("corpus", "index_folder", "service", "web"))
    if not can_search:
        if options.tools is not None and "search" in options.tools:
            raise ConfigError(
                "--tools search needs something to search: give --corpus FILE or --retriever URL, or set "
                "environment.search.web"
            )
        search.setdefault("enabled", False)


def _overridden(tree: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    final = dict(tree)
    for text in overrides:
        final = merge(final, parse_override(text))
    return final


def _put_judge(tree: dict[str, Any], given: TreadleConfig, options: EvalOptions) -> None:
    """Put a judge into `tree`, on top of the model `judge` of the files. It is called over the chat route."""
    told = _without_none({"type": options.judge_type, "prompt": options.judge_prompt, "rubric": options.judge_rubric})
    if "rubric" in told:
        told.setdefault("type", _RUBRIC)
    if options.best_of is not None and options.samples is not None and options.samples < options.best_of:
        raise ConfigError(f"--best-of {options.best_of} needs as many rollouts per question; raise --samples")
    if options.judge is None:
        if options.best_of is not None:
            raise ConfigError("--best-of needs a judge; name it with --judge MODEL")
        if options.judge_endpoints or options.judge_key_env:
            raise ConfigError("--judge-endpoint and --judge-key-env need a judge; name it with --judge MODEL")
        if told and not given.scores.judges.models:
            raise ConfigError(
                "--judge-type, --judge-prompt and --judge-rubric need a judge; name it with --judge MODEL"
            )
        tree["scores"] = merge(tree.get("scores", {}), {"judges": told} if told else {})
        return
    if _JUDGE in (tree["flow"].get("models") or FlowPlan(given).compared_models()):
        raise ConfigError(f"the evaluated model and its judge are both called {_JUDGE!r} here; give it another name")
    old = tree["models"].get(_JUDGE, {})
    table = _for_model(old, options.judge, options.judge_endpoints, "--judge-endpoint") | {
        "model": options.judge,
        "api": "chat",
    }
    _put_servers(table, options.judge_endpoints, options.judge_key_env)
    if not table.get("endpoints") and not table.get("server"):
        raise ConfigError(f"judge {options.judge} has no server; name it with --judge-endpoint")
    tree["models"] = {**tree["models"], _JUDGE: table}
    judges = {"models": [_JUDGE], **told}
    if told.get("type", given.scores.judges.type) == _CORRECTNESS and (domains := _judged_domains(tree)):
        judges["domains"] = domains
    asked: dict[str, Any] = {"judges": judges, "redundancy": {"model": _JUDGE}}
    if options.best_of is not None:
        asked["best_of"] = {"model": _JUDGE, "attempts": options.best_of}
    tree["scores"] = merge(tree.get("scores", {}), asked)


def _judged_domains(tree: Mapping[str, Any]) -> list[str]:
    """Return the benchmarks' domains to judge if mathematics, the default, is not among them; else an empty list."""
    if tree.get("scores", {}).get("judges", {}).get("domains"):
        return []
    questions = validate(QuestionsSettings, tree["questions"], where="questions")
    found = {questions.domain_of(source.dataset_name, source) for source in questions.sources}
    judged = [domain for domain in SCORED_DOMAINS if domain in found and domain != "choice"]
    return judged if "math" not in judged else []


def _rollouts(given: TreadleConfig, options: EvalOptions) -> dict[str, Any]:
    sampling = _without_none({"temperature": options.temperature, "max_tokens": options.max_tokens})
    samples = options.samples
    if samples is None and options.best_of is not None:
        # A configuration with more rollouts per question keeps them: the first ones are compared.
        samples = max(options.best_of, given.rollouts.samples_per_question)
    keys = {
        "samples_per_question": samples,
        "max_total_tokens": options.max_total_tokens,
        "max_cost": options.max_cost,
        "sampling": sampling or None,
    }
    return _without_none(keys)


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}
