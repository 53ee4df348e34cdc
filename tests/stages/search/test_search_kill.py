"""Searching services and summarizers are killed under a run: nothing is lost, nothing paid twice, the same bytes."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.runs.command_line import TREADLE, Desk, environment, num_requests, tutor
from support.runs.processes import until

from treadle.demo.world_files import write_world

IN_FLIGHT = 4
CONFIG = """
[models.tutor]
model = "treadle-tutor"
endpoints = [{{ url = "{url}" }}]

[models.helper]
model = "treadle-tutor-summarizer"
endpoints = [{{ url = "{url}" }}]

[flow]
models = ["tutor"]

[questions]
sources = [{{ path = "lookups.jsonl", domain = "qa" }}]

[environment]
python.enabled = false

[environment.search]
top_n = 2
{search}

[rollouts]
max_questions = 36
max_concurrent = {in_flight}
pending_retries = 0

[scores]
symbolic = false
"""


@contextmanager
def retriever(folder: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield a process that serves the world's corpus, and its port, once its index is loaded."""
    command = [TREADLE, "retriever", "serve", "--corpus", "world/corpus.jsonl", "--port", str(port)]
    env = environment(TREADLE_CACHE=str(folder / "cache"))
    with subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = ""
            while "ready:" not in said:
                line = process.stderr.readline()
                assert line, said
                said += line
            found = re.search(r"http://127\.0\.0\.1:(\d+)", said)
            assert found is not None
            yield process, int(found[1])
        finally:
            process.kill()


def set_up(folder: Path, url: str, search: str) -> Desk:
    desk = Desk(folder)
    if not (folder / "world").exists():
        world = write_world(folder / "world", documents=300, questions=80, heldout_questions=5)
        rows = [json.loads(line) for line in world.questions.read_bytes().splitlines()]
        desk.write("lookups.jsonl", *(row for row in rows if row["source"] == "world-lookup"))
    (folder / "run.toml").write_text(CONFIG.format(url=url, search=search, in_flight=IN_FLIGHT))
    return desk


def at_services(*ports: int) -> str:
    endpoints = ", ".join(f'{{ url = "http://127.0.0.1:{port}" }}' for port in ports)
    return f"service = {{ endpoints = [{endpoints}], retry_limit = 1 }}"


def digest_of(desk: Desk, run_id: str) -> str:
    record = json.loads((desk.folder / f"outputs/runs/{run_id}/records/1/rollouts@tutor.json").read_text())
    return str(record["outputs"]["rollouts"]["digest"])


@pytest.mark.sweep
def test_killed_search_services_cost_no_rollout_and_change_no_byte(tmp_path: Path) -> None:
    with tutor("--latency-s", "0.08") as url:
        desk = set_up(tmp_path, url, "corpus = []")
        with retriever(tmp_path) as (first, port), retriever(tmp_path) as (second, other):
            desk = set_up(tmp_path, url, at_services(port, other))
            desk.treadle("run", "run.toml", "--run", "calm").succeeded()
            statuses = {row["status"] for row in desk.rows("calm", "1/rollouts@tutor", "rollouts")}
            assert statuses == {"answered"}

            def halfway(process: subprocess.Popen[bytes], before: int) -> None:
                until(lambda: num_requests(url) >= before + 30 or process.poll() is not None, "half of a run")
                assert process.poll() is None, "the run ended before anything was killed"

            before = num_requests(url)
            with desk.started("run", "run.toml", "--run", "one") as process:
                halfway(process, before)
                first.kill()
                desk.ended(process).succeeded()
            assert digest_of(desk, "one") == digest_of(desk, "calm")

            with retriever(tmp_path, port) as (first_again, _):
                before = num_requests(url)
                with desk.started("run", "run.toml", "--run", "both") as process:
                    halfway(process, before)
                    first_again.kill()
                    second.kill()
                    desk.ended(process).failed("rollouts could not be finished", "no search service answers", code=1)
        paid = num_requests(url)
        desk.treadle("run", "--run", "both").failed(f"127.0.0.1:{port}", "treadle retriever serve", code=1)
        assert num_requests(url) - paid <= 4, "only the preflight asks a model before the services are there"
        with retriever(tmp_path, port), retriever(tmp_path, other):
            desk.treadle("run", "run.toml", "--run", "both").succeeded()
        assert digest_of(desk, "both") == digest_of(desk, "calm")


def num_repeated(log: Path) -> int:
    """Return the number of repeated requests to the tutor, without those of the preflight, which have seed 0."""
    whole, _, _ = log.read_bytes().rpartition(b"\n")  # the last line may be in the middle of being written
    lines = map(json.loads, whole.splitlines())
    digests = [line["digest"] for line in lines if line["event"] == "arrived" and line["seed"]]
    return len(digests) - len(set(digests))


def test_killed_run_pays_each_summary_once_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    search = 'corpus = ["world/corpus.jsonl"]\ncache_folder = "cache"\nsummarizer = "helper"'
    log = tmp_path / "requests.jsonl"
    with tutor("--latency-s", "0.08", "--request-log", str(log)) as url:
        desk = set_up(tmp_path, url, search)
        with desk.started("run", "run.toml", "--run", "killed") as process:
            until(lambda: num_requests(url) >= 60 or process.poll() is not None, "half of a run")
            assert process.poll() is None, "the run ended before it was killed"
            process.kill()
        desk.treadle("run", "--run", "killed").succeeded()
        assert num_repeated(log) <= IN_FLIGHT, "each rollout in flight had one request on its way"
        desk.treadle("run", "run.toml", "--run", "calm").succeeded()
    assert digest_of(desk, "killed") == digest_of(desk, "calm")
    rows = desk.rows("killed", "1/rollouts@tutor", "rollouts")
    results = [
        segment["text"] for row in rows for segment in json.loads(row["segments"]) if segment["kind"] == "result"
    ]
    assert len(results) >= len(rows) and not any("\n" in text or "Document 1" in text for text in results)
    record = json.loads((desk.folder / "outputs/runs/killed/records/1/rollouts@tutor.json").read_text())
    told = record["metrics"]
    assert told["status_answered"] == len(rows)
    assert told["summarizer_prompt_tokens"] > told["summarizer_completion_tokens"] > len(results)


def test_prebuilt_index_is_found_by_the_run(tmp_path: Path) -> None:
    with tutor() as url:
        desk = set_up(tmp_path, url, 'corpus = ["world/corpus.jsonl"]\ncache_folder = "cache"')
        desk.treadle("stage", "1/index", "run.toml", "--run", "r").succeeded()
        (made,) = (tmp_path / "cache").glob("*/index.json")
        before = made.stat()
        desk.treadle("run", "run.toml", "--run", "r").succeeded()
        (found,) = (tmp_path / "cache").glob("*/index.json")
        assert (found.stat().st_ino, found.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    (row,) = desk.rows("r", "1/index", "indexes")
    assert row["engine"] == "bm25" and row["num_documents"] == 300
