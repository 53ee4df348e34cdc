"""Turn `--benchmark NAME=FILE,KEY=VALUE` of `treadle eval` into a source of questions.

Documented in docs/guides/evaluation.md.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from treadle.core.config import parse_override, validate
from treadle.core.errors import ConfigError
from treadle.core.untrusted.input_files import FORMATS
from treadle.datagen.questions.benchmarks import GENERIC, RULES, rule_for
from treadle.datagen.questions.likely_domain import likely_domain
from treadle.datagen.questions.sources import QuestionsSettings, SourceSettings
from treadle.eval.averages import AVERAGES

_KEY = re.compile(r",(?=[A-Za-z_]+=)")
_SET_HERE = ("path", "dataset", "split", "split_field", "limit", "environment", "from", "name", "sha256")
"""Keys of a source that other options or the run set."""
_KEYS = tuple(name for name in SourceSettings.model_fields if name not in _SET_HERE)
ENVIRONMENTS: Mapping[str, str] = {"bfcl-multi-turn": "bfcl"}
"""Benchmarks whose tasks an environment provides: name of both -> type of the environment."""


def benchmark_name(text: str) -> str:
    """Return the name in `NAME[=FILE][,KEY=VALUE]`."""
    return re.split(r"[=,]", text, maxsplit=1)[0]


def benchmark_source(text: str, data_root: Path | None, questions: QuestionsSettings, max_rows: int) -> dict[str, Any]:
    """Return the source of `NAME=FILE,KEY=VALUE,…`, whose keys are those of `questions.sources`.

    A name without a file is looked up in `data_root`. A file under an unknown name is a benchmark of that name: its
    fields are recognised by their names and its domain by its answers, unless keys say otherwise. Raises ConfigError,
    and DataError for a file that cannot be read.
    """
    head, *pairs = _KEY.split(text)
    name, has_file, file = head.partition("=")
    keys = dict(_pair(pair, name) for pair in pairs)
    if name in AVERAGES:
        raise ConfigError(f"a benchmark cannot be called {name!r}, the name of an average of the report; rename it")
    source = {"dataset": name, "split": "heldout", "limit": max_rows, **keys}
    known = {*RULES, *questions.benchmarks, *ENVIRONMENTS}
    is_known = rule_for(name, questions.benchmarks) is not GENERIC
    if "hub" not in keys:
        source["path"] = str(_path(name, file if has_file else None, data_root, known, is_known=is_known))
    if is_known or {"domain", "scorer"} & keys.keys() or name in questions.domains:
        return source
    where = f"--benchmark {name}"
    return {**source, "domain": likely_domain(validate(SourceSettings, source, where=where), questions)}


def environment_source(text: str, max_rows: int | None) -> dict[str, Any] | None:
    """Return the source of a benchmark in `ENVIRONMENTS`; None for others.

    Raises ConfigError if the text is not the name alone.
    """
    name = benchmark_name(text)
    if name not in ENVIRONMENTS:
        return None
    if text != name:
        raise ConfigError(
            f"benchmark {name} provides its own tasks; write --benchmark {name} alone, and set keys of its environment "
            f"with --set environments.{name}.KEY=VALUE"
        )
    source = {"from": "environment", "environment": name, "split": "heldout"}
    return source if max_rows is None else {**source, "limit": max_rows}


def benchmark_notes(questions: QuestionsSettings) -> Iterator[str]:
    """Yield a line per source that is no known benchmark: how its answers are compared, and a similar known name."""
    for source in questions.sources:
        if source.is_environment:
            continue
        name = source.dataset_name
        domain = questions.domain_of(name, source)
        if questions.benchmark_of(name) is not GENERIC or source.scorer is not None or domain not in ("math", "qa"):
            continue
        other = "domain=qa to compare words" if domain == "math" else "domain=math to compare numbers and formulas"
        near = difflib.get_close_matches(name.lower(), RULES, n=1, cutoff=0.75)
        meant = f" ({near[0]} is a known one)" if near else ""
        yield f"benchmark {name} is your own{meant}: answers without options are compared as {domain}; add {other}"


def _pair(text: str, name: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    if key not in _KEYS:
        near = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_KEYS)}"
        raise ConfigError(f"--benchmark {name}: {key!r} is not a key of questions.sources that fits here; {hint}")
    return key, parse_override(f"value={value}")["value"] if value.startswith("[") else value


def _path(name: str, file: str | None, data_root: Path | None, known: Collection[str], *, is_known: bool) -> Path:
    """Return the file of a benchmark, given or found by its name; raise ConfigError if there is none."""
    near = (
        difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6 if file is None else 0.75)
        if not is_known
        else []
    )
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    if file is not None:
        if not file or not Path(file).exists():
            raise ConfigError(f"benchmark {name}: there is no file {file!r}; write --benchmark {name}=FILE{hint}")
        return Path(file)
    if data_root is not None and (is_known or (data_root / name).is_dir()):
        return file_below(data_root, name)
    if not is_known:
        listed = hint or f"; known are {', '.join(sorted(known))}"
        raise ConfigError(
            f"benchmark {name!r} is not known; give the file of your own: --benchmark {name}=FILE{listed}"
        )
    raise ConfigError(
        f"benchmark {name} has no file; write --benchmark {name}=FILE, or name the folder of all benchmarks with "
        "--data-root"
    )


def file_below(root: Path, name: str) -> Path:
    """Return the test file of a benchmark in `<root>/<name>`; raise ConfigError if there is none.

    This is `test.jsonl`, the same in another format, or the only `test-*.parquet` part of a hub dataset.
    """
    folder = root / name
    for suffix in FORMATS:
        if (path := folder / f"test{suffix}").is_file():
            return path
    parts = sorted(folder.glob("test-*.parquet"))
    if len(parts) == 1:
        return parts[0]
    there = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    raise ConfigError(
        f"benchmark {name}: {folder} has no test.jsonl, test.json, test.csv or test.parquet; name its file as "
        f"--benchmark {name}=FILE (folders in {root}: {', '.join(there) or 'none'})"
    )
