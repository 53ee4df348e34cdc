"""Checks before a run cover every environment that sources use, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.servers.ports import free_port

from treadle.core.config import load_config
from treadle.core.errors import ConfigError, TreadleError
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.run_setup import with_run_defaults
from treadle.tasks.planning.secret_checks import key_variables
from treadle.tasks.planning.web_checks import check_provider, check_web


def config(environment: dict[str, Any], *, in_use: bool = True) -> TreadleConfig:
    """Return a configuration with another environment, which a source names or not."""
    sources = [{"path": "a.jsonl", "domain": "qa"}]
    sources += [{"path": "b.jsonl", "domain": "qa", "environment": "other"}] if in_use else []
    data = {"questions": {"sources": sources}, "environments": {"other": {"search": environment}}}
    return load_config(TreadleConfig, data=data)


def test_web_of_a_named_environment_is_checked_if_it_is_used() -> None:
    web = {"web": {"provider": {"type": "serper", "api_key_envs": ["MISSING_KEY_OF_A_TEST"]}}}
    with pytest.raises(ConfigError, match="MISSING_KEY_OF_A_TEST"):
        check_web(config(web))
    check_web(config(web, in_use=False))
    assert "MISSING_KEY_OF_A_TEST" in key_variables(config(web, in_use=False)), "its value is a secret all the same"


def test_provider_of_a_named_environment_is_named_by_its_table() -> None:
    web = {"web": {"provider": {"type": "searxng", "url": f"http://127.0.0.1:{free_port()}"}}}
    with pytest.raises(TreadleError, match=r"`environments\.other\.search\.web\.provider\.url`"):
        check_provider(config(web))
    check_provider(config(web, in_use=False))


def test_fingerprints_are_of_each_environments_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def ask(service: Any, top_n: int) -> str:
        asked.append(service.endpoints[0].url)
        return f"print of {service.endpoints[0].url}"

    monkeypatch.setattr("treadle.retriever.client.ask_fingerprint", ask)
    service = {"service": {"endpoints": [{"url": "http://127.0.0.1:9"}]}}
    told = with_run_defaults(config(service), tmp_path, "run")
    search = told.environments["other"].search_tool
    assert search is not None and search.service is not None
    assert search.service.fingerprint == "print of http://127.0.0.1:9" and len(asked) == 1
    assert told.environment == config(service).environment
    assert with_run_defaults(config(service, in_use=False), tmp_path, "run") == config(service, in_use=False)
    assert len(asked) == 1
