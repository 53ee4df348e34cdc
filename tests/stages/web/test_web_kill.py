"""A run that searches the web is killed, resumed, exported and replayed by the commands of the product."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.runs.command_line import Desk, tutor
from support.runs.processes import kill_alone, until
from support.sweep import sampled
from support.web.web_rollouts import Everywhere, SmallWeb, recorded

from treadle.core.runs.run import Run
from treadle.demo.world_files import write_world
from treadle.web.types import PageEntry, SearchEntry

ADDRESS = "1/rollouts@tutor"
NUM_ROLLOUTS = 12
CONFIG = """
[models.tutor]
model = "treadle-tutor"
endpoints = [{{ url = "{url}" }}]

[questions]
sources = [{{ path = "lookups.jsonl", domain = "qa" }}]

[environment]
python.enabled = false
search.web = {web}

[rollouts]
max_questions = {num_rollouts}
max_concurrent = 3
pending_retries = 0
"""
PATHS = ("/a", "/b", "/c")


def set_up(folder: Path, url: str, web: SmallWeb) -> Desk:
    """Return a desk with questions whose answers are looked up; for each search the web has the same three pages."""
    desk = Desk(folder)
    world = write_world(folder / "world", documents=300, questions=80, heldout_questions=5)
    rows = [json.loads(line) for line in world.questions.read_bytes().splitlines()]
    desk.write("lookups.jsonl", *(row for row in rows if row["source"] == "world-lookup"))
    web.provider.answers = Everywhere([web.hit(path, f"Of {path}.") for path in PATHS])
    web.site.routes.update({path: f"<p>Of {path}. {'More is not known. ' * 40}</p>" for path in PATHS})
    table = (
        f'{{ provider = {{ type = "searxng", url = "{web.provider.origin}", retry_limit = 0 }}, '
        'fetch = { allowed_networks = ["127.0.0.0/8"], reader_processes = 1 } }'
    )
    (folder / "run.toml").write_text(CONFIG.format(url=url, web=table, num_rollouts=NUM_ROLLOUTS))
    return desk


def arrived(web: SmallWeb) -> Counter[str]:
    """Count the queries and pages that were asked for so far, answered or not."""
    return Counter([*(request.query["q"] for request in web.provider.requests), *web.site.paths])


def asked_for(run: Run) -> set[str]:
    """Return the queries and pages that a run has on record."""
    return {entry.query if isinstance(entry, SearchEntry) else urlsplit(entry.url).path for entry in recorded(run)}


def digest_of(desk: Desk, run_id: str) -> str:
    record = json.loads((desk.folder / f"outputs/runs/{run_id}/records/{ADDRESS}.json").read_text())
    return str(record["outputs"]["rollouts"]["digest"])


@pytest.mark.parametrize("held", sampled(["search", "page"], ["search"]))
def test_run_killed_during_a_search_repeats_no_request_and_replays_identically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))
    with SmallWeb({}) as web, tutor() as url:
        desk = set_up(tmp_path, url, web)
        run = ("run", "run.toml", "--set", 'flow.stages=["rollouts"]')
        server = web.provider if held == "search" else web.site
        path = "/search" if held == "search" else "/c"
        if held == "page":
            asked = server.hold(path)
        with desk.started(*run, "--run", "killed") as process:
            if held == "search":
                until(lambda: len(web.provider.asked) >= 5 or process.poll() is not None, "some searches")
                asked = server.hold(path)
            until(lambda: asked.is_set() or process.poll() is not None, "a request that is not answered")
            assert kill_alone(process) is not None, "the run ended before it was killed"
        before, on_record = arrived(web), asked_for(Run.open(desk.folder / "outputs", "killed"))
        server.release(path)
        desk.treadle("run", "--run", "killed").succeeded()
        after = arrived(web)
        again = {name for name, count in after.items() if count > 1}
        assert on_record and not on_record & again, "only what was on its way is asked for again"
        assert on_record <= before.keys() and all(before[name] for name in again) and len(after) > len(before)
        desk.treadle(*run, "--run", "calm").succeeded()
        assert digest_of(desk, "killed") == digest_of(desk, "calm")
        folder = desk.treadle("export", "web_record", "--run", "killed").succeeded().out.splitlines()[0]
    rows = desk.rows("calm", ADDRESS, "rollouts")
    assert len(rows) == NUM_ROLLOUTS and {row["status"] for row in rows} == {"answered"}
    if held == "page":
        replays(desk, folder, rows)


def test_processes_sharing_a_stage_see_one_consistent_web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))
    versions = itertools.count()
    with SmallWeb({}) as web, tutor() as url, ThreadPoolExecutor(1) as threads:
        desk = set_up(tmp_path, url, web)
        web.site.routes.update({path: lambda _: f"<p>Version {next(versions)}." for path in PATHS})
        patient = ("--set", "environment.search.web.page_timeout_s=300", "--set", "environment.search.timeout_s=600")
        run = ("run", "run.toml", "--set", 'flow.stages=["rollouts"]', "--set", "rollouts.shards=3", *patient)
        asked = web.site.hold("/b")
        with desk.started(*run, "--run", "shared") as process:
            until(lambda: asked.is_set() or process.poll() is not None, "a page that is not answered")
            helper = threads.submit(desk.treadle, "work", ADDRESS, "--run", "shared")
            # One process requests a page once, for all its callers.
            until(lambda: web.site.paths.count("/b") == 2 or helper.done(), "the same page for another process")
            web.site.release("/b")
            assert "processed here" in helper.result().succeeded().err
            assert desk.ended(process).code == 0
        folder = desk.treadle("export", "web_record", "--run", "shared").succeeded().out.splitlines()[0]
    rows = desk.rows("shared", ADDRESS, "rollouts")
    shown = [re.findall("Version ([0-9]+)", row["text"]) for row in rows]
    kept = [found for page in PATHS for found in re.findall("Version ([0-9]+)", _text_of(desk, "shared", page))]
    assert len(shown) == NUM_ROLLOUTS and len(set(kept)) == len(PATHS) < next(versions)
    assert all(found and found == kept * (len(found) // len(kept)) for found in shown), shown
    replays(desk, folder, rows)


def _text_of(desk: Desk, run_id: str, path: str) -> str:
    """Return the run's recorded text of the page at a path."""
    (page,) = [
        entry
        for entry in recorded(Run.open(desk.folder / "outputs", run_id))
        if isinstance(entry, PageEntry) and urlsplit(entry.url).path == path
    ]
    return page.text


