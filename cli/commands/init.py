"""Define `treadle init`, which writes a first configuration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from treadle.cli.options import say

_GOALS = ("measure", "data", "train")


@click.command(
    short_help="Write the configuration of a first run.",
    epilog="Example:  treadle init mine.toml --questions test.jsonl --model embedded --goal measure",
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default="treadle.toml")
@click.option("--questions", type=click.Path(path_type=Path, dir_okay=False), help="File with questions and answers.")
@click.option("--model", metavar="NAME|FOLDER|embedded", help="Name in requests, or a model for vLLM to serve.")
@click.option("--endpoint", metavar="URL", help="Base URL of the model's server, ending in /v1; without it, vLLM.")
@click.option("--api-key-env", metavar="VARIABLE", help="Environment variable that holds the server's key.")
@click.option("--chat", is_flag=True, help="Use only the route /chat/completions, as for hosted services.")
@click.option("--goal", type=click.Choice(_GOALS), help="Measure the model, make rows from it, or fine-tune on them.")
@click.option("--domain", help="Domain of the questions. [default: by the first rows]")
@click.option(
    "--corpus", type=click.Path(path_type=Path, dir_okay=False), help="File of documents that the agent may search."
)
@click.option(
    "--student", metavar="FOLDER|embedded", default="embedded", show_default=True, help="Model that is fine-tuned."
)
def init(file: Path, **options: Any) -> None:
    """Write FILE (treadle.toml) from three answers: the questions, the model, and what to do.

    What the options leave open is asked in a terminal. An existing file is never overwritten.
    """
    from treadle.core.errors import ConfigError
    from treadle.tasks.planning.new_config import GOALS, Answers, new_config

    if file.exists():
        raise ConfigError(f"{file} exists; choose another name")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"the folder of {file} does not exist; create it, or choose another one")
    asks = sys.stdin.isatty()
    missing = [f"--{name}" for name in ("questions", "model", "goal") if options[name] is None]
    if missing and not asks:
        raise click.UsageError(f"without a terminal, {', '.join(missing)} must be given")
    if options["questions"] is None:
        options["questions"] = Path(click.prompt("File with questions and answers", err=True))
    if options["model"] is None:
        asked = "Model: the URL of its server, ending in /v1, a folder for vLLM to serve, or embedded"
        answer = click.prompt(asked, default="embedded", err=True)
        options["model"] = answer
        if "://" in answer:
            options["endpoint"] = answer
            options["model"] = click.prompt("Its name in requests", err=True)
    if options["goal"] is None:
        for name, text in GOALS.items():
            say(f"  {name}: {text}")
        options["goal"] = click.prompt("What to do", type=click.Choice(_GOALS), default="measure", err=True)
    text = new_config(Answers(**options), str(file))
    # Exclusive, because another process may have made it since.
    with file.open("x", encoding="utf-8") as written:
        written.write(text)
    say(f"wrote {file}; continue with: treadle run {file} --run first --dry-run")
