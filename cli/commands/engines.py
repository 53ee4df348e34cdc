"""Define the commands for engines and servers: `doctor`, `env`, `serve`, `tutor`."""

from __future__ import annotations

from pathlib import Path

import click

from treadle.cli.options import json_option, root_option, say
from treadle.core.untrusted.sanitize import sanitize, sanitized_json


@click.command(short_help="Check this machine, and model servers.", epilog="Example:  treadle doctor --config run.toml")
@click.option("configs", "--config", multiple=True, type=click.Path(path_type=Path), help="Also ask its model servers.")
@click.option("--endpoint", metavar="URL", help="Also ask this server, such as http://localhost:8000/v1.")
@click.option("--model", metavar="NAME", help="Model of --endpoint.")
@click.option("--api-key-env", metavar="NAME", help="Environment variable with the key of --endpoint.")
@root_option
@json_option
def doctor(
    root: str | Path,
    as_json: bool,
    configs: tuple[Path, ...],
    endpoint: str | None,
    model: str | None,
    api_key_env: str | None,
) -> None:
    """Check this machine: what works, what does not, and how to fix it.

    With --config or --endpoint, also report what the model servers lack, and the consequences: one line per fact.
    """
    from treadle.core.errors import EngineError
    from treadle.tasks.doctor import run_checks

    if (endpoint is None) != (model is None):
        raise click.UsageError("--endpoint and --model go together")
    checks = run_checks(root)
    if configs or endpoint is not None:
        from treadle.core.config import load_config
        from treadle.tasks.config import TreadleConfig
        from treadle.tasks.planning.server_facts import asked_models, endpoint_facts, server_facts

        if configs:
            checks += server_facts(asked_models(load_config(TreadleConfig, configs)))
        if endpoint is not None and model is not None:
            checks += endpoint_facts(endpoint, model, api_key_env)
    if as_json:
        click.echo(sanitized_json(checks))
    else:
        colours = {"ok": "green", "warn": "yellow", "fail": "red"}
        for check in checks:
            status = click.style(f"{check.status:<5}", fg=colours[check.status])
            click.echo(f"{status}{check.name}: {sanitize(check.detail)}")
            if check.fix:
                click.echo(f"     fix: {sanitize(check.fix)}")
    failed = [check.name for check in checks if check.status == "fail"]
    if failed:
        raise EngineError(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}")


@click.group(short_help="Environments of the engines.", epilog="Example:  treadle env install serve")
def env() -> None:
    """Manage the environments of the engines, which are separate from Treadle's own."""


@env.command(epilog="Example:  treadle env install serve")
@click.argument("engine")
@click.option("--variant", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
def install(engine: str, variant: str) -> None:
    """Install an ENGINE from its lock: `serve` is vLLM, `sft` is LLaMA-Factory, `bfcl` the tasks of BFCL."""
    from treadle.core.engines.environments import install as install_environment

    path = install_environment(engine, variant, notify=say)
    click.echo(path)


@env.command("list", epilog="Example:  treadle env list")
@json_option
def list_environments(as_json: bool) -> None:
    """List the installed engines and their folders."""
    from treadle.core.engines.environments import installed

    found = {name: str(path) for name, path in installed().items()}
    if as_json:
        click.echo(sanitized_json(found))
        return
    for name, path in found.items():
        click.echo(f"{name:<12} {path}")
    if not found:
        click.echo("none; install one with: treadle env install serve")


@click.command(short_help="Serve a model with vLLM.", epilog="Example:  treadle serve embedded --port 8001")
@click.argument("model")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 picks a free port.")
@click.option("--max-model-len", type=click.IntRange(min=16), default=2048, show_default=True, help="Window in tokens.")
def serve(model: str, port: int, max_model_len: int) -> None:
    """Serve MODEL with vLLM: `embedded`, a folder, or a hub id. Stops with Ctrl-C."""
    from treadle.core.engines.config import VllmServer
    from treadle.tasks.serving.servers import serve_until_interrupted

    serve_until_interrupted(
        VllmServer(type="vllm", model=model, port=port, max_model_len=max_model_len),
        notify=say,
    )


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    short_help="Serve the rule-based stand-in for a model.",
    epilog="Example:  treadle tutor --port 8002 --persona noisy",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def tutor(arguments: tuple[str, ...]) -> None:
    """Serve the rule-based stand-in for a model (see: treadle tutor --help)."""
    from treadle.demo.tutor.__main__ import main

    raise SystemExit(main(list(arguments)))
