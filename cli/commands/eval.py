"""Define `treadle eval`, which measures a model on benchmarks as an ordinary run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from treadle.cli.commands.run import WorkOptions, run_flow, work_options
from treadle.cli.options import combine_options, say

TOOLS = ("python", "search")


class ToolsType(click.ParamType[Any]):
    """Comma-separated names of tools, or `none`."""

    name = "tools"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[str]:
        """Return the set of names; report a usage error for unknown ones."""
        names = frozenset(part.strip() for part in str(value).split(","))
        if names == {"none"}:
            return frozenset()
        if not names <= set(TOOLS):
            self.fail(f"{value!r} is not python, search, python,search or none", param, ctx)
        return names

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the placeholder in help texts."""
        return "python,search|none"


class PricesType(click.ParamType[Any]):
    """Two numbers separated by a slash."""

    name = "prices"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, float]:
        """Return the prices of prompt and sampled tokens; report a usage error for anything else."""
        try:
            prompt, completion = map(float, str(value).split("/"))
        except ValueError:
            self.fail(f"{value!r} is not two numbers as in 0.15/0.60", param, ctx)
        return prompt, completion

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the placeholder in help texts."""
        return "PROMPT/COMPLETION"


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
        metavar="NAME[=FILE]",
        help="Known benchmark and its file, or only its name with --data-root; repeatable.",
    ),
    click.option("--data-root", type=_file, help="Folder with <benchmark>/test.jsonl, .json or .parquet."),
    click.option(
        "--max-questions",
        type=click.IntRange(min=1),
        metavar="N",
        help="Use the first N rows of each benchmark. [default: 500]",
    ),
    click.option("--samples", type=click.IntRange(min=1), metavar="K", help="Rollouts per question. [default: 1]"),
    click.option(
        "--tools",
        type=ToolsType(),
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
    click.option("--prices", type=PricesType(), help="Prices per million tokens, such as 0.15/0.60."),
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
    click.option("--run", "run_id", metavar="NAME", help="Name of the run. [default: from model and benchmarks]"),
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
    from treadle.tasks.evaluation import EvalOptions, evaluation_config, run_name, unknown_template

    evaluation = EvalOptions(**options)
    name = run_id or run_name(evaluation, asked.configs)
    config = evaluation_config(evaluation, asked.root, name, asked.configs, asked.overrides)
    if run_id is None and not asked.as_json:
        say(f"run {name}")
    for model in unknown_template(config):
        say(f"warning: {model} is prompted in ChatML; if its chat template differs, give its folder with --tokenizer")
    run_flow(config, name, asked)
