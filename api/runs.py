"""Runs for notebooks and scripts: start or continue them, and load their tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.tasks.analysis.run_results import RunResults
    from treadle.tasks.config import TreadleConfig

__all__ = ["evaluate", "open_run", "run_flow", "run_stage"]

# Imports are late: engines import this package for users' code, and lack the dependencies of runs and analysis.


def open_run(name: str, root: str | Path = "outputs") -> RunResults:
    """Open a run for reading: its rollouts, questions and other tables, trajectories, figures of its report.

    `root` is a folder, or the URL of an object store. Raises RunError, listing the runs there, if it does not exist.
    """
    from treadle.core.runs.run import Run
    from treadle.tasks.analysis.run_results import RunResults

    return RunResults(Run.open(root, name))


def run_flow(
    config: str | Path | Mapping[str, Any] | TreadleConfig | Sequence[str | Path | Mapping[str, Any]] | None,
    name: str,
    *,
    root: str | Path = "outputs",
    overrides: Sequence[str] = (),
    start_from: str | None = None,
    without: Sequence[str] = (),
    force: bool = False,
    accept_failures: bool = False,
    quiet: bool = False,
) -> RunResults:
    """Run all stages of a flow in this process, as `treadle run` does, and return its results.

    After an interruption the same call continues, and finished stages are not run again. Progress goes to standard
    error. Works in notebooks too, whose thread runs an event loop.

    Args:
        config: Paths of TOML files, dicts of keys (which win over files), or a whole TreadleConfig; None continues an
            existing run with its own configuration.
        name: Name of the run; an existing one is resumed.
        root: Folder, or `s3://bucket/prefix`, of runs and artifacts.
        overrides: Keys that win over all, as in `rollouts.samples_per_question=8`.
        start_from: Instance to start from, such as `2/sft`; earlier results are reused, even if outdated.
        without: Instances to skip, reusing their results if there are any, such as `1/report`.
        force: Run all instances again.
        accept_failures: Count units that could not be finished as failed, up to each stage's `max_error_rate`.
        quiet: Show no progress, only warnings.

    Raises:
        TreadleError: With one sentence about what is wrong and what to do.
    """
    from treadle.api.running import flow_ran

    return flow_ran(
        config, name, root, overrides, start_from, without, force=force, accept_failures=accept_failures, quiet=quiet
    )


def run_stage(
    instance: str,
    name: str,
    config: str | Path | Mapping[str, Any] | TreadleConfig | Sequence[str | Path | Mapping[str, Any]] | None = None,
    *,
    root: str | Path = "outputs",
    overrides: Sequence[str] = (),
    force: bool = False,
    accept_failures: bool = False,
    quiet: bool = False,
) -> RunResults:
    """Run one stage instance of a run in this process, as `treadle stage` does, and return the run's results.

    Its inputs must exist: instances before it are not run. A finished one is not run again unless `force` is set.

    Args:
        instance: Its address, such as `1/rollouts@base`.
        name, config, root, overrides, force, accept_failures, quiet: See `run_flow`; without `config`, the run exists.

    Raises:
        TreadleError: With one sentence about what is wrong and what to do.
    """
    from treadle.api.running import stage_ran

    return stage_ran(instance, name, config, root, overrides, force=force, accept_failures=accept_failures, quiet=quiet)


def evaluate(
    model: str | None = None,
    *,
    endpoints: str | Sequence[str] = (),
    benchmarks: Mapping[str, str | Path] | Sequence[str] = (),
    name: str | None = None,
    root: str | Path = "outputs",
    config: str | Path | Sequence[str | Path] = (),
    overrides: Sequence[str] = (),
    api_key_env: str | None = None,
    chat: bool = False,
    tokenizer: str | Path | None = None,
    prices: tuple[float, float] | None = None,
    data_root: str | Path | None = None,
    max_questions: int | None = None,
    samples: int | None = None,
    tools: Collection[str] | None = None,
    corpus: str | Path | Sequence[str | Path] = (),
    retrievers: str | Sequence[str] = (),
    temperature: float | None = None,
    max_tokens: int | None = None,
    max_total_tokens: int | None = None,
    max_cost: float | None = None,
    judge: str | None = None,
    judge_endpoints: str | Sequence[str] = (),
    judge_key_env: str | None = None,
    judge_type: str | None = None,
    judge_prompt: str | None = None,
    judge_rubric: str | None = None,
    best_of: int | None = None,
    scorer: str | None = None,
    force: bool = False,
    accept_failures: bool = False,
    quiet: bool = False,
) -> RunResults:
    """Measure how well a model answers benchmarks, as `treadle eval` does, and return the results.

    After an interruption the same call continues. Omitted arguments come from `config`, then from the defaults.
    Progress goes to standard error. Works in notebooks too, whose thread runs an event loop.

    Args:
        model: Name of the model in requests.
        endpoints: Base URLs of its servers, ending in /v1.
        benchmarks: File of each benchmark by its name; or names, which are looked up in `data_root`.
        name: Name of the run; by default that of model and benchmarks.
        root: Folder, or `s3://bucket/prefix`, of runs and artifacts.
        config: Paths of TOML files.
        overrides: Keys that win over all, as in `rollouts.samples_per_question=8`.
        api_key_env: Environment variable with the API key of the servers.
        chat: Use only the route /chat/completions, as for hosted services.
        tokenizer: Folder with the model's tokenizer and chat template.
        prices: Price of a million prompt tokens and of a million sampled tokens.
        data_root: Folder with one subfolder per benchmark.
        max_questions: Number of rows of each benchmark, from its start (500 by default).
        samples: Rollouts per question.
        tools: Tools that may be called: `python`, `search`; empty for none.
        corpus: Files of documents to search.
        retrievers: Base URLs of search services to use instead.
        temperature: Sampling temperature.
        max_tokens: Maximum number of new tokens per turn.
        max_total_tokens: Token budget of all rollouts together.
        max_cost: Cost budget of all rollouts together; needs `prices`.
        judge: Model that judges answers to mathematical questions and votes on wasted calls.
        judge_endpoints: Base URLs of the judge's servers.
        judge_key_env: Environment variable with their API key.
        judge_type: Type of the judge, as in `scores.judges.type`.
        judge_prompt: Its system prompt, or a file with it.
        judge_rubric: Its rubric, or a file with it.
        best_of: Number of rollouts per question of which the judge picks the best, without the right answer.
        scorer: What scores the answers: a shipped type, an entry point, or a class as `my_scorers.py:Class`.
        force: Run all instances again.
        accept_failures: Count units that could not be finished as failed, up to each stage's `max_error_rate`.
        quiet: Show no progress, only warnings.

    Raises:
        TreadleError: With one sentence about what is wrong and what to do.
    """
    from treadle.api.running import evaluated

    options = {
        "model": model,
        "endpoints": _texts(endpoints),
        "api_key_env": api_key_env,
        "chat": chat,
        "tokenizer": None if tokenizer is None else Path(tokenizer),
        "prices": prices,
        "benchmarks": _benchmarks(benchmarks),
        "data_root": None if data_root is None else Path(data_root),
        "max_questions": max_questions,
        "samples": samples,
        "tools": None if tools is None else frozenset(_texts(tools)),
        "corpus": tuple(map(Path, _texts(corpus))),
        "retrievers": _texts(retrievers),
        "temperature": temperature,
        "max_tokens": max_tokens,
        "max_total_tokens": max_total_tokens,
        "max_cost": max_cost,
        "judge": judge,
        "judge_endpoints": _texts(judge_endpoints),
        "judge_key_env": judge_key_env,
        "judge_type": judge_type,
        "judge_prompt": judge_prompt,
        "judge_rubric": judge_rubric,
        "best_of": best_of,
        "scorer": scorer,
    }
    how = {"force": force, "accept_failures": accept_failures, "quiet": quiet}
    return evaluated(options, name, root, config, overrides, **how)


def _texts(given: str | Path | Collection[str | Path]) -> tuple[str, ...]:
    """Return one or several values as texts."""
    return (str(given),) if isinstance(given, str | Path) else tuple(map(str, given))


def _benchmarks(given: Mapping[str, str | Path] | Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, Mapping):
        return tuple(f"{name}={file}" for name, file in given.items())
    return _texts(given)
