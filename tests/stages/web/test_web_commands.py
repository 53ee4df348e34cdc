"""Web records on the command line: exported from a run, imported from caches of other programs, inspected."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.runs.command_line import QUESTIONS, Desk, Done, set_up, tutor
from support.servers.object_server import ObjectServer
from support.servers.web_servers import Page, Request, Site
from support.web.web_rollouts import Everywhere, SmallWeb

from treadle.core.runs.run import Run
from treadle.web.keys import page_key, search_key
from treadle.web.record.folder import open_record
from treadle.web.record.stored_entries import packed
from treadle.web.types import Entry, PageEntry, SearchEntry, WebHit

QUERY = "eiffel tower height"
URL = "https://example.org/tower"
HIT = WebHit("Tower \x1b[2J", URL, "330\u202e metres")
SEARCH = SearchEntry(search_key(QUERY, "en"), QUERY, "en", "serper", (HIT,), "2026-01-02T00:00:00+00:00")
NOTHING = SearchEntry(search_key("x", "en"), "x", "en", "serper", (), "2026-01-03T00:00:00+00:00")
PAGE = PageEntry(
    page_key(URL), URL, "2026-01-02T00:00:01+00:00", final_url=URL, title="Tower", text="One.\nTwo \x1b[31m.",
    media_type="text/html", reader="resiliparse 2.0.1/1",
)  # fmt: skip
LOST = PageEntry(
    page_key("https://example.org/\x1b"), "https://example.org/\x1b", "2026-01-02T00:00:02+00:00",
    failure="timeout", detail="20 s\nforged: line",
)  # fmt: skip
ENTRIES: tuple[Entry, ...] = (SEARCH, NOTHING, PAGE, LOST)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Make a desk with a run `r` that has recorded a small web, and a run `empty` that has not."""
    desk = Desk(tmp_path)
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))
    for name, entries in (("r", ENTRIES), ("empty", ())):
        store = Run.create(tmp_path / "outputs", name, {}, {}).store("web")
        for entry in entries:
            store.add(entry.key, packed(entry))
    return desk


def treadle(desk: Desk, *arguments: str, cache: str = "cache") -> Done:
    return desk.treadle(*arguments, TREADLE_CACHE=str(desk.folder / cache))


def command(desk: Desk, *arguments: str, cache: str = "cache") -> object:
    return treadle(desk, *arguments, "--json", cache=cache).succeeded().json()


def test_web_record_of_a_run_is_exported_as_a_browsable_artifact(desk: Desk) -> None:
    done = treadle(desk, "export", "web_record", "--run", "r").succeeded()
    folder = done.out.splitlines()[0]
    assert folder.startswith(str(desk.folder / "outputs/artifacts/web_record/"))
    assert "searches          2  2 of serper, 1 without a hit" in done.out
    assert "pages             2  1 read, 1 timeout" in done.out
    again = command(desk, "export", "web_record", "--run", "r")
    assert isinstance(again, dict) and (again["folder"], again["num_searches"]) == (folder, 2)
    record = open_record(folder)
    assert [entry for entry, _ in record.entries()] == sorted(ENTRIES, key=lambda entry: entry.key)
    record.close()
    assert command(desk, "web", "show", folder) == {
        "place": folder, "num_searches": 2, "num_pages": 2, "providers": {"serper": 2}, "empty": 1, "refused": 0,
        "failures": {"timeout": 1}, "read": 1, "oldest": "2026-01-02T00:00:00+00:00",
        "newest": "2026-01-03T00:00:00+00:00", "num_bytes": sum(len(entry.to_json()) for entry in ENTRIES),
    }  # fmt: skip


