"""Commands around search: `treadle retriever build`, `search` and `serve`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treadle.core.errors import ConfigError
from treadle.core.harmless import harmless, harmless_json
from treadle.flows.options import json_option, say

if TYPE_CHECKING:
    from treadle.retriever.config import IndexSettings
    from treadle.retriever.index import Index
    from treadle.retriever.service.config import RetrieverConfig

_SHOWN_CHARS = 300


@click.group(
    short_help="Search over a corpus: build, ask, serve.",
    epilog="Example:  treadle retriever serve --corpus wiki.jsonl",
)
def retriever() -> None:
    """Build an index of a corpus, ask it, or serve it over HTTP.

    A corpus is one or more files of documents: .jsonl, .json or .parquet with {id, contents} or {id, title, text}.
    """


def _index_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which index is meant."""
    options = (
        click.option("--config", "files", type=click.Path(path_type=Path), multiple=True, help="TOML file, [index]."),
        click.option("--corpus", type=click.Path(path_type=Path), multiple=True, help="File of documents; repeatable."),
        click.option("--engine", type=click.Choice(["bm25", "dense", "hybrid"]), help="How documents are ranked."),
        click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="As index.dense.type=hnsw."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _configured(
    files: tuple[Path, ...],
    corpus: tuple[Path, ...],
    engine: str | None,
    overrides: tuple[str, ...],
    service: dict[str, Any] | None = None,
) -> RetrieverConfig:
    from treadle.core.config import load_config
    from treadle.retriever.service.config import RetrieverConfig

    index: dict[str, Any] = {"corpus": [str(path) for path in corpus]} if corpus else {}
    if engine is not None:
        index["engine"] = engine
    given = {name: value for name, value in (service or {}).items() if value is not None}
    config = load_config(RetrieverConfig, files, overrides, data={"index": index, "service": given})
    if not config.index.corpus and config.index.index_folder is None:
        raise ConfigError("no corpus is given; name a file of documents with --corpus, or index.index_folder")
    return config


def _open(settings: IndexSettings) -> Index:
    """The index, with progress on standard error while it is built."""
    from treadle.flows.terminal import TerminalProgress
    from treadle.retriever.opening import open_index

    with TerminalProgress("index") as progress:
        shown: dict[str, int] = {}

        def report(what: str, done: int, total: int | None) -> None:
            if what not in shown:
                progress.start(total or 0, 0, what)
            progress.advance(done - shown.get(what, 0))
            shown[what] = done

        return open_index(settings, report)


@retriever.command(epilog="Example:  treadle retriever build --corpus wiki.jsonl --engine hybrid")
@_index_options
@json_option
def build(
    files: tuple[Path, ...], corpus: tuple[Path, ...], engine: str | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Build an index, or find it in the cache, and say what it is."""
    with _open(_configured(files, corpus, engine, overrides).index) as index:
        info = index.info
        facts = {
            "folder": str(index.folder),
            "engine": info.engine,
            "encoder": info.encoder,
            "num_documents": info.num_documents,
            "num_bytes": info.num_bytes,
            "fingerprint": info.fingerprint,
        }
    if as_json:
        click.echo(harmless_json(facts))
        return
    for name, value in facts.items():
        if value is not None:
            click.echo(f"{name:<14} {harmless(str(value))}")


@retriever.command(epilog='Example:  treadle retriever search --corpus wiki.jsonl "tallest tower" --top-n 3')
@click.argument("query")
@_index_options
@click.option("--top-n", type=click.IntRange(min=1), default=4, show_default=True, help="Documents.")
@json_option
def search(
    query: str,
    files: tuple[Path, ...],
    corpus: tuple[Path, ...],
    engine: str | None,
    overrides: tuple[str, ...],
    top_n: int,
    as_json: bool,
) -> None:
    """Ask an index one QUERY."""
    if not query.strip():
        raise ConfigError("the query is empty")
    with _open(_configured(files, corpus, engine, overrides).index) as index:
        hits = index.search(query, top_n)
    if as_json:
        click.echo(harmless_json([{"id": hit.id, "score": hit.score, "contents": hit.contents} for hit in hits]))
        return
    for hit in hits:
        shown = hit.text[:_SHOWN_CHARS] + ("..." if len(hit.text) > _SHOWN_CHARS else "")
        click.echo(f"{hit.score:8.3f}  {harmless(hit.id)}  {harmless(hit.title)}\n          {harmless(shown)}")
    if not hits:
        click.echo("no documents were found")


@retriever.command(epilog="Example:  treadle retriever serve --corpus wiki.jsonl --port 1243")
@_index_options
@click.option("--host", help="Address to listen on; others than loopback need --token-env. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="0 takes a free one. [default: 1243]")
@click.option("--token-env", metavar="NAME", help="Environment variable with the token that callers must send.")
@click.option("--workers", "num_workers", type=click.IntRange(min=1), help="Searches at once. [default: 2]")
def serve(
    files: tuple[Path, ...],
    corpus: tuple[Path, ...],
    engine: str | None,
    overrides: tuple[str, ...],
    host: str | None,
    port: int | None,
    token_env: str | None,
    num_workers: int | None,
) -> None:
    """Serve an index over HTTP until Ctrl-C: /search, /batch_search, /health, /info, /metrics, /docs."""
    try:
        from treadle.retriever.service.server import serve as serve_index
    except ImportError as error:
        raise ConfigError(
            f"the service needs the package {error.name}; install treadle with its extra retriever-service"
        ) from None
    given = {"host": host, "port": port, "token_env": token_env, "num_workers": num_workers}
    config = _configured(files, corpus, engine, overrides, given)

    def opened() -> Index:
        index = _open(config.index)
        say(f"ready: {index.num_documents} documents ({index.info.engine}), fingerprint {index.info.fingerprint[:12]}")
        return index

    # To stop a service is its ordinary end; what was in flight has been answered by then.
    with contextlib.suppress(KeyboardInterrupt):
        serve_index(config.service, opened, lambda url: say(f"listening on {url} (page: {url}/docs); Ctrl-C stops it"))
    say("stopped")
