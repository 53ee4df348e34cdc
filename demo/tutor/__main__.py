"""Run a tutor until it is stopped: `python -m treadle.demo.tutor`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

import orjson

from treadle.core.errors import ConfigError, Interrupted, StorageError, TreadleError
from treadle.demo.tutor.server import TutorServer
from treadle.demo.tutor.settings import (
    DESCRIPTION,
    FAULT_KINDS,
    MODEL,
    MODELS,
    TutorSettings,
    parse_faults,
    parse_rates,
)

DEFAULT_RATES = "redundant=0.25,broken=0.15,early=0.15,wrong=0.15,stubborn=0.2,careless=0.1,guess=0.8"


class _Parser(argparse.ArgumentParser):
    """Argument parser that raises ConfigError for a wrong argument."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see treadle tutor --help")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the tutor's command line."""
    parser = _Parser(
        prog="treadle tutor",
        description=f"OpenAI-compatible server: a {DESCRIPTION}. Prints one JSON line with its URL when it is ready.",
        epilog=f"Served models: {', '.join(MODELS)}. Request counts: GET /log/counts. "
        "Example: treadle tutor --port 8002 --persona noisy --latency-s 0.2 --faults 500=0.02,reset=0.01",
    )
    add = parser.add_argument
    add(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: %(default)s); on a non-loopback address, any machine that can reach it "
        "may use it, and only the Origin of requests is checked, not Host",
    )
    add("--port", type=int, default=0, help="port; 0 takes a free one (default)")
    add("--port-file", type=Path, help="write the port number here when ready")
    add("--persona", choices=("strong", "noisy"), default="strong", help=f"how {MODEL} behaves (default: %(default)s)")
    add(
        "--rates",
        default="",
        metavar="NAME=SHARE,…",
        help="error rates of the noisy persona; default: " + DEFAULT_RATES,
    )
    add("--tokenizer", type=Path, help="folder of a tokenizer; default: one id per byte, no download")
    add("--max-model-len", type=int, default=32768, help="window in tokens (default: %(default)s)")
    add("--latency-s", type=float, default=0.0, help="fixed delay of every answer")
    add("--jitter-s", type=float, default=0.0, help="maximum additional delay, drawn per request")
    add("--rate-limit-per-s", type=float, default=0.0, help="answer 429 above this many requests per second")
    add("--faults", default="", metavar="KIND=SHARE,…", help=f"share of requests hit by {', '.join(FAULT_KINDS)}")
    add("--fault-seed", type=int, default=0, help="seed that selects which requests are hit")
    add("--request-log", type=Path, help="append one JSON line per arrival and per answer to this file")
    return parser


def settings_of(arguments: argparse.Namespace) -> TutorSettings:
    """Convert parsed arguments to settings; raise ConfigError."""
    for name in ("latency_s", "jitter_s", "rate_limit_per_s"):
        if not 0 <= getattr(arguments, name) < float("inf"):
            raise ConfigError(f"--{name.replace('_', '-')} must be a number of at least 0")
    if arguments.max_model_len < 1:
        raise ConfigError("--max-model-len must be at least 1")
    given = {field.name: getattr(arguments, field.name) for field in fields(TutorSettings)}
    return TutorSettings(**given | {"rates": parse_rates(arguments.rates), "faults": parse_faults(arguments.faults)})


async def serve(settings: TutorSettings, host: str, port: int, port_file: Path | None) -> None:
    """Run a tutor until SIGTERM or SIGINT; raise ConfigError if it cannot listen."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        async with TutorServer(settings, host=host, port=port) as server:
            if port_file is not None:
                _write_port(port_file, server.url)
            ready = {"url": server.url, "model": MODEL, "persona": settings.persona, "what": DESCRIPTION}
            sys.stdout.write(orjson.dumps(ready).decode() + "\n")
            sys.stdout.flush()
            await stop.wait()
    except OSError as error:
        raise ConfigError(f"the tutor cannot listen on {host}:{port}: {error}") from error


def _write_port(path: Path, url: str) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(url.rsplit(":", 1)[1].removesuffix("/v1") + "\n", encoding="ascii")
        part.replace(path)
    except OSError as error:
        raise StorageError(f"the port file {path} cannot be written: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    with contextlib.suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        arguments = build_parser().parse_args(argv)
        asyncio.run(serve(settings_of(arguments), arguments.host, arguments.port, arguments.port_file))
    except TreadleError as error:
        sys.stderr.write(f"treadle: tutor: {error}\n")
        return error.exit_code
    return Interrupted.exit_code  # Only a signal ends a tutor.


if __name__ == "__main__":
    raise SystemExit(main())
