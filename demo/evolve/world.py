"""Set up what the demo needs next to its run: a service that holds the ledger, and a tutor for its helpers."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.core.errors import StorageError
from treadle.demo.tutor.settings import MODEL
from treadle.tasks.planning.toml_lines import toml_lines

SERVED = "served"
"""Name of the environment of the held-out tasks, which runs in the service."""
INSTRUCTIONS = (
    "You keep a ledger. Write one call per message, as JSON: find_account, list_orders, pay_order, cancel_order, "
    "transfer. Then submit the answer."
)
"""Instructions of the agent; short, because every token of a prompt costs training time in each row on two cores."""
HELPERS = ("explorer", "solver", "lesson_writer", "lesson_checker")
"""Models that a tutor serves as a companion (`[[companions]]`) of the run, because training also calls this tutor to
label steps; the run does not start a server for them."""
KINDS = ("pay_cheapest", "cover", "cancel_small")
"""Kinds of tasks that a model of 135 million weights can learn; it does not learn to add up amounts."""
_HOST = "127.0.0.1"
_TUTOR_WINDOW = 262_144
"""Maximum number of tokens of the helpers' prompts: a token is one byte, and some prompts hold several rollouts."""


@dataclass(frozen=True, slots=True)
class LedgerWorld:
    """Tasks of the ledger.

    Attributes:
        num_train: Number of tasks to train on.
    """

    num_train: int

    @property
    def num_heldout(self) -> int:
        """Number of held-out tasks, which the environment `ledger` adds to the training tasks: a quarter of these."""
        return self.num_train // 4

    def write(self, folder: Path) -> tuple[str, dict[str, Any]]:
        """See `DemoWorld`; the folder gets the configuration of the service."""
        service, tutor = free_port(), free_port()
        settings: dict[str, Any] = {"type": "ledger", "num_tasks": self.num_train, "kinds": list(KINDS)}
        settings["instructions"] = INSTRUCTIONS
        config = folder / "service.toml"
        lines = [*toml_lines({"environments": {"ledger": settings}}), ""]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            config.write_text("\n".join(lines), encoding="utf-8")
        except OSError as error:
            raise StorageError(f"{config} cannot be written: {error}") from error
        said = f"{self.num_train:,} tasks of a ledger to train on and {self.num_heldout:,} held out"
        return said, ledger_tables(settings, config.absolute(), service, tutor)


def ledger_tables(settings: dict[str, Any], service_config: Path, service_port: int, tutor_port: int) -> dict[str, Any]:
    """Return the configuration tables that define the tasks, the companions, and the models that the tutor serves."""
    service, tutor = (f"http://{_HOST}:{port}" for port in (service_port, tutor_port))
    serve = [str(Path(sys.executable).with_name("treadle")), "environment", "serve", "--config", str(service_config)]
    play = [sys.executable, "-m", "treadle.demo.tutor", "--max-model-len", str(_TUTOR_WINDOW)]
    return {
        "companions": [
            {
                "name": "ledger-service",
                "command": [*serve, "--port", str(service_port)],
                "ready_url": f"{service}/healthz",
            },
            {"name": "helpers", "command": [*play, "--port", str(tutor_port)], "ready_url": f"{tutor}/health"},
        ],
        "environment": settings,
        "environments": {SERVED: {"type": "service", "url": service}},
        "questions": {
            "sources": [
                {"from": "environment", "split": "train"},
                {"from": "environment", "split": "heldout", "environment": SERVED},
            ]
        },
        "models": {name: {"endpoints": [{"url": f"{tutor}/v1"}]} for name in HELPERS},
        "rl": {
            "credit": {
                "type": "attribution",
                "model": {"model": f"{MODEL}-attributor", "api": "chat", "endpoints": [{"url": f"{tutor}/v1"}]},
            }
        },
    }


def free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
