"""What `treadle eval` was asked for, as the ordinary configuration of a run.

Documented in docs/guides/evaluation.md.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.core.config import load_config, merge, parse_override
from treadle.core.errors import ConfigError
from treadle.core.inputs import FORMATS
from treadle.core.runs import Run, run_exists
from treadle.datagen.benchmarks import GENERIC, RULES, Benchmark, rule_for
from treadle.retriever.config import IndexSettings
from treadle.tasks.config import TreadleConfig
from treadle.tasks.models import flow_models

MAX_QUESTIONS = 500
"""Rows of each benchmark that are asked unless something else is said (arXiv 2601.06860)."""
DEFAULTS: Mapping[str, Any] = {
    # A benchmark with rows left out is another one: bad rows stop it, and only equal words count as one question.
    "questions": {"max_error_rate": 0.0, "near_duplicate_threshold": 1.0},
    "rollouts": {"sampling": {"temperature": 0.6, "top_p": 0.95}},
}
"""What an evaluation has where neither files nor options say otherwise, and the defaults of a run would."""
_STAGES = ("rollouts", "scores", "report")
_RUN_ID_CHARS = 100
_JUDGE = "judge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked for; None or empty leaves it to the configuration files, then to the defaults.

    Attributes:
        model: Name of the model in requests.
        endpoints: Base URLs of its servers.
        api_key_env: Environment variable with their key.
        chat: Whether they have the chat route alone.
        tokenizer: Folder with its tokenizer and chat template.
        prices: What a million prompt and a million sampled tokens cost.
        benchmarks: `NAME=FILE`, or `NAME` alone, which is looked for in `data_root`.
        data_root: Folder with a folder for each benchmark.
        max_questions: Rows of each benchmark, from its start.
        samples: Rollouts of each question.
        tools: Names of the tools that may be called.
        corpus: Files of documents to search.
        retrievers: Base URLs of retrieval services to search at instead.
        temperature: Of the sampling.
        max_tokens: Most new tokens of one turn.
        max_total_tokens: Most tokens of all rollouts together.
        max_cost: Most money for all rollouts together.
        judge: Name of a model that decides about answers to mathematical questions and votes on wasted calls.
        judge_endpoints: Base URLs of its servers.
        judge_key_env: Environment variable with their key.
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


def run_name(asked: Asked, files: Sequence[Path] = ()) -> str:
    """The run of a model and its benchmarks where none is named; raises ConfigError where it cannot be told."""
    if files and (asked.model is None or not asked.benchmarks):
        raise ConfigError("name the run with --run; one that comes from a configuration file has no name by itself")
    if asked.model is None:
        raise _no_model()
    if not asked.benchmarks:
        raise _no_benchmark()
    names = [benchmark.partition("=")[0] for benchmark in asked.benchmarks]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(["eval", model_name(asked.model), *names]))[:_RUN_ID_CHARS]


def model_name(model: str) -> str:
    """What a model is called in the run and its report: its name without what is before the last slash."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", model.rstrip("/").rsplit("/", 1)[-1]).lstrip("._-")
    return name or "model"


def evaluation_config(
    asked: Asked, root: str | Path, run_id: str, files: Sequence[Path] = (), overrides: Sequence[str] = ()
) -> TreadleConfig:
    """The configuration of an evaluation: defaults, files, what was asked for, `--set`, later ones winning.

    Where neither files nor a model are named, an existing run goes on with its own configuration in place of defaults
    and files. Raises ConfigError in one sentence for whatever is missing or not known.
    """
    goes_on = not files and asked.model is None and run_exists(root, run_id)
    base = Run.open(root, run_id).config() if goes_on else DEFAULTS
    given = load_config(TreadleConfig, files, base=base)
    tree = given.model_dump(mode="json", exclude_unset=True)
    tree["flow"] = {**tree.get("flow", {}), "stages": _STAGES, "iterations": 1}
    changed = _put_model(tree, given, asked)
    _put_benchmarks(tree, given, asked)
    _put_tools(tree, asked, overrides)
    _put_judge(tree, given, asked)
    tree["rollouts"] = merge(tree.get("rollouts", {}), _rollouts(asked))
    config = load_config(TreadleConfig, (), overrides, base=tree)
    if changed is not None and flow_models(config) != (changed,):
        raise ConfigError(
            f"--model and what goes with it are about {changed}, but --set evaluates {', '.join(flow_models(config))}; "
            "leave out one of them"
        )
    for name in flow_models(config):
        _check_model(name, config)
    return config


def unknown_template(config: TreadleConfig) -> tuple[str, ...]:
    """The evaluated models whose chat template nobody named: they are asked in ChatML, which may not be theirs.

    A service that is asked over the chat route has its own.
    """
    models = ((name, config.models[name]) for name in flow_models(config))
    return tuple(
        name for name, model in models if model.tokenizer is None and model.server is None and model.api != "chat"
    )


