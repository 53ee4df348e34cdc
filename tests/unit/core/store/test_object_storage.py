"""Checks of a root in an object store before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.core.errors import ConfigError
from treadle.core.store.roots import open_storage


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TREADLE_WORK", str(tmp_path))
    for name, value in {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "eu-north-1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)


def test_default_endpoint_is_the_provider() -> None:
    open_storage("s3://bucket/runs")


@pytest.mark.parametrize("endpoint", ["localhost:9000", "ftp://host", "http://user:password@host"])
def test_invalid_endpoint_is_refused_without_being_repeated(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL") as refusal:
        open_storage("s3://bucket/runs")
    assert endpoint not in str(refusal.value)
