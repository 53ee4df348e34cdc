"""Define `treadle web`, which inspects recorded web searches and pages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treadle.cli.options import RootType, json_option, root_option
from treadle.core.untrusted.sanitize import one_line, sanitize, sanitized_json

if TYPE_CHECKING:
    from treadle.web.record.facts import RecordFacts
    from treadle.web.types import Entry


@click.group(
    short_help="Inspect recorded web searches and pages.",
    epilog="Example:  treadle web show --run first",
)
def web() -> None:
    """Inspect recorded web searches and pages."""


@dataclass(frozen=True)
class _Source:
    """Source of entries: a web record, or the store of a run.

    Attributes:
        record: Record that a run also takes entries from. `get` and `loose` search it too, `entries` does not.
    """

    place: str
    get: Callable[[str], Entry | None]
    loose: Callable[[str], Entry | None]
    entries: Callable[[], Iterator[Entry]]
    record: str = ""

    @property
    def hint(self) -> str:
        """Hint on where more entries may be."""
        return f"this run also replays a record: treadle web show {self.record}" if self.record else ""


@web.command(
    "show",
    short_help="Counts of a record, or one of its entries.",
    epilog='Example:  treadle web show outputs/artifacts/web_record/0f3a5c7e9b1d2468 --query "eiffel tower height"',
)
@click.argument("folder", required=False, type=RootType())
@click.option("-r", "--run", "run_id", help="Show the record of this run instead of a folder.")
@click.option("--query", help="Show the search for this query.")
@click.option("--url", help="Show the page with this address.")
@click.option("--key", help="Show the entry with this key, as the sources of a call name it.")
@click.option("--failures", is_flag=True, help="List failed pages and refused queries.")
@root_option
@json_option
def show(
    folder: str | Path | None,
    run_id: str | None,
    query: str | None,
    url: str | None,
    key: str | None,
    failures: bool,
    root: str | Path,
    as_json: bool,
) -> None:
    """Show what FOLDER, a `web_record` artifact, or a run has recorded: counts, or a search or page in full.

    Searches are found by the exact query that the agent wrote; letter case and punctuation matter. Imported searches
    are also found by their words alone.
    """
    if (folder is None) == (run_id is None):
        raise click.UsageError("give either the folder of a record or --run")
    if sum((query is not None, url is not None, key is not None, failures)) > 1:
        raise click.UsageError("give one of --query, --url, --key and --failures")
    with _opened(folder, run_id, root) as source:
        if failures:
            _show_failures(source, as_json)
        elif (key, query, url) == (None, None, None):
            _show_facts(source, as_json)
        else:
            _show_entry(_wanted(source, key, query, url), as_json)


@contextlib.contextmanager
def _opened(folder: str | Path | None, run_id: str | None, root: str | Path) -> Iterator[_Source]:
    from treadle.core.runs.run import Run
    from treadle.core.store.roots import open_storage
    from treadle.web.record.folder import open_record
    from treadle.web.record.run_entries import RunEntries, recorded_in
    from treadle.web.record.stored_entries import WEB_STORE, entries_of

    if folder is not None:
        record = open_record(folder)
        with contextlib.closing(record):
            yield _Source(record.location, record.get, record.loose, lambda: (entry for entry, _ in record.entries()))
        return
    assert run_id is not None
    run = Run.open(root, run_id)
    store = run.store(WEB_STORE)

    taken_from = recorded_in(run)
    with RunEntries(run) as met:
        place = ", ".join(open_storage(place).location() for place in taken_from)
        yield _Source(store.location(), met.get, met.loose, lambda: entries_of(store), place)


def _wanted(source: _Source, key: str | None, query: str | None, url: str | None) -> Entry:
    """Return the entry with this key, of this query or of the page at this URL; raise DataError if there is none."""
    from treadle.core.errors import DataError
    from treadle.web.keys import loose_key, page_key, search_key
    from treadle.web.pages.passages import clean_line, language_of
    from treadle.web.record.run_entries import checked_key
    from treadle.web.types import Unfetchable
    from treadle.web.urls import checked_url

    if key is not None:
        entry, what = source.get(checked_key(key)), f"entry {key}"
    elif query is not None:
        asked = clean_line(query)
        entry = source.get(search_key(asked, language_of(asked))) or source.loose(loose_key(asked))
        what = f"search for {query!r}"
    else:
        try:
            entry = source.get(page_key(str(checked_url(url or ""))))
        except Unfetchable as error:
            raise DataError(f"{url!r} is not a page address: {error.detail}") from None
        what = f"page {url!r}"
    if entry is None:
        raise DataError(
            f"{source.place} has no {what}" + (f", nor has the record {source.record}" if source.record else "")
        )
    return entry


def _show_entry(entry: Entry, as_json: bool) -> None:
    values = {name: value for name, value in asdict(entry).items() if value not in ("", None)}
    if as_json:
        click.echo(sanitized_json(values))
        return
    text, hits = values.pop("text", ""), values.pop("hits", ())
    for name, value in values.items():
        click.echo(f"{name:<12}{one_line(str(value))}")
    for number, hit in enumerate(hits, 1):
        click.echo(f"\n{number}. {one_line(hit['title'])}\n   {one_line(hit['url'])}\n   {one_line(hit['snippet'])}")
    if text:
        click.echo(f"\n{sanitize(text)}")


def _show_failures(source: _Source, as_json: bool) -> None:
    from treadle.web.types import PageEntry

    failed = (entry for entry in source.entries() if entry.failure is not None)
    told = (
        {
            "failure": entry.failure,
            **({"url": entry.url} if isinstance(entry, PageEntry) else {"query": entry.query}),
            "detail": entry.detail,
            "recorded_at": entry.recorded_at,
        }
        for entry in failed
    )
    if as_json:
        click.echo(sanitized_json(list(told)))
        return
    if source.hint:
        click.echo(sanitize(source.hint), err=True)
    for one in told:
        what = one.get("url") or one.get("query") or ""
        click.echo(f"{one['failure']:<12}{one_line(what)}  {one_line(str(one['detail']))}")


def _show_facts(source: _Source, as_json: bool) -> None:
    from treadle.web.record.facts import facts_of

    facts = facts_of(source.entries())
    if as_json:
        known = {"place": source.place, **({"record": source.record} if source.record else {})}
        click.echo(sanitized_json({**known, **_facts_json(facts)}))
        return
    click.echo(sanitize(source.place))
    for line in (*_facts_lines(facts), *([sanitize(source.hint)] if source.hint else [])):
        click.echo(line)


def print_record(folder: str, digest: str, facts: RecordFacts, as_json: bool, **more: Any) -> None:
    """Print a record's folder, its digest and its counts."""
    if as_json:
        click.echo(sanitized_json({"folder": folder, "digest": digest, **_facts_json(facts), **more}))
        return
    click.echo(sanitize(folder))
    for line in _facts_lines(facts):
        click.echo(line)


def _facts_json(facts: RecordFacts) -> dict[str, Any]:
    """Return the counts for JSON output."""
    return {"num_searches": facts.num_searches, "num_pages": facts.num_pages, **vars(facts)}


def _facts_lines(facts: RecordFacts) -> list[str]:
    """Return the counts as lines of text."""
    searches = [
        f"{number:,} of {one_line(name) or 'an unnamed provider'}" for name, number in facts.providers.most_common()
    ]
    searches += [f"{facts.empty:,} without a hit"] if facts.empty else []
    searches += [f"{facts.refused:,} refused"] if facts.refused else []
    pages = [f"{facts.read:,} read"] if facts.read else []
    pages += [f"{number:,} {one_line(name)}" for name, number in facts.failures.most_common()]
    lines = [
        f"searches  {facts.num_searches:>9,}  {', '.join(searches)}".rstrip(),
        f"pages     {facts.num_pages:>9,}  {', '.join(pages)}".rstrip(),
    ]
    if facts.oldest:
        lines.append(f"recorded  from {one_line(facts.oldest)} to {one_line(facts.newest)}")
    lines.append(f"size      {facts.num_bytes / 1024:,.0f} KiB as JSON")
    return lines