def _check_model(name: str, config: TreadleConfig) -> None:
    model = config.models[name]
    if not model.endpoints and model.server is None:
        raise ConfigError(f"model {name} has no server; name it with --endpoint, as in http://localhost:8000/v1")
    if config.rollouts.max_cost is not None and not model.is_priced:
        raise ConfigError(f"--max-cost needs what tokens of {name} cost: give --prices, as in 0.15/0.60 per million")


def _no_model() -> ConfigError:
    return ConfigError(
        "no model is named; give --model and --endpoint, a configuration file with a [models.<name>] table, "
        "or --run with the name of a run that exists"
    )


def _no_benchmark() -> ConfigError:
    return ConfigError(
        "nothing is asked; name a benchmark with its file, as in --benchmark gsm8k=test.jsonl, "
        "or a configuration file with [questions] sources"
    )


def _put_model(tree: dict[str, Any], given: TreadleConfig, asked: Asked) -> str | None:
    """Put the evaluated model into `tree`, on top of the one that the files evaluate; its name, or None as they are."""
    changes = _model_keys(asked)
    agents = flow_models(given) if given.models else ()
    if not agents and asked.model is None:
        raise _no_model()
    if asked.model is None and not changes and not asked.endpoints and asked.api_key_env is None:
        return None
    if len(agents) > 1:
        raise ConfigError(
            f"--model and what goes with it are about one model, but the configuration has {', '.join(agents)}; "
            "change it there, or name one of them with --set flow.models='[\"...\"]' in its place"
        )
    name = model_name(asked.model) if asked.model is not None else agents[0]
    models = dict(tree.get("models", {}))
    old = models.pop(agents[0], {}) if agents else {}
    if name in models:
        raise ConfigError(
            f"--model {asked.model} would be called {name!r} here, as is another model of the configuration; rename "
            f"the table [models.{name}], or evaluate that one with --set flow.models='[\"{name}\"]' in place of --model"
        )
    table = merge(_for_model(old, asked.model, asked.endpoints, "--endpoint"), changes)
    if asked.endpoints:
        table["endpoints"] = [{"url": url} for url in asked.endpoints]
    if asked.api_key_env is not None:
        table["endpoints"] = [{**one, "api_key_env": asked.api_key_env} for one in table.get("endpoints", ())]
    tree["models"] = {name: table, **models}
    tree["flow"] = {**tree["flow"], "models": [name]}
    return name


def _for_model(table: Mapping[str, Any], model: str | None, endpoints: Sequence[str], option: str) -> dict[str, Any]:
    """What of a model's table of the files holds for `model` too; raises ConfigError where they start another's server.

    A tokenizer, a chat template and a revision belong to one model.
    """
    is_other = model is not None and table.get("model", model) != model
    if is_other and table.get("server") and not endpoints:
        raise ConfigError(
            f"the server that the configuration starts is that of {table['model']}, not of {model}; name the server of "
            f"{model} with {option}, or change the table's `server`"
        )
    dropped = {*(("tokenizer", "revision") if is_other else ()), *(("server",) if endpoints else ())}
    return {key: value for key, value in table.items() if key not in dropped}


def _model_keys(asked: Asked) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "model": asked.model,
        "tokenizer": asked.tokenizer and str(asked.tokenizer),
        "api": "chat" if asked.chat else None,
    }
    if asked.prices is not None:
        keys["prompt_price_per_million"], keys["completion_price_per_million"] = asked.prices
    return _without_none(keys)


def _put_benchmarks(tree: dict[str, Any], given: TreadleConfig, asked: Asked) -> None:
    """Put the sources of the benchmarks into `tree`, in place of those of the files."""
    questions = tree.setdefault("questions", {})
    if asked.benchmarks:
        most = asked.max_questions or MAX_QUESTIONS
        named = [_source(text, asked.data_root, given.questions.benchmarks) for text in asked.benchmarks]
        if twice := {name for name, _ in named if [other.lower() for other, _ in named].count(name.lower()) > 1}:
            raise ConfigError(f"benchmark {min(twice)} is named twice; give files of one name in one run each")
        questions["sources"] = [
            {"path": str(path), "dataset": name, "split": "heldout", "limit": most} for name, path in named
        ]
    elif not given.questions.sources:
        raise _no_benchmark()
    else:
        questions["sources"] = [
            _changed_source(source, settings.dataset_name, asked)
            for source, settings in zip(questions["sources"], given.questions.sources, strict=True)
        ]


def _changed_source(source: dict[str, Any], name: str, asked: Asked) -> dict[str, Any]:
    """A source of the files in another folder and up to another row, where that was asked for."""
    path = str(_file_below(asked.data_root, name)) if asked.data_root is not None else None
    return {**source, **_without_none({"path": path, "limit": asked.max_questions})}


