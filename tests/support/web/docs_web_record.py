"""Make a run `first` that has recorded a small web, for the page about the web. Run in the folder of the page."""

from __future__ import annotations

from pathlib import Path

from treadle.core.runs.run import Run
from treadle.web.keys import page_key, search_key
from treadle.web.record.stored_entries import packed
from treadle.web.types import PageEntry, SearchEntry, WebHit

WHEN = "2026-01-02T00:00:00+00:00"
QUERY, URL = "eiffel tower height", "https://example.org/tower"

if __name__ == "__main__":
    store = Run.create(Path("outputs"), "first", {}, {}).store("web")
    for entry in (
        SearchEntry(search_key(QUERY, "en"), QUERY, "en", "serper", (WebHit("Tower", URL, "330 metres"),), WHEN),
        PageEntry(page_key(URL), URL, WHEN, final_url=URL, title="Tower", text="It is 330 metres high."),
        PageEntry(page_key(URL + "/lost"), URL + "/lost", WHEN, failure="timeout", detail="20 s"),
    ):
        store.add(entry.key, packed(entry))
