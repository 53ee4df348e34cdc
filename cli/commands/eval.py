"""Define `treadle eval`, which measures a model on benchmarks as an ordinary run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from treadle.cli.commands.run import run_flow
from treadle.cli.options import combine_options, say
from treadle.cli.work_options import WorkOptions, work_options

TOOLS = ("python", "search")


def _parse_tools(context: click.Context, parameter: click.Parameter, value: str | None) -> frozenset[str] | None:
    """Return the names of tools in a comma-separated list, or an empty set for `none`."""
    if value is None:
        return None
    names = frozenset(part.strip() for part in value.split(","))
    if names == {"none"}:
        return frozenset()
    if not names <= set(TOOLS):
        raise click.BadParameter(f"{value!r} is not python, search, python,search or none")
    return names


def _parse_prices(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, float] | None:
    """Return the prices of prompt and sampled tokens: two numbers separated by a slash."""
    try:
        prompt, completion = map(float, value.split("/")) if value is not None else (0.0, 0.0)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not two numbers as in 0.15/0.60") from None
    return (prompt, completion) if value is not None else None


_file = click.Path(path_type=Path)
_eval_options = combine_options(
    click.option("--model", metavar="NAME", help="Model name sent in requests."),
    click.option(
        "--endpoint",
        "endpoints",
        multiple=True,
        metavar="URL",
        help="Base URL of its server, ending in /v1; repeatable.",
    ),
    click.option("--api-key-env", metavar="VARIABLE", help="Environment variable that holds the server's key."),
    click.option("--chat", is_flag=True, help="Use only the route /chat/completions, as for hosted services."),
    click.option("--tokenizer", type=_file, help="Folder with its tokenizer and chat template. [default: ChatML]"),
    click.option(
        "--benchmark",
        "benchmarks",
        multiple=True,
        metavar="NAME[=FILE][,KEY=VALUE]",
        help="Benchmark and its file, or bfcl-multi-turn; keys as in questions.sources; repeatable.",
    ),
    click.option("--data-root", type=_file, help="Folder with <benchmark>/test.jsonl, .json, .csv or .parquet."),
    click.option(
        "--max-questions",
        type=click.IntRange(min=1),
        metavar="N",
        help="Use the first N rows of each benchmark. [default: 500]",
    ),
    click.option("--samples", type=click.IntRange(min=1), metavar="K", help="Rollouts per question. [default: 1]"),
    click.option(
        "--tools",
        metavar="python,search|none",
        callback=_parse_tools,
        help="Tools of the agent. [default: python, and search if there is something to search]",
    ),
    click.option("--corpus", type=_file, multiple=True, help="File of documents to search; repeatable."),
    click.option(
        "--retriever", "retrievers", multiple=True, metavar="URL", help="Search service to use instead; repeatable."
    ),
    click.option(
        "--temperature", type=click.FloatRange(min=0), metavar="T", help="Sampling temperature. [default: 0.6]"
    ),
    click.option(
        "--max-tokens", type=click.IntRange(min=1), metavar="N", help="Maximum new tokens per turn. [default: 4096]"
    ),
    click.option(
        "--max-total-tokens",
        type=click.IntRange(min=1),
        metavar="N",
        help="Token budget of all rollouts; exceeding it stops the run.",
    ),
    click.option(
        "--max-cost", type=click.FloatRange(min=0, min_open=True), metavar="AMOUNT", help="Cost budget; needs --prices."
    ),
    click.option(
        "--prices",
        metavar="PROMPT/COMPLETION",
        callback=_parse_prices,
        help="Prices per million tokens, such as 0.15/0.60.",
    ),
    click.option("--scorer", metavar="NAME|FILE.py:CLASS", help="What scores the answers. [default: by their domain]"),
    click.option(
        "--judge",
        metavar="MODEL",
        help="Model that judges math answers and votes on wasted calls. [default: rules only]",
    ),
    click.option(
        "--judge-endpoint",
        "judge_endpoints",
        multiple=True,
        metavar="URL",
        help="Base URL of the judge's server; repeatable.",
    ),
    click.option("--judge-key-env", metavar="VARIABLE", help="Environment variable that holds the judge server's key."),
    click.option(
        "--judge-type", metavar="NAME|FILE.py:CLASS", help="Kind of judge. [default: correctness, or rubric if given]"
    ),
    click.option("--judge-prompt", metavar="TEXT|FILE", help="System prompt of the judge; a file ends in .txt or .md."),
    click.option("--judge-rubric", metavar="TEXT|FILE", help="Rubric by which the judge grades every answer."),
    click.option(
        "--best-of",
        type=click.IntRange(2, 16),
        metavar="K",
        help="Let the judge pick the best of K rollouts per question, without the right answer.",
    ),
    click.option("-r", "--run", "run_id", metavar="NAME", help="Name of the run. [default: from model and benchmarks]"),
)


@click.command(
    "eval",
    short_help="Measure a model on benchmarks.",
    epilog="Example:  treadle eval --endpoint http://localhost:8000/v1 --model my-model --benchmark gsm8k=test.jsonl",
)
@_eval_options
@work_options
def evaluate(asked: WorkOptions, run_id: str | None, **options: Any) -> None:
    """Measure how well a model answers benchmarks, with or without tools.

    Creates an ordinary run of questions, rollouts, scores and report, and prints its table. After any interruption, the
    same command continues it, and so does `treadle run --run NAME`. Options override CONFIG files, such as the presets
    configs/eval-reference.toml and configs/smoke.toml.
    """
    from treadle.tasks.benchmark_sources import benchmark_notes
    from treadle.tasks.evaluation import EvalOptions, evaluation_config, run_name, unknown_template

    evaluation = EvalOptions(**options)
    name = run_id or run_name(evaluation, asked.configs)
    config = evaluation_config(evaluation, asked.root, name, asked.configs, asked.overrides)
    if run_id is None and not asked.as_json:
        say(f"run {name}")
    for note in benchmark_notes(config.questions) if evaluation.benchmarks else ():
        say(note)
    for model in unknown_template(config):
        say(f"warning: {model} is prompted in ChatML; if its chat template differs, give its folder with --tokenizer")
    run_flow(config, name, asked)
