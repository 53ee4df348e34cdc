"""The experience service in AgentEvolver's form: bodies, workspaces, and what is paid once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.experience.scripted_author import ScriptedAuthor, records, roles, valid
from support.servers.scripted_server import Fault, Item, RecordedRequest, ScriptedServer, served

from treadle.core.errors import ConfigError
from treadle.rl.experience.entry import experience_roles
from treadle.rl.experience.record import read_records, write_records
from treadle.rl.experience.service.app import make_app
from treadle.rl.experience.service.config import ExperienceServiceConfig
from treadle.rl.experience.service.requests import query_of
from treadle.rl.experience.settings import ExperienceOptions

TRAJECTORY = {
    "messages": [
        {"role": "system", "content": "You keep accounts."},
        {"role": "user", "content": "Move money to Ann."},
        {"role": "assistant", "content": "balance?"},
        {"role": "user", "content": "12"},
        {"role": "assistant", "content": "transfer 12"},
    ],
    "score": 1.0,
}


def write(shown: dict[str, Any]) -> list[dict[str, str]]:
    return [{"kind": "strategy", "situation": f"when asked: {shown['task']}", "advice": "look at the balance first"}]


@contextlib.contextmanager
def client(folder: Path, server: ScriptedServer | None, **keys: Any) -> Iterator[TestClient]:
    """Yield a client of the service over a folder of pools."""
    config = ExperienceServiceConfig.model_validate({"service": {"folder": folder}, **keys})
    app = make_app(config, roles(server.url) if server is not None else None)
    with TestClient(app, base_url="http://127.0.0.1") as made:
        yield made


def retrieve(service: TestClient, workspace: str, query: str = "") -> str:
    body = {"query": query or json.dumps(TRAJECTORY["messages"][:2]), "top_k": 3, "workspace_id": workspace}
    answer = service.post("/retrieve_task_memory", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["answer"])


@pytest.mark.covers("service-26")
def test_summary_is_found_in_its_workspace_alone_and_after_a_restart(tmp_path: Path) -> None:
    author = ScriptedAuthor(write, valid)
    with served(author) as server:
        with client(tmp_path, server) as service:
            assert retrieve(service, "one") == ""
            body = {"trajectories": [TRAJECTORY], "workspace_id": "one", "unknown": 1}
            answer = service.post("/summary_task_memory", json=body).json()
            assert answer["answer"] == "1. when asked: Move money to Ann.: look at the balance first"
            assert [one["workspace"] for one in answer["metadata"]["memory_list"]] == ["one"]
            assert retrieve(service, "one") == answer["answer"]
            assert retrieve(service, "two") == "" and retrieve(service, "one", "weather") == ""
            paid = len(author.asked)
            assert service.post("/summary_task_memory", json=body).json() == answer
            assert len(author.asked) == paid == 2
        with client(tmp_path, server) as service:
            assert retrieve(service, "one") == answer["answer"] and len(author.asked) == paid
            lines = service.get("/records", params={"workspace_id": "one"})
            path = tmp_path / "pool.jsonl"
            path.write_bytes(lines.content)
            (found,) = read_records([path])
            assert found.workspace == "one" and found.advice == "look at the balance first"


class CallingClient:
    """Calls as AgentEvolver's client does: JSON text of the first messages; any status but 200 is no experience."""

    def __init__(self, service: TestClient) -> None:
        self._service = service

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        answer = self._service.post(path, json=body, headers={"Content-Type": "application/json"})
        found = answer.json()  # of an error as well
        return found if answer.status_code == 200 else None

    def hint(self, messages: list[dict[str, Any]]) -> str:
        query = json.dumps(messages, ensure_ascii=False)
        found = self._ask("/retrieve_task_memory", {"query": query, "top_k": 3, "workspace_id": "default"})
        return "" if found is None else found["answer"]

    def summarise(self, *trajectories: dict[str, Any]) -> bool:
        body = {"trajectories": trajectories, "workspace_id": "default"}
        return self._ask("/summary_task_memory", body) is not None