@pytest.mark.parametrize("where", ["run", "folder"])
def test_entries_are_shown_and_cannot_drive_a_terminal(desk: Desk, where: str) -> None:
    place = ["--run", "r"]
    if where == "folder":
        exported = command(desk, "export", "web_record", "--run", "r")
        assert isinstance(exported, dict)
        place = [exported["folder"]]
    shown = treadle(desk, "web", "show", *place, "--query", f"  {QUERY} ").succeeded().out
    assert "1. Tower \\x1b[2J" in shown and URL in shown and "serper" in shown
    page = treadle(desk, "web", "show", *place, "--url", f"{URL}#top").succeeded().out
    assert "One.\nTwo \\x1b[31m." in page
    lost = treadle(desk, "web", "show", *place, "--failures").succeeded().out
    assert lost.splitlines() == ["timeout     https://example.org/\\x1b  20 s forged: line"]
    counts = treadle(desk, "web", "show", *place).succeeded().out
    for text in (shown, page, lost, counts):
        assert "\x1b" not in text and "\u202e" not in text
    found = command(desk, "web", "show", *place, "--query", QUERY)
    assert isinstance(found, dict) and found["hits"][0]["snippet"] == HIT.snippet
    assert command(desk, "web", "show", *place, "--key", SEARCH.key) == found


def test_record_entries_used_by_a_run_are_shown_for_the_run(desk: Desk) -> None:
    desk.write("cache.json", {"Paris population": "2.1 million"})
    folders = [
        treadle(desk, *made).succeeded().out.splitlines()[0]
        for made in (("export", "web_record", "--run", "r"), ("import", "web_cache", "cache.json"))
    ]
    for name, folder in zip(("again", "imported"), folders, strict=True):
        config = {"environment": {"search": {"web": {"mode": "replay", "recorded_in": folder}}}}
        Run.create(desk.folder / "outputs", name, config, {})
        shown = treadle(desk, "web", "show", "--run", name).succeeded().out
        assert "searches          0" in shown and f"a record: treadle web show {folder}\n" in shown
        facts = command(desk, "web", "show", "--run", name)
        assert isinstance(facts, dict) and facts["record"] == folder and facts["num_searches"] == 0
        failures = treadle(desk, "web", "show", "--run", name, "--failures").succeeded()
        assert failures.out == "" and f"treadle web show {folder}\n" in failures.err
        missing = treadle(desk, "web", "show", "--run", name, "--query", "other")
        missing.failed("has no search for 'other', nor has the record", folder, code=2)
    again = ("web", "show", "--run", "again")
    for asked in (("--query", QUERY), ("--url", URL), ("--key", PAGE.key)):
        assert command(desk, *again, *asked) == command(desk, "web", "show", folders[0], *asked)
    assert "2.1 million" in treadle(desk, "web", "show", "--run", "imported", "--query", "paris POPULATION?").out


def test_missing_web_record_entries_are_reported_in_one_line(desk: Desk) -> None:
    treadle(desk, "web", "show", "--run", "r", "--query", "\x1bother").failed("has no search for", code=2)
    treadle(desk, "web", "show", "--run", "r", "--url", "https://example.org/other").failed("has no page", code=2)
    treadle(desk, "web", "show", "--run", "r", "--url", "file:///etc/passwd").failed("is not a page address", code=2)
    treadle(desk, "web", "show", "--run", "r", "--key", "0" * 32).failed("has no entry 0000", code=2)
    treadle(desk, "web", "show", "--run", "r", "--key", "../\x1b[2J").failed("is not the key of an entry", code=2)
    treadle(desk, "web", "show", "--run", "nobody").failed("there is no run nobody", code=2)
    treadle(desk, "web", "show", "outputs").failed("is no web record", "treadle export web_record", code=1)
    treadle(desk, "web", "show").failed("--run", code=2)
    treadle(desk, "web", "show", "--run", "r", "--failures", "--query", "x").failed("one of", code=2)
    treadle(desk, "export", "web_record", "--run", "empty").failed("has no web record", code=1)
    assert not (desk.folder / "outputs/artifacts").exists()


