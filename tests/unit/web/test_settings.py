"""Settings of web search: what is refused before a run begins, and how a record's place is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.core.config import validate
from treadle.core.errors import ConfigError
from treadle.web.config import ProviderSettings, WebSettings


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8888",
        "ftp://localhost",
        "http://",
        "http://localhost:99999",
        "http://localhost:abc",
        "http://localhost:0",
        "http://ex_am..ple/",
        "http://local host/",
        "http://localhost/a b",
        "http://][",
        "http://b\u00fccher.de/",
        "http://localhost/\u00e4",
        "http://user:word@localhost/",
        "http://localhost/?key=1",
        "http://localhost/#a",
    ],
)
def test_impossible_provider_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="url"):
        validate(ProviderSettings, {"type": "searxng", "url": url})


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8888",
        "https://searx_ng.intranet./path",
        "http://10.1.2.3",
        "http://[::1]:8888/search",
        "HTTP://xn--bcher-kva.de",
    ],
)
def test_provider_url_is_kept_verbatim(url: str) -> None:
    assert validate(ProviderSettings, {"type": "searxng", "url": url}).url == url
    assert validate(ProviderSettings, {"type": "searxng", "url": f"{url}/"}).url == url


def test_record_is_stored_with_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")

    def kept(place: str) -> object:
        return WebSettings(mode="replay", recorded_in=Path(place)).model_dump(mode="json")["recorded_in"]

    assert kept("record") == str(tmp_path / "record")
    assert kept("/data/record") == "/data/record"
    assert kept("~/record") == "/home/somebody/record"
    assert kept("s3://bucket/record") == "s3:/bucket/record"
    assert WebSettings.model_validate({"provider": {"type": "searxng", "url": "http://x"}}).recorded_in is None