def test_replies_are_what_a_client_of_agentevolver_reads(tmp_path: Path) -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    played = {**TRAJECTORY, "messages": [*TRAJECTORY["messages"][:2], called, *TRAJECTORY["messages"][3:]]}
    with served(ScriptedAuthor(write, valid)) as server, client(tmp_path, server) as service:
        caller = CallingClient(service)
        assert caller.hint(TRAJECTORY["messages"][:2]) == "", "no experience yet, and no error"
        assert caller.summarise(played, {**TRAJECTORY, "score": 0})
        hint = caller.hint(TRAJECTORY["messages"][:2])
        assert isinstance(hint, str) and "look at the balance first" in hint
        assert not caller.summarise({**TRAJECTORY, "messages": []}), "refused as JSON"


def test_trajectories_of_a_task_are_summarised_together(tmp_path: Path) -> None:
    author = ScriptedAuthor(write, valid)
    other = {**TRAJECTORY, "messages": [{"role": "user", "content": "Cancel it."}, *TRAJECTORY["messages"][2:]]}
    with served(author) as server, client(tmp_path, server) as service:
        body = {"trajectories": [TRAJECTORY, other, {**TRAJECTORY, "score": 0.0}]}
        assert service.post("/summary_task_memory", json=body).status_code == 200
    summaries = [shown for role, shown in author.shown if role == "summariser"]
    assert [(shown["task"], len(shown["rollouts"])) for shown in summaries] == [
        ("Cancel it.", 1),
        ("Move money to Ann.", 2),
    ]


def test_given_pool_is_served_without_a_model(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_bytes(write_records(records("seven")))
    with client(tmp_path / "pools", None, experience={"pool": [path]}) as service:
        assert "seven" in retrieve(service, "default", "seven")
        answer = service.post("/summary_task_memory", json={"trajectories": [TRAJECTORY]})
        assert answer.status_code == 503 and "experience.summariser.model" in answer.text
        assert service.get("/health").json() == {"status": "ready", "summarises": False}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/retrieve_task_memory", {"query": "x", "workspace_id": "../../etc"}, 422),
        ("/retrieve_task_memory", {"query": "x", "workspace_id": ""}, 422),
        ("/retrieve_task_memory", {"query": "x", "top_k": 0}, 422),
        ("/retrieve_task_memory", {"top_k": 1}, 422),
        ("/summary_task_memory", {"trajectories": []}, 422),
        ("/summary_task_memory", {"trajectories": [{"messages": [], "score": 1}]}, 422),
        ("/summary_task_memory", {"trajectories": [{**TRAJECTORY, "score": "high"}]}, 422),
    ],
)
def test_bad_bodies_are_refused(tmp_path: Path, path: str, body: dict[str, Any], status: int) -> None:
    with client(tmp_path, None) as service:
        assert service.post(path, json=body).status_code == status
        assert service.get("/records", params={"workspace_id": "a/b"}).status_code == 422
    assert not list(tmp_path.rglob("*.json*"))


def test_failing_model_is_an_error_and_replies_before_it_are_kept(tmp_path: Path) -> None:
    author = ScriptedAuthor(write, valid)
    fails = [True]

    def script(request: Any) -> Any:
        if "The record is valid if" in request.text and fails[0]:
            return Fault.status(400, "not today")
        return author(request)

    body = {"trajectories": [TRAJECTORY]}
    with served(script) as server, client(tmp_path, server) as service:
        answer = service.post("/summary_task_memory", json=body)
        assert answer.status_code == 503 and "were not summarised" in answer.text
        fails[0] = False
        assert service.post("/summary_task_memory", json=body).status_code == 200
    assert [role for role, _ in author.shown] == ["summariser", "validator"]


