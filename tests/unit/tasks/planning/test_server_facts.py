"""What servers lack is told by `treadle doctor` and dry runs: one line per fact, and no long wait for any server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.model_servers.played_servers import SERVERS, Player
from support.servers.hosted_service import hosted
from support.servers.scripted_server import Fault

from treadle.core.config import load_config
from treadle.core.engines.doctor import Check
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.server_facts import AskedModel, asked_models, endpoint_facts, server_facts

O_SERIES = next(one for one in SERVERS if one.name == "OpenAI o-series")
CONFIG = """
[models.m]
model = "scripted"
api = "chat"
endpoints = [{{ url = "{url}" }}]

[models.spare]
model = "scripted"
endpoints = [{{ url = "http://127.0.0.1:1/v1" }}]

[flow]
stages = ["rollouts", "scores"]
models = ["m"]

[questions]
sources = [{{ path = "{questions}", dataset = "mine", domain = "qa" }}]

[environment]
search.enabled = false
python.enabled = false
"""


def config_at(folder: Path, url: str) -> Path:
    (folder / "questions.jsonl").write_text('{"question": "Why?", "answer": "So."}\n')
    path = folder / "run.toml"
    path.write_text(CONFIG.format(url=url, questions=folder / "questions.jsonl"))
    return path


def details(checks: list[Check]) -> dict[str, str]:
    return {check.detail: check.status for check in checks}


async def asked(models: list[AskedModel], limit_s: float = 20.0) -> list[Check]:
    return await asyncio.to_thread(server_facts, models, limit_s)


async def test_each_fact_is_a_line_with_what_follows_from_it(tmp_path: Path) -> None:
    async with Player(O_SERIES, lambda request: "x") as service:
        config = load_config(TreadleConfig, [config_at(tmp_path, service.url)])
        found = await asked(asked_models(config)[:1])
    assert {check.name for check in found} == {"models.m"}
    told = details(found)
    assert told["refuses seeds: requests have none, and results cannot be reproduced"] == "warn"
    assert told["refuses max_tokens: the limit is sent as max_completion_tokens"] == "ok"
    assert all("\n" not in line for line in told)


async def test_frozen_dead_and_wrong_servers_are_one_line_each_within_the_limit(tmp_path: Path) -> None:
    async with hosted(lambda request: Fault("hang")) as frozen, hosted(lambda request: "x") as other:
        (model,) = asked_models(load_config(TreadleConfig, [config_at(tmp_path, frozen.url)]))[:1]
        wrong = model.settings.model_copy(update={"model": "another"})
        wrong = wrong.model_copy(update={"endpoints": (wrong.endpoints[0].model_copy(update={"url": other.url}),)})
        dead = load_config(TreadleConfig, [config_at(tmp_path, "http://127.0.0.1:1/v1")]).models["m"]
        models = [model, AskedModel("wrong", wrong), AskedModel("dead", dead)]
        found = await asked(models, 0.5)
    assert [check.status for check in found] == ["fail"] * 3
    assert "did not answer all questions within 0.5 s" in found[0].detail
    assert "does not serve model 'another'; it serves: scripted" in found[1].detail
    assert all(check.fix and check.detail.isprintable() for check in found)


@pytest.mark.parametrize(("name", "statuses"), [("hosted, OpenAI-style", {"ok", "warn"}), ("nothing", {"fail"})])
async def test_an_endpoint_is_asked_over_each_route_and_needs_only_one(name: str, statuses: set[str]) -> None:
    played = next((one for one in SERVERS if one.name == name), SERVERS[0])
    async with Player(played, lambda request: "x" if name != "nothing" else Fault.status(401, "no")) as server:
        found = await asyncio.to_thread(endpoint_facts, server.url, "scripted", None, 20.0)
    assert {check.name for check in found} == {"scripted over completions", "scripted over chat"}
    assert {check.status for check in found} == statuses


def run(*words: str) -> Result:
    from treadle.cli.main import cli

    return CliRunner().invoke(cli, words, catch_exceptions=False)


def test_endpoint_and_model_go_together() -> None:
    assert run("doctor", "--endpoint", "http://127.0.0.1:1/v1").exit_code == 2
