"""LLaMA-Factory itself reads what is written for it: configuration files and exported rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.tables.sft_tables import as_messages, contents, sft_row, table_of
from support.training import llamafactory_reads

from treadle.core.engines.environments import engine_environ, install, python_of
from treadle.sft.exporters import export_rows

GOLDEN = sorted((Path(__file__).parents[1] / "unit" / "golden").glob("sft-*.yaml"))
HOSTILE = '"}]}\n{"instruction": "x"}\r\n=cmd()\u2028\x85\x1b[2J <|im_end|> ${HOME} \U0001f680 ' + "\\"
ROWS = [
    sft_row("a"),
    sft_row(
        "b",
        messages=as_messages(("system", HOSTILE), ("user", f"b {HOSTILE}"), ("assistant", f"<think>{HOSTILE}</think>")),
    ),
    sft_row("c", messages=as_messages(("system", ""), ("user", "c?"), ("assistant", "c."))),
    sft_row(
        "d",
        messages=as_messages(
            ("system", "Guess."), ("user", "Which?"), ("assistant", "50"), ("user", HOSTILE), ("assistant", "62")
        ),
    ),
]


FORMATS = ("sharegpt", "alpaca")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """File name -> what LLaMA-Factory finds in it, in the engine's environment."""
    folder = tmp_path_factory.mktemp("exports")
    (folder / "wrong.yaml").write_text("learning_rat: 1\n")
    for name in FORMATS:
        export_rows(table_of(folder / f"root-{name}", ROWS), name, folder / name, origin={})
    install("sft", notify=lambda line: print(line, file=sys.stderr, flush=True))
    answer, work = folder / "answer.json", folder / "work"
    work.mkdir()
    paths = [*GOLDEN, folder / "wrong.yaml", *(folder / name for name in FORMATS)]
    argv = [str(python_of("sft")), str(llamafactory_reads.__file__), str(answer), *map(str, paths)]
    environ = engine_environ({"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")})
    done = subprocess.run(argv, cwd=work, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    return {Path(path).name: what for path, what in json.loads(answer.read_text()).items()}


def test_every_written_key_exists_in_llamafactory(found: dict[str, Any]) -> None:
    assert len(GOLDEN) == 3
    assert {path.name: found[path.name] for path in GOLDEN} == {path.name: [] for path in GOLDEN}
    assert found["wrong.yaml"] == ["learning_rat"]


@pytest.mark.parametrize("name", FORMATS)
def test_exported_rows_map_system_question_and_answer(found: dict[str, Any], name: str) -> None:
    texts = [[text for _, text in contents(row)] for row in ROWS]
    assert found[name] == [{"system": system, "user": earlier, "assistant": [last]} for system, *earlier, last in texts]
