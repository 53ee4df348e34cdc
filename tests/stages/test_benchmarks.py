"""Every benchmark at a small size: it runs and reports its figures, however large they are."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.sweep import sampled

FOLDER = Path(__file__).parents[2] / "benchmarks"


def runner() -> ModuleType:
    """Import benchmarks/run.py, which is not part of a package."""
    sys.path.insert(0, str(FOLDER.parent))
    try:
        spec = importlib.util.spec_from_file_location("treadle_benchmarks_run", FOLDER / "run.py")
        assert spec is not None and spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(FOLDER.parent))


RUN = runner()
# `chaos` runs in test_chaos.py. The longest start first, which is faster with two at a time.
LONGEST = (
    *("orchestration", "sandbox", "resume", "index_memory", "dense_search", "flat", "held", "flywheel"),
    *("selection", "harness", "question_intake", "command_line", "peers"),
)
NAMES = sorted(set(RUN.BENCHMARKS) - {"chaos"}, key=lambda name: (name not in LONGEST, name))


@pytest.fixture(scope="module")
def samples(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[tuple[str, dict[str, Any] | None]]]]:
    """Run each selected benchmark as far as possible; return what it prints and writes."""
    folder = tmp_path_factory.mktemp("figures")
    selected = {item.name for item in request.session.items}
    names = [name for name in NAMES if f"test_benchmark_reports_its_figures[{name}]" in selected]

    def run(name: str) -> tuple[str, dict[str, Any] | None]:
        output = folder / f"{name}.json"
        command = [sys.executable, "-m", "benchmarks.run", "--sample", "--only", name, "--output", str(output)]
        done = subprocess.run(command, cwd=FOLDER.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.stdout, json.loads(output.read_text()) if done.returncode == 0 else None

    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {name: pool.submit(run, name) for name in names}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", sampled(NAMES, [name for name in NAMES if name not in LONGEST]))
def test_benchmark_reports_its_figures(
    name: str, samples: dict[str, Future[tuple[str, dict[str, Any] | None]]]
) -> None:
    said, written = samples[name].result()
    assert written is not None, said
    assert written["sample"] is True
    figures = written["figures"][name]
    assert figures, said
    assert all(figure["name"] and math.isfinite(figure["value"]) for figure in figures), said
    assert len({figure["name"] for figure in figures}) == len(figures)


def test_failing_benchmark_is_reported_and_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = RUN.Benchmark("runs/journal.py", (), ("--rollouts", "none"), RUN.journal)
    monkeypatch.setitem(RUN.BENCHMARKS, "journal", broken)
    assert RUN.main(["--sample", "--only", "journal"]) == 1
    said = capsys.readouterr().out
    assert "journal broke" in said and "\nbroke: journal\n" in said


def test_failure_of_treadle_in_a_comparison_is_not_a_figure() -> None:
    row = {"peer": "treadle", "kind": "tools", "version": "1", "reason": "it fails: disk full"}
    with pytest.raises(ValueError, match="disk full"):
        RUN.peers({"results": [row]})