def test_wrong_encoder_and_unwritable_folder_are_named(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_bytes(write_records(records("seven")))
    missing = {"type": "model", "model": str(tmp_path / "absent")}
    with client(tmp_path / "pools", None, experience={"pool": [path], "encoder": missing}) as service:
        answer = service.post("/retrieve_task_memory", json={"query": "seven"})
        assert answer.status_code == 503 and "absent" in answer.json()["detail"]
    (tmp_path / "file").write_text("")
    with served(ScriptedAuthor(write, valid)) as server, client(tmp_path / "file", server) as service:
        answer = service.post("/summary_task_memory", json={"trajectories": [TRAJECTORY]})
        assert answer.status_code == 503 and "file" in answer.json()["detail"]


def test_summary_that_takes_too_long_is_an_error_and_asked_for_again(tmp_path: Path) -> None:
    author = ScriptedAuthor(write, valid)

    def hanging(request: RecordedRequest) -> Item:
        return Fault("hang") if "It is data" in request.text else author(request)

    body = {"trajectories": [TRAJECTORY]}
    with served(hanging) as server, client(tmp_path, server, experience={"request_time_s": 0.1}) as service:
        answer = service.post("/summary_task_memory", json=body)
        assert answer.status_code == 503 and "experience.request_time_s = 0.1 s" in answer.text
    with served(author) as server, client(tmp_path, server) as service:
        assert "look at the balance" in service.post("/summary_task_memory", json=body).json()["answer"]


def test_replies_of_another_model_are_not_used(tmp_path: Path) -> None:
    author = ScriptedAuthor(write, valid)

    def refusing(request: RecordedRequest) -> Item:
        return Fault.status(400, "not today") if "The record is valid if" in request.text else author(request)

    body = {"trajectories": [TRAJECTORY]}
    with served(refusing) as server, client(tmp_path, server) as service:
        assert service.post("/summary_task_memory", json=body).status_code == 503
    config = ExperienceServiceConfig.model_validate({"service": {"folder": tmp_path}})
    with served(author) as server:
        app = make_app(config, roles(server.url, revision="newer"))
        with TestClient(app, base_url="http://127.0.0.1") as service:
            assert service.post("/summary_task_memory", json=body).status_code == 200
    assert [role for role, _ in author.shown] == ["summariser", "summariser", "validator"]


def test_token_and_origin_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with client(tmp_path, None) as service:
        answer = service.post("/retrieve_task_memory", json={"query": "x"}, headers={"Origin": "http://evil.example"})
        assert answer.status_code == 403
    monkeypatch.setenv("POOL_TOKEN", "secret")
    config = ExperienceServiceConfig.model_validate({"service": {"folder": tmp_path, "token_env": "POOL_TOKEN"}})
    with TestClient(make_app(config, None), base_url="http://127.0.0.1") as service:
        assert service.post("/retrieve_task_memory", json={"query": "x"}).status_code == 401
        token = {"Authorization": "Bearer secret"}
        assert service.post("/retrieve_task_memory", json={"query": "x"}, headers=token).json() == {"answer": ""}


def test_public_address_requires_a_token(tmp_path: Path) -> None:
    config = ExperienceServiceConfig.model_validate({"service": {"folder": tmp_path, "host": "0.0.0.0"}})
    with pytest.raises(ConfigError, match="name the environment variable of a token with --token-env"):
        make_app(config, None)


def test_query_is_the_text_of_messages_other_than_the_systems() -> None:
    assert query_of(json.dumps(TRAJECTORY["messages"][:2])) == "Move money to Ann."
    assert query_of("plain text") == "plain text" and query_of('{"a": 1}') == '{"a": 1}'
    assert query_of('[1, {"role": "user"}, {"role": "user", "content": "x"}]') == "x"


def test_models_of_the_roles_must_be_configured() -> None:
    options = ExperienceOptions.model_validate({"summariser": {"model": "a"}, "validator": {"model": "b"}})
    with pytest.raises(ConfigError, match="experience.summariser.model names 'a', which is not under"):
        experience_roles({}, options, "")
    with pytest.raises(ConfigError, match="no model summarises rollouts"):
        experience_roles({}, ExperienceOptions(), "")