def replays(desk: Desk, folder: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Check with provider and site down: two replays are the same bytes, and an unrecorded search stops the third."""
    replay = f'environment.search.web={{mode="replay",recorded_in="{folder}"}}'
    with tutor() as url:
        stages = ("--set", 'flow.stages=["rollouts"]', "--set", f'models.tutor.endpoints=[{{url="{url}"}}]')
        config = (desk.folder / "run.toml").read_text().splitlines()
        (desk.folder / "replay.toml").write_text("\n".join(line for line in config if "search.web" not in line))
        run = ("run", "replay.toml", *stages, "--set", replay)
        desk.treadle(*run, "--run", "one").succeeded()
        desk.treadle(*run, "--run", "two", "--set", "rollouts.shards=3").succeeded()
        assert digest_of(desk, "one") == digest_of(desk, "two")
        for row, replayed in zip(rows, desk.rows("one", ADDRESS, "rollouts"), strict=True):
            names = row.keys() - {"environment_digest", "job"}  # The key of a job has that digest in it.
            assert {name: row[name] for name in names} == {name: replayed[name] for name in names}
        more = ("--set", f"rollouts.max_questions={NUM_ROLLOUTS + 1}")
        said = desk.treadle(*run, "--run", "three", *more).failed("has no search for", "replay sends no request")
    assert folder in said and said.count("\n") == 0
