"""Runs that search at services, as the command line begins and resumes them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.runs.command_line import QUESTIONS, Desk, tutor

CONFIG = """
[models.tutor]
model = "treadle-tutor"
endpoints = [{{ url = "{tutor}" }}]

[questions]
sources = [{{ path = "questions.jsonl", domain = "math" }}]

[environment]
python.enabled = false
search.service = {{ endpoints = [{{ url = "{service}" }}], retry_limit = 0 }}

[scores]
symbolic = false
"""


class Retriever(ThreadingHTTPServer):
    """A service with this `fingerprint` (None: it has no route for it) that finds one document."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Answers)
        self.fingerprint: str | None = "a" * 64
        self.num_asked = 0
        self.answer: tuple[int, object] = (200, [[{"id": "1", "contents": "Title\nText"}], [1.0]])


class _Answers(BaseHTTPRequestHandler):
    server: Retriever

    def do_GET(self) -> None:
        self.server.num_asked += 1
        told = self.server.fingerprint
        self._say(404 if told is None else 200, {"fingerprint": told})

    def do_POST(self) -> None:
        self.server.num_asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        self._say(*self.server.answer)

    def _say(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def retriever(port: int = 0) -> Iterator[Retriever]:
    with Retriever(port) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@pytest.fixture(scope="module")
def tutor_url() -> Iterator[str]:
    with tutor() as url:
        yield url


@pytest.fixture
def desk(tmp_path: Path, tutor_url: str) -> Desk:
    desk = Desk(tmp_path)
    # The tutor searches for unknown facts.
    desk.write("questions.jsonl", {"question": "Who is the oldest of them?", "answer": "x"}, *QUESTIONS)
    return desk


def configure(desk: Desk, tutor_url: str, port: int) -> None:
    text = CONFIG.format(tutor=tutor_url, service=f"http://127.0.0.1:{port}")
    (desk.folder / "run.toml").write_text(text)


def test_run_is_locked_to_its_initial_index(desk: Desk, tutor_url: str) -> None:
    with retriever() as server:
        port = server.server_port
        configure(desk, tutor_url, port)
        desk.treadle("run", "run.toml", "--run", "r").succeeded()
        rows = desk.rows("r", "1/rollouts@tutor", "rollouts")
        assert any("<result>Title\nText</result>" in row["text"] for row in rows)
        server.fingerprint = "b" * 64
        refused = desk.treadle("run", "run.toml", "--run", "r")
        refused.failed("environment.search.service.fingerprint", "choose a new run id", code=2)
        forced = desk.treadle("stage", "1/rollouts@tutor", "--run", "r", "--force")
        forced.failed(f"127.0.0.1:{port} serves a different index", "start a new run", code=2)
        desk.treadle("run", "run.toml", "--run", "other").succeeded()
    digests = {row["environment_digest"] for run_id in ("r", "other")
               for row in desk.rows(run_id, "1/rollouts@tutor", "rollouts")}  # fmt: skip
    assert len(digests) == 2
    # A finished run needs no service, wherever the config comes from.
    for given in ((), ("run.toml",)):
        done = desk.treadle("run", *given, "--run", "r", "--json").succeeded()
        assert all(record["reused"] for record in done.json())


def test_unavailable_search_service_is_named_before_a_run_is_created(desk: Desk, tutor_url: str) -> None:
    with retriever() as server:
        port = server.server_port
    configure(desk, tutor_url, port)
    for command in (["run"], ["stage", "1/questions"]):
        failed = desk.treadle(*command, "run.toml", "--run", "r")
        failed.failed(f"http://127.0.0.1:{port}/search is not ready", "start it (`treadle retriever serve`)", code=1)
    assert not (desk.folder / "outputs").exists()


def test_dry_run_status_and_view_send_no_search(desk: Desk, tutor_url: str) -> None:
    with retriever() as server:
        configure(desk, tutor_url, server.server_port)
        planned = desk.treadle("run", "run.toml", "--run", "r", "--dry-run", "--json").succeeded().json()
        assert set(planned["plan"].values()) == {"run"} and server.num_asked == 0
        desk.treadle("run", "run.toml", "--run", "r").succeeded()
        asked = server.num_asked
        planned = desk.treadle("run", "run.toml", "--run", "r", "--dry-run", "--json").succeeded().json()
        assert set(planned["plan"].values()) == {"reuse"}
        desk.treadle("status", "--run", "r").succeeded()
        assert server.num_asked == asked


def test_service_without_an_index_fingerprint_is_used_with_a_warning(desk: Desk, tutor_url: str) -> None:
    with retriever() as server:
        server.fingerprint = None
        configure(desk, tutor_url, server.server_port)
        done = desk.treadle("run", "run.toml", "--run", "r").succeeded()
        assert "does not report which index it serves" in done.err
        server.fingerprint = "a" * 64
        desk.treadle("run", "run.toml", "--run", "r").failed("unknown", "choose a new run id", code=2)


def test_service_that_follows_the_guide_is_searched(desk: Desk, tutor_url: str) -> None:
    with retriever() as server:
        configure(desk, tutor_url, server.server_port)
        server.fingerprint = None
        server.answer = (200, [{"id": "1", "contents": "Title\nText"}])
        desk.treadle("run", "run.toml", "--run", "r").succeeded()
    rows = desk.rows("r", "1/rollouts@tutor", "rollouts")
    assert any("<result>Title\nText</result>" in row["text"] for row in rows)


@pytest.mark.parametrize("answer", [(200, {"hits": []}), (404, {}), (422, {"detail": "not like that"})])
def test_unusable_service_response_is_reported_before_a_run_is_created(
    desk: Desk, tutor_url: str, answer: tuple[int, object]
) -> None:
    with retriever() as server:
        configure(desk, tutor_url, server.server_port)
        server.fingerprint = None
        server.answer = answer
        said = desk.treadle("run", "run.toml", "--run", "r")
        said.failed(f"search service http://127.0.0.1:{server.server_port}/search: ", code=1)
    assert said.err.count("\n") == 1 and not (desk.folder / "outputs").exists()


def test_refused_search_stops_the_stage_with_one_line(desk: Desk, tutor_url: str) -> None:
    with retriever() as server:
        configure(desk, tutor_url, server.server_port)
        desk.treadle("stage", "1/questions", "run.toml", "--run", "r").succeeded()
        server.answer = (422, {"detail": "not like that"})
        desk.treadle("stage", "1/rollouts@tutor", "--run", "r").failed("HTTP 422", "not like that", code=1)


def test_service_key_stays_out_of_the_config(desk: Desk, tutor_url: str) -> None:
    configure(desk, tutor_url, 9)
    text = (desk.folder / "run.toml").read_text().replace('/127.0.0.1:9"', '/127.0.0.1:9", api_key_env = "PLAIN_NAME"')
    (desk.folder / "run.toml").write_text(text + '\n[report]\ntitle = "s3cret-value-7"\n')
    # A fingerprint that is given is not asked for.
    given = ("--set", f"environment.search.service.fingerprint={'a' * 64}")
    refused = desk.treadle("run", "run.toml", "--run", "r", *given, PLAIN_NAME="s3cret-value-7")
    line = refused.failed("PLAIN_NAME", code=2)
    assert "s3cret" not in line


def test_rejects_a_summarizer_that_is_not_a_model(desk: Desk, tutor_url: str) -> None:
    configure(desk, tutor_url, 9)
    refused = desk.treadle("run", "run.toml", "--run", "r", "--set", "environment.search.summarizer=helper")
    refused.failed("'helper'", "add [models.helper]", code=2)


def test_summarizer_gets_its_own_server_if_configured(desk: Desk, tutor_url: str) -> None:
    with retriever() as server:
        configure(desk, tutor_url, server.server_port)
        helper = 'models.helper={model="treadle-tutor-summarizer",server={type="tutor"}}'
        given = ("--set", helper, "--set", "environment.search.summarizer=helper")
        done = desk.treadle("run", "run.toml", "--run", "r", *given, "--json").succeeded()
    records = {record["address"]: record for record in done.json()}
    assert set(records) == {"1/questions", "1/rollouts@tutor", "1/scores@tutor", "1/report"}
    assert records["1/rollouts@tutor"]["metrics"]["summarizer_prompt_tokens"] > 0


def test_corpus_recall_is_reported_by_hop_and_errors_in_one_line(desk: Desk) -> None:
    desk.write("corpus.jsonl", {"id": "b1", "title": "Vorna", "text": "The book Vorna was written by Ilme."},
               {"id": "p1", "title": "Ilme", "text": "Ilme was a painter."},
               {"id": "l1", "title": "Tazpo", "text": "Lake Tazpo is deep."})  # fmt: skip
    desk.write("asked.jsonl", {"question": "Who painted and wrote Vorna?", "supports": ["b1", "p1"]},
               {"question": "How deep is Lake Tazpo?", "supports": ["l1"]},
               {"question": "How much is 2 plus 3?", "supports": []})  # fmt: skip
    cache = {"TREADLE_CACHE": str(desk.folder / "cache")}
    given = ("retriever", "eval", "--corpus", "corpus.jsonl", "--questions")
    told = desk.treadle(*given, "asked.jsonl", "--k", "3", "--k", "1", "--json", **cache).succeeded().json()
    assert (told["engine"], told["num_documents"], told["num_questions"], told["num_skipped"]) == ("bm25", 3, 2, 1)
    assert told["hops"] == [
        {"hop": 1, "num_questions": 2, "recall": {"1": 1.0, "3": 1.0}},
        {"hop": 2, "num_questions": 1, "recall": {"1": 0.0, "3": 0.0}},
    ]
    assert told["all_hops"] == {"1": 0.5, "3": 0.5}
    table = desk.treadle(*given, "asked.jsonl", "--k", "1", "--k", "3", **cache).succeeded().out.splitlines()
    assert table[0] == "bm25 over 3 documents; 2 questions, 1 skipped: they name no supporting documents"
    assert [line.split() for line in table[2:]] == [
        ["questions", "@1", "@3"], ["hop", "1", "2", "1.000", "1.000"], ["hop", "2", "1", "0.000", "0.000"],
        ["all", "hops", "2", "0.500", "0.500"],
    ]  # fmt: skip
    desk.write("wrong.jsonl", {"question": "Who?", "supports": ["b1", "p9"]})
    desk.treadle(*given, "wrong.jsonl", **cache).failed(
        "the corpus lacks 1 of the supporting documents", "'p9'", "use the corpus", code=2
    )
    # The questions are read before anything is built.
    desk.treadle(*given, "questions.jsonl", TREADLE_CACHE=str(desk.folder / "none")).failed(
        "questions.jsonl: no question names its supporting documents", "add `supports`", code=2
    )
    assert not (desk.folder / "none").exists()
