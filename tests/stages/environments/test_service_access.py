"""Who can use the environment service: addresses, tokens, pages of browsers, sizes of requests."""

from __future__ import annotations

import json
import socket

import pytest
from support.environments.served_environment import served

from treadle.core.errors import ConfigError
from treadle.environments.service.settings import EnvironmentServiceSettings
from treadle.retriever.service.listening import listen

JSON = {"Content-Type": "application/json"}
PATHS = ("/create", "/step", "/release", "/metrics", "/instances", "/docs", "/openapi.json")


def test_public_address_requires_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--token-env"):
        EnvironmentServiceSettings(host="0.0.0.0").token()
    monkeypatch.setenv("SERVICE_TOKEN", "sesame")
    assert EnvironmentServiceSettings(host="0.0.0.0", token_env="SERVICE_TOKEN").token() == "sesame"


async def test_cross_origin_requests_are_refused() -> None:
    async with served("ledger") as (client, service):
        for headers, status in (
            ({"Host": "evil.test"}, 421),
            ({"Origin": "http://evil.test"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
        ):
            async with client.session.post(client.url + "/create", data=b"{}", headers=JSON | headers) as response:
                assert response.status == status
        # A form of another site can send this type without a preflight request.
        async with client.session.post(
            client.url + "/create", data=b"{}", headers={"Content-Type": "text/plain"}
        ) as response:
            assert response.status == 415 and json.loads(await response.read())["error"]["code"] == "bad_request"
        assert len(service.instances) == 0


async def test_token_protects_everything_but_health(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "sesame")
    async with served("ledger", token_env="SERVICE_TOKEN") as (client, _):
        for path in PATHS:
            for headers in ({}, {"Authorization": "Bearer open"}):
                async with client.session.post(client.url + path, data=b"{}", headers=JSON | headers) as response:
                    assert response.status == 401
                    assert json.loads(await response.read())["error"]["code"] == "unauthorized"
        assert (await client.get("/healthz"))[0] == 200
        given = {"Authorization": "Bearer sesame", "Origin": "http://elsewhere.test", "Host": "elsewhere.test"}
        async with client.session.get(client.url + "/instances", headers=given) as response:
            assert (response.status, await response.json()) == (200, [])


async def test_long_and_malformed_bodies_are_refused() -> None:
    async with served("ledger", max_body_bytes=1_000) as (client, _):
        for body, status in ((b"x" * 1_001, 413), (b"{", 400), (b"[]", 422), (b"\xff", 400)):
            async with client.session.post(client.url + "/step", data=body, headers=JSON) as response:
                assert response.status == status, body
                error = json.loads(await response.read())["error"]
                assert error["code"] == "bad_request" and "\n" not in error["message"]


def test_parts_of_a_response_do_not_wait_for_acknowledgements() -> None:
    with (
        listen(EnvironmentServiceSettings(port=0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