def test_damaged_entry_is_named_and_nothing_is_exported(desk: Desk) -> None:
    (path,) = (desk.folder / "outputs/runs/r/store/web").rglob(SEARCH.key)
    path.write_bytes(b"1damaged")
    treadle(desk, "export", "web_record", "--run", "r").failed(SEARCH.key, "is damaged", code=1)
    treadle(desk, "verify", "--run", "empty").succeeded()
    found = treadle(desk, "verify", "--run", "r")
    assert "damaged  runs/r/store/web" in found.out
    found.failed(SEARCH.key, "is damaged", "remove it", code=1)
    path.write_bytes(packed(SEARCH))
    assert treadle(desk, "verify", "--run", "r").succeeded().out == "ok       runs/r/store/web\n"
    assert not list((desk.folder / "outputs/artifacts/web_record").iterdir())


def test_foreign_caches_become_a_record_searchable_by_words(desk: Desk) -> None:
    hits = [{"title": "Seine", "link": "https://example.org/seine", "snippet": "775 km"}]
    cache = {
        "how long is the seine": {"organic": hits},
        "who built it": "Gustave Eiffel",
        "bad\x1b[2J": None,
        QUERY: "mine",
    }
    (desk.folder / "one.json").write_text(json.dumps(cache))
    (desk.folder / "two.json").write_text(json.dumps({"who built it": "somebody else"}))
    exported = command(desk, "export", "web_record", "--run", "r")
    assert isinstance(exported, dict)
    files = ("one.json", "two.json", "--recorded-at", "2025-11-03")
    arguments = ("import", "web_cache", *files, "--with", exported["folder"])
    done = treadle(desk, *arguments).succeeded()
    assert "1 left out: its result is of an unknown form" in done.err and "one.json, 'bad[2J'" in done.err
    assert "2 of them were already known" in done.err and "\x1b" not in done.err
    made = command(desk, *arguments)
    assert isinstance(made, dict) and made["folder"] == done.out.splitlines()[0]
    assert made["providers"] == {"serper": 2, "import": 2} and made["num_pages"] == 2 and made["num_repeated"] == 2
    found = command(desk, "web", "show", made["folder"], "--query", "How long is the Seine?")
    assert isinstance(found, dict) and found["hits"][0]["title"] == "Seine"
    assert found["recorded_at"] == "2025-11-03T00:00:00+00:00"
    text = command(desk, "web", "show", made["folder"], "--query", "Who built it")
    assert isinstance(text, dict) and text["text"] == "Gustave Eiffel"
    kept = command(desk, "web", "show", made["folder"], "--query", QUERY)
    assert isinstance(kept, dict) and kept["provider"] == "serper"


def test_import_without_usable_entries_fails_in_one_line(desk: Desk) -> None:
    (desk.folder / "bad.json").write_text('{"q": null}')
    treadle(desk, "import", "web_cache", "bad.json").failed("bad.json", "unknown form", code=2)
    treadle(desk, "import", "web_cache", "none.json").failed("none.json", code=1)
    treadle(desk, "import", "web_cache", "bad.json", "--recorded-at", "yesterday").failed("recorded-at", code=2)
    assert not (desk.folder / "outputs/artifacts").exists()


def test_records_are_uploaded_to_and_read_from_an_object_store(
    desk: Desk, objects: ObjectServer, object_root: str
) -> None:
    store = Run.create(object_root, "r", {}, {}).store("web")
    for entry in ENTRIES:
        store.add(entry.key, packed(entry))
    made = command(desk, "export", "web_record", "--run", "r", "--root", object_root)
    here = command(desk, "export", "web_record", "--run", "r")
    assert isinstance(made, dict) and isinstance(here, dict)
    assert made["folder"].startswith(object_root) and made["digest"] == here["digest"]
    shown = command(desk, "web", "show", made["folder"], "--url", URL, cache="another")
    assert isinstance(shown, dict) and shown["text"] == PAGE.text


