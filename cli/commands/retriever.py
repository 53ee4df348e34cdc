"""Define `treadle retriever`: build, search, evaluate and serve an index."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from treadle.cli.options import json_option, options_object, say
from treadle.core.errors import ConfigError, Interrupted
from treadle.core.untrusted.sanitize import sanitize, sanitized_json

if TYPE_CHECKING:
    from treadle.agent.pages.server_config import RetrieverConfig
    from treadle.retriever.config import IndexSettings
    from treadle.retriever.index import Index, IndexInfo
    from treadle.retriever.recall import RetrievalRecall

_SHOWN_CHARS = 300


@click.group(
    short_help="Build, query, evaluate and serve a search index.",
    epilog="Example:  treadle retriever serve --corpus wiki.jsonl",
)
def retriever() -> None:
    """Build an index of a corpus, search it, measure its recall, or serve it over HTTP.

    A corpus is one or more files of documents: .jsonl, .json or .parquet with {id, contents} or {id, title, text}.
    """


@dataclass(frozen=True, slots=True)
class _IndexOptions:
    """Options that select an index."""

    files: tuple[Path, ...]
    corpus: tuple[Path, ...]
    engine: str | None
    overrides: tuple[str, ...]

    def configured(self, service: Mapping[str, Any] = MappingProxyType({})) -> RetrieverConfig:
        """Return the configuration; `service`: keys of its table `service`, None for options that were not given."""
        from treadle.agent.pages.server_config import RetrieverConfig
        from treadle.core.config import load_config

        index: dict[str, Any] = {"corpus": [str(path) for path in self.corpus]} if self.corpus else {}
        if self.engine is not None:
            index["engine"] = self.engine
        given = {name: value for name, value in service.items() if value is not None}
        config = load_config(RetrieverConfig, self.files, self.overrides, data={"index": index, "service": given})
        if not config.index.corpus and config.index.index_folder is None:
            raise ConfigError("no corpus is given; name a file of documents with --corpus, or index.index_folder")
        return config


_index_options = options_object(
    _IndexOptions,
    click.option(
        "--config", "files", type=click.Path(path_type=Path), multiple=True, help="TOML file with a table [index]."
    ),
    click.option("--corpus", type=click.Path(path_type=Path), multiple=True, help="File of documents; repeatable."),
    click.option("--engine", type=click.Choice(["bm25", "dense", "hybrid"]), help="How documents are ranked."),
    click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key, such as index.dense.type=hnsw."
    ),
)
"""Options of commands about an index, passed to them as `_IndexOptions`."""


def _open(settings: IndexSettings) -> Index:
    """Open the index, with progress on standard error while it is built."""
    from treadle.cli.terminal import TerminalProgress
    from treadle.retriever.open_index import open_index
    from treadle.retriever.stage import IndexProgress

    with TerminalProgress("index") as progress:
        return open_index(settings, IndexProgress(progress))


@retriever.command(epilog="Example:  treadle retriever build --corpus wiki.jsonl --engine hybrid")
@_index_options
@json_option
def build(asked: _IndexOptions, as_json: bool) -> None:
    """Build an index, or find it in the cache, and describe it."""
    with _open(asked.configured().index) as index:
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
        click.echo(sanitized_json(facts))
        return
    for name, value in facts.items():
        if value is not None:
            click.echo(f"{name:<14} {sanitize(str(value))}")


@retriever.command(epilog='Example:  treadle retriever search --corpus wiki.jsonl "tallest tower" --top-n 3')
@click.argument("query")
@_index_options
@click.option("--top-n", type=click.IntRange(min=1), default=4, show_default=True, help="Number of documents.")
@json_option
def search(asked: _IndexOptions, query: str, top_n: int, as_json: bool) -> None:
    """Search an index for one QUERY."""
    if not query.strip():
        raise ConfigError("the query is empty")
    with _open(asked.configured().index) as index:
        hits = index.search(query, top_n)
    if as_json:
        click.echo(sanitized_json([{"id": hit.id, "score": hit.score, "contents": hit.contents} for hit in hits]))
        return
    for hit in hits:
        shown = hit.text[:_SHOWN_CHARS] + ("..." if len(hit.text) > _SHOWN_CHARS else "")
        click.echo(f"{hit.score:8.3f}  {sanitize(hit.id)}  {sanitize(hit.title)}\n          {sanitize(shown)}")
    if not hits:
        click.echo("no documents were found")


@retriever.command(
    "eval", epilog="Example:  treadle retriever eval --corpus wiki.jsonl --questions questions.jsonl --k 5"
)
@_index_options
@click.option("--questions", type=click.Path(path_type=Path), required=True, help="File with question and supports.")
@click.option("--k", "ks", type=click.IntRange(1, 1000), multiple=True, help="Repeatable. [default: 1, 4, 10, 20]")
@json_option
def evaluate(asked: _IndexOptions, questions: Path, ks: tuple[int, ...], as_json: bool) -> None:
    """Measure how often an index finds the documents that questions need: recall@k.

    Each question is used unchanged as the query. `supports` lists the ids of the documents that its answer needs, in
    the order of the hops. recall@k is the share of questions whose document of a hop is among the first k; `all hops`
    is the share of questions for which all of them are. Questions without `supports` are skipped.
    """
    from treadle.retriever.recall import DEFAULT_KS, measure_recall, read_cases

    config = asked.configured()
    # Read them first: building an index may take hours.
    cases = list(read_cases(questions))
    with _open(config.index) as index:
        recall = measure_recall(index, cases, sorted(set(ks)) or DEFAULT_KS)
        info = index.info
    if as_json:
        click.echo(sanitized_json(_recall_facts(info, recall)))
        return
    skipped = f", {recall.num_skipped:,} skipped: they name no supporting documents" if recall.num_skipped else ""
    click.echo(f"{info.engine} over {info.num_documents:,} documents; {recall.num_cases:,} questions{skipped}\n")
    lines = [(f"hop {hop}", recall.num_by_hop[hop], shares) for hop, shares in recall.by_hop.items()]
    click.echo(f"{'':<10}{'questions':>9}" + "".join(f"{f'@{k}':>8}" for k in recall.all_hops))
    for name, count, shares in [*lines, ("all hops", recall.num_cases, recall.all_hops)]:
        click.echo(f"{name:<10}{count:>9,}" + "".join(f"{share:>8.3f}" for share in shares.values()))


def _recall_facts(info: IndexInfo, recall: RetrievalRecall) -> dict[str, Any]:
    return {
        "engine": info.engine,
        "encoder": info.encoder,
        "fingerprint": info.fingerprint,
        "num_documents": info.num_documents,
        "num_questions": recall.num_cases,
        "num_skipped": recall.num_skipped,
        "hops": [
            {"hop": hop, "num_questions": recall.num_by_hop[hop], "recall": _by_name(shares)}
            for hop, shares in recall.by_hop.items()
        ],
        "all_hops": _by_name(recall.all_hops),
    }


def _by_name(shares: Mapping[int, float]) -> dict[str, float]:
    return {str(k): share for k, share in shares.items()}


@retriever.command(epilog="Example:  treadle retriever serve --corpus wiki.jsonl --api afm --port 9001")
@_index_options
@click.option(
    "--api",
    type=click.Choice(["flashrag", "afm"]),
    help="Whose /search: FlashRAG's, or that of Agent Foundation Models. [default: flashrag]",
)
@click.option("--host", help="Address to listen on; non-loopback addresses need --token-env. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="0 picks a free port. [default: 1243]")
@click.option("--token-env", metavar="NAME", help="Environment variable with the token that callers must send.")
@click.option("--workers", "num_workers", type=click.IntRange(min=1), help="Concurrent searches. [default: 2]")
def serve(asked: _IndexOptions, **service: Any) -> None:
    """Serve an index and web pages over HTTP until Ctrl-C.

    The routes are /search, /batch_search, /retrieve, /crawl_page, /health, /info, /metrics and /docs. With --api afm,
    /search takes {"q", "num"} and finds the web if web.provider is set, else documents of the index. /crawl_page reads
    pages for a purpose, with the model that crawl.summarizer names.
    """
    try:
        from treadle.agent.pages.service import PageService
        from treadle.retriever.service.server import serve as serve_index
    except ImportError as error:
        raise ConfigError(
            f"the service needs the package {error.name}; install treadle with its extra retriever-service"
        ) from None
    config = asked.configured(service)

    def opened() -> Index:
        index = _open(config.index)
        say(f"ready: {index.num_documents} documents ({index.info.engine}), fingerprint {index.info.fingerprint[:12]}")
        return index

    # The service ends only by a signal, after requests in flight have been answered.
    with contextlib.suppress(KeyboardInterrupt):
        serve_index(
            config.service,
            opened,
            lambda url: say(f"listening on {url} (page: {url}/docs); Ctrl-C stops it"),
            PageService(config),
        )
    raise Interrupted("stopped")
