"""Identify the content of sources of questions, and stream their rows from files, folders and the hub."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from treadle.core.errors import ConfigError, DataError
from treadle.core.untrusted.confined_rows import UnreadableInput, read_rows_of
from treadle.core.untrusted.input_files import InputRow, file_sha256, input_rows, read_rows
from treadle.datagen.questions.sources import QuestionsSettings, SourceSettings

_DATASET_WORKER = "treadle.datagen.questions.dataset_worker"
_DATASETS_MEMORY_BYTES = 6 * 1024**3
"""Address space of the process that reads data sets; its libraries and their threads reserve some 2 GiB."""
_FOLDER_VARIABLES = (
    "HOME", "TMPDIR", "XDG_CACHE_HOME", "HF_HOME", "HF_DATASETS_CACHE", "HF_MODULES_CACHE", "HF_HUB_CACHE",
    "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE",
)  # fmt: skip


def with_digests(settings: QuestionsSettings) -> QuestionsSettings:
    """Return the settings with each source's current name and digest or hub revision, for the fingerprint.

    Raises ConfigError if there is no source or the domain of one is not known, and DataError if one cannot be read.
    """
    settings.check_sources()
    sources = [*settings.sources, *settings.decontaminate]
    filled = [pinned(source, name) for source, name in zip(sources, unique_names(sources), strict=True)]
    count = len(settings.sources)
    return settings.model_copy(update={"sources": tuple(filled[:count]), "decontaminate": tuple(filled[count:])})


def unique_names(sources: Sequence[SourceSettings]) -> list[str]:
    """Return unique file names, with as many parent folders as needed (`gsm8k/test.jsonl`).

    A repeated use of the same file is numbered.
    """
    parts = [
        source.path.absolute().parts[1:] if source.path else (source.hub or source.environment_label,)
        for source in sources
    ]
    depth = dict.fromkeys(parts, 1)
    while True:
        clashing = Counter("/".join(part[-keep:]) for part, keep in depth.items())
        grow = [part for part, keep in depth.items() if clashing["/".join(part[-keep:])] > 1 and keep < len(part)]
        if not grow:
            break
        for part in grow:
            depth[part] += 1
    uses: Counter[str] = Counter()
    names = []
    for part in parts:
        name = "/".join(part[-depth[part] :])
        uses[name] += 1
        names.append(name if uses[name] == 1 else f"{name}#{uses[name]}")
    return names


def pinned(source: SourceSettings, name: str) -> SourceSettings:
    """Return the source with its name and what identifies its content; raise DataError if it cannot be read."""
    if source.path is not None:
        return source.model_copy(update={"name": source.name or name, "sha256": file_sha256(source.path)})
    if source.is_environment:
        return source.model_copy(update={"name": source.name or name})
    revision = source.revision or _hub_revision(source.hub or "")
    return source.model_copy(update={"name": source.name or name, "revision": revision})


def _hub_errors() -> tuple[type[BaseException], ...]:
    """Return the exceptions of the hub's clients; the base of their HTTP error depends on the HTTP library in use."""
    from huggingface_hub.errors import HfHubHTTPError

    return (OSError, ValueError, HfHubHTTPError, *HfHubHTTPError.__bases__)


def _hub_revision(hub: str) -> str:
    from huggingface_hub import HfApi

    try:
        return str(HfApi(endpoint=os.environ.get("HF_ENDPOINT")).dataset_info(hub, timeout=20).sha)
    except _hub_errors() as error:
        raise DataError(
            f"hub data set {hub} cannot be looked up ({type(error).__name__}); "
            "check its id and the network, or set revision if it is in the local cache"
        ) from error


def source_rows(source: SourceSettings) -> Iterator[InputRow]:
    """Yield the rows of a source, at most `limit`; raise DataError if it cannot be read or has changed."""
    if source.path is not None and source.sha256 not in (None, file_sha256(source.path)):
        raise DataError(f"input file {source.path} changed while the run was starting; start again")
    if source.path is not None and not source.path.is_dir():
        rows = read_rows(source.path, source.format)
    else:
        rows = _dataset_rows(source)
    for count, row in enumerate(rows, start=1):
        yield row
        if count == source.limit:
            return


def _dataset_rows(source: SourceSettings) -> Iterator[InputRow]:
    """Yield the rows of a folder or hub data set, which `datasets` reads in a child process with limited memory."""
    if importlib.util.find_spec("datasets") is None:
        raise ConfigError(f"data set {source.label} needs the package datasets: pip install 'treadle[ingest]'")
    job = {
        "memory_bytes": _DATASETS_MEMORY_BYTES,
        "where": str(source.path.absolute()) if source.path else source.hub,
        "config": source.hub_config,
        "split": source.hub_split,
        "revision": source.revision,
    }
    # The clients of a hub read their user's settings from variables of any name; a folder does not need them.
    variables = _FOLDER_VARIABLES if source.path else tuple(os.environ)
    size = sum(item.stat().st_size for item in source.path.rglob("*") if item.is_file()) if source.path else sys.maxsize
    number = 0
    try:
        for part in read_rows_of(_DATASET_WORKER, job, stdin=None, num_bytes=size, variables=variables):
            for row in input_rows(part, number):
                yield row
                number = row.number
    except UnreadableInput as error:
        raise DataError(f"data set {source.label} cannot be read: {error}") from None
    if number == 0:
        raise DataError(f"data set {source.label} has no rows in its split {source.hub_split!r}")
