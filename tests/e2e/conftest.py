"""Real engines, started once for all tests that use them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rollouts.small_demo import demo_run
from support.training import trl_jobs

from treadle.core.engines.config import VllmServer
from treadle.core.engines.environments import install
from treadle.core.engines.serving import ServedModel, serve

__all__ = ["demo_run"]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@pytest.fixture(scope="session")
def serve_environment() -> Path:
    """Return the installed engine environment of `serve`."""
    return install("serve", notify=_say)


@pytest.fixture(scope="session")
def sft_environment() -> Path:
    """Return the installed engine environment of `sft`."""
    return install("sft", "cpu", notify=_say)


@pytest.fixture(scope="session")
def trl_environment() -> Path:
    """Return the installed engine environment of `trl`."""
    return install("trl", "cpu", notify=_say)


@pytest.fixture(scope="session")
def served_embedded_model(serve_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    """SmolLM2-135M-Instruct on real vLLM: window 2,048, model name `smollm2`; in fp32, which no CPU emulates."""
    folder = tmp_path_factory.mktemp("serve")
    with serve(VllmServer(dtype="float32"), model_name="smollm2", log_folder=folder, notify=_say) as served:
        yield served


@pytest.fixture(scope="session")
def policy(trl_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a policy that calls Python, or guesses."""
    folder = tmp_path_factory.mktemp("policy") / "policy"
    folder.mkdir()
    trl_jobs.write_policy(folder)
    return folder