def test_search_key_in_a_config_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    desk = set_up(tmp_path / "desk", "http://127.0.0.1:9/v1")
    config = (desk.folder / "run.toml").read_text().replace("search.enabled = false", "")
    table = '[environment.search.web]\nprovider = { type = "serper", api_key_envs = ["SEARCH_ONE"] }\n'
    (desk.folder / "run.toml").write_text(f"{config}\n{table}# found-in-a-mail-0001\n")
    done = desk.treadle("run", "run.toml", "--run", "r", SEARCH_ONE="found-in-a-mail-0001")
    assert "found-in-a-mail" not in done.failed("SEARCH_ONE", "configuration holds the value", code=2)
    assert not (desk.folder / "outputs/runs/r").exists()


def test_missing_search_key_is_reported_before_any_work(tmp_path: Path) -> None:
    desk = set_up(tmp_path / "desk", "http://127.0.0.1:9/v1")
    config = (desk.folder / "run.toml").read_text().replace("search.enabled = false", "")
    (desk.folder / "run.toml").write_text(config + PROVIDER % "http://127.0.0.1:9/search")
    wanted = "environment variable SEARCH_ONE is not set"
    desk.treadle("run", "run.toml", "--run", "r").failed(wanted, code=2)
    assert not (desk.folder / "outputs/runs/r").exists()
    assert wanted in desk.treadle("run", "run.toml", "--run", "r", "--dry-run").succeeded().err


KEY_VALUE = "found-in-a-mail-0001"
PROVIDER = """
[environment.search.web]
provider = { type = "serper", url = "%s", api_key_envs = ["SEARCH_ONE"] }
fetch = { allowed_networks = ["127.0.0.0/8"], reader_processes = 1 }
"""
REPLAY = """
[environment.search.web]
mode = "replay"
recorded_in = "%s"
"""


def test_recorded_run_is_replayed_offline_by_another_and_no_key_is_stored(tmp_path: Path) -> None:
    with tutor() as url, Site({"/page": "<p>Anna is the oldest of them.</p>"}) as site:
        desk = set_up(tmp_path / "desk", url)
        desk.write("questions.jsonl", {"question": "Who is the oldest of them?", "answer": "x"}, QUESTIONS[0])
        config = (desk.folder / "run.toml").read_text().replace("search.enabled = false", "")
        hit = {"title": "Anna", "link": site.url("/page"), "snippet": "oldest"}
        asked: list[Request] = []

        def search(request: Request) -> Page:
            asked.append(request)
            return Page(json.dumps({"searchParameters": {}, "organic": [hit]}), media_type="application/json")

        site.routes["/search"] = search
        (desk.folder / "run.toml").write_text(config + PROVIDER % site.url("/search"))
        run = ("run", "run.toml", "--run")
        made = desk.treadle(*run, "first", SEARCH_ONE=KEY_VALUE, TREADLE_CACHE=str(tmp_path / "cache")).succeeded()
        rows = desk.rows("first", "1/rollouts@tutor", "rollouts")
        assert asked and asked[0].headers["x-api-key"] == KEY_VALUE
        assert any("Anna is the oldest of them." in row["text"] for row in rows)
        folder = treadle(desk, "export", "web_record", "--run", "first").succeeded().out.splitlines()[0]
        num_asked, address = len(site.requests), site.url("/page")
        (desk.folder / "run.toml").write_text(config + REPLAY % Path(folder).relative_to(desk.folder))
        treadle(desk, *run, "second").succeeded()
        again = desk.rows("second", "1/rollouts@tutor", "rollouts")
        assert [row["text"] for row in again] == [row["text"] for row in rows] and len(site.requests) == num_asked
        desk.write("questions.jsonl", {"question": "Who is the youngest of them all?", "answer": "x"})
        missed = treadle(desk, *run, "third")
        missed.failed(f"the web record {folder} has no search for", "export web_record", code=1)
        assert len(site.requests) == num_asked
    searched = next(row for row in again if "Anna is the oldest" in row["text"])
    (page,) = (key for call in json.loads(searched["tool_calls"]) for key in call["sources"][1:])
    elsewhere = Desk(tmp_path)  # the config of `second` named its record relative to its working directory
    root = ("--root", str(desk.folder / "outputs"))
    for name in ("first", "second"):
        shown = treadle(elsewhere, "web", "show", "--run", name, "--key", page, *root).succeeded().out
        assert "Anna is the oldest of them." in shown and address in shown
        panel = treadle(elsewhere, "show", searched["rollout_key"], "--run", name, *root).succeeded().out
        assert f"search: ok\n  {address}\n" in _plain(panel)
    assert f"ok       {folder}\n" in treadle(elsewhere, "verify", "--run", "second", *root).succeeded().out
    moved = desk.folder / "moved"
    (desk.folder / "run.toml").write_text(config + REPLAY % (desk.folder / "none"))
    treadle(desk, *run, "second").failed("no such folder", "--set environment.search.web.recorded_in=", code=1)
    shutil.copytree(folder, moved)
    treadle(desk, *run, "second", "--set", f'environment.search.web.recorded_in="{moved}"', "--dry-run").succeeded()
    (part,) = moved.glob("*.parquet")
    part.unlink()
    treadle(desk, "web", "show", str(moved), cache="new").failed("is missing: copy the whole folder", code=1)
    (part,) = Path(folder).glob("*.parquet")
    part.write_bytes(part.read_bytes() + b"x")
    treadle(desk, "verify", "--run", "second").failed(folder, "data/part-00000.parquet has changed", code=1)
    kept = [path for path in (tmp_path / "desk").rglob("*") if path.is_file()]
    assert len(kept) > 20 and not [path for path in kept if KEY_VALUE.encode() in path.read_bytes()]
    assert KEY_VALUE not in made.out + made.err