def _source(text: str, data_root: Path | None, own: Mapping[str, Benchmark]) -> tuple[str, Path]:
    """Name and file of `NAME=FILE`, or of `NAME` below a folder; raises ConfigError."""
    name, has_file, file = text.partition("=")
    if rule_for(name, own) is GENERIC:
        known = {*RULES, *own}
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(sorted(known))}"
        raise ConfigError(
            f"benchmark {name!r} is not known; {hint} (one of your own is a table [questions.benchmarks.<name>] "
            "in a configuration file given with the command)"
        )
    if not has_file:
        if data_root is None:
            raise ConfigError(
                f"benchmark {name} has no file; write --benchmark {name}=FILE, or name the folder of all benchmarks "
                "with --data-root"
            )
        return name, _file_below(data_root, name)
    if not file or not Path(file).is_file():
        raise ConfigError(f"benchmark {name}: there is no file {file!r}; write --benchmark {name}=FILE")
    return name, Path(file)


def _file_below(root: Path, name: str) -> Path:
    """`<root>/<name>/test.jsonl`, or its equal in another format or as the one part of a hub's; raises ConfigError."""
    folder = root / name
    for suffix in FORMATS:
        if (path := folder / f"test{suffix}").is_file():
            return path
    parts = sorted(folder.glob("test-*.parquet"))
    if len(parts) == 1:
        return parts[0]
    there = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    raise ConfigError(
        f"benchmark {name}: {folder} has no test.jsonl, test.json or test.parquet; name its file as "
        f"--benchmark {name}=FILE (folders in {root}: {', '.join(there) or 'none'})"
    )


def _put_tools(tree: dict[str, Any], asked: Asked, overrides: Sequence[str]) -> None:
    """Put the tools into `tree`; without anything to search the search tool is off unless it was asked for."""
    environment = tree.setdefault("environment", {})
    search = dict(environment.get("search", {}))
    if asked.corpus and asked.retrievers:
        raise ConfigError("--corpus and --retriever are two places to search; give one of them")
    if asked.corpus:
        search.pop("service", None)
        search["corpus"] = [str(path) for path in asked.corpus]
    if asked.retrievers:
        search = {key: value for key, value in search.items() if key not in IndexSettings.model_fields}
        search["service"] = {"endpoints": [{"url": url} for url in asked.retrievers]}
    environment["search"] = search
    if asked.tools is not None:
        environment["python"] = {**environment.get("python", {}), "enabled": "python" in asked.tools}
        search["enabled"] = "search" in asked.tools
    final: dict[str, Any] = dict(tree)
    for text in overrides:
        final = merge(final, parse_override(text))
    can_search = any(final["environment"]["search"].get(name) for name in ("corpus", "index_folder", "service", "web"))
    if not can_search:
        if asked.tools is not None and "search" in asked.tools:
            raise ConfigError(
                "--tools search needs something to search: give --corpus FILE or --retriever URL, or set "
                "environment.search.web"
            )
        search.setdefault("enabled", False)


def _put_judge(tree: dict[str, Any], given: TreadleConfig, asked: Asked) -> None:
    """Put a judge into `tree`, on top of the model `judge` of the files; it is asked over the chat route."""
    if asked.judge is None:
        if asked.judge_endpoints or asked.judge_key_env:
            raise ConfigError("--judge-endpoint and --judge-key-env are about a judge; name it with --judge MODEL")
        return
    if _JUDGE in (tree["flow"].get("models") or flow_models(given)):
        raise ConfigError(f"the evaluated model and its judge are both called {_JUDGE!r} here; give it another name")
    old = tree["models"].get(_JUDGE, {})
    table = _for_model(old, asked.judge, asked.judge_endpoints, "--judge-endpoint") | {
        "model": asked.judge,
        "api": "chat",
    }
    if asked.judge_endpoints:
        table["endpoints"] = [{"url": url} for url in asked.judge_endpoints]
    if asked.judge_key_env is not None:
        table["endpoints"] = [{**one, "api_key_env": asked.judge_key_env} for one in table.get("endpoints", ())]
    if not table.get("endpoints") and not table.get("server"):
        raise ConfigError(f"judge {asked.judge} has no server; name it with --judge-endpoint")
    tree["models"] = {**tree["models"], _JUDGE: table}
    changes = {"judges": {"models": [_JUDGE]}, "redundancy": {"model": _JUDGE}}
    tree["scores"] = merge(tree.get("scores", {}), changes)


def _rollouts(asked: Asked) -> dict[str, Any]:
    sampling = _without_none({"temperature": asked.temperature, "max_tokens": asked.max_tokens})
    keys = {
        "samples_per_question": asked.samples,
        "max_total_tokens": asked.max_total_tokens,
        "max_cost": asked.max_cost,
        "sampling": sampling or None,
    }
    return _without_none(keys)


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}