def test_finished_run_stays_finished_after_its_initial_record_vanishes(tmp_path: Path) -> None:
    with tutor() as url, SmallWeb({}) as web:
        desk = set_up(tmp_path / "desk", url)
        desk.write("questions.jsonl", {"question": "Who is the oldest of them?", "answer": "x"})
        web.site.routes["/page"] = "<p>Anna is the oldest of them.</p>"
        web.provider.answers = Everywhere([web.hit("/page", "oldest")])
        config = (desk.folder / "run.toml").read_text().replace("search.enabled = false", "search.web = { %s }")
        table = (
            f'provider = {{ type = "searxng", url = "{web.provider.origin}" }}, '
            'fetch = { allowed_networks = ["127.0.0.0/8"], reader_processes = 1 }'
        )
        (desk.folder / "run.toml").write_text(config % table)
        run = ("run", "run.toml", "--run")
        treadle(desk, *run, "first").succeeded()
        folder = Path(treadle(desk, "export", "web_record", "--run", "first").succeeded().out.splitlines()[0])
        (desk.folder / "run.toml").write_text(config % f'{table}, recorded_in = "{folder}"')
        num_asked = web.num_asked
        treadle(desk, *run, "second").succeeded()
        assert num_asked and web.num_asked == num_asked
        folder.rename(tmp_path / "elsewhere")
        lines = treadle(desk, *run, "second").succeeded().out.splitlines()
        assert lines and all("reused" in line for line in lines if line.startswith("1/"))
        gone = f"there is no web record at {folder}: no such folder; if it was moved"
        for again in (("second", "--force"), ("third",)):
            treadle(desk, *run, *again).failed(gone, code=1)
            assert f"warning: {gone}" in treadle(desk, *run, *again, "--dry-run").succeeded().err
        assert not (desk.folder / "outputs/runs/third").exists() and web.num_asked == num_asked


def _plain(panel: str) -> str:
    """Return the text in a panel, without its frame."""
    return "".join(line.strip("│").rstrip()[1:] + "\n" for line in panel.splitlines())
