"""A flow in one TOML file rewrites texts and makes rows of them; killed, it pays for no rewrite again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.qwen_tokenizer import qwen_tokenizer
from support.servers.hosted_service import hosted
from support.servers.scripted_server import RecordedRequest
from support.tables.score_tables import new_run
from support.teacher import question_of, rewrite

from treadle.core.config import load_config
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.tasks.catalog import flow_instances
from treadle.tasks.config import TreadleConfig

TREADLE = str(Path(sys.executable).with_name("treadle"))
CONFIG = """
seed = 3

[flow]
stages = ["conversion", "sft_rows"]

[models.teacher]
model = "scripted"
api = "chat"
endpoints = [{{ url = "{url}" }}]

[environments.parallel]
type = "planning"
dialect = "gap"

[conversion]
teacher.model = "teacher"
environment = "parallel"
texts = [{{ path = "{folder}/mhqa.json" }}]
max_concurrent = 1

[sft_rows]
tokenizer = "{tokenizer}"
"""


def text_of(name: str) -> str:
    steps = "".join(
        f"<think>t</think>\n<wiki_search>q{n}</wiki_search>\n<observation>\nDoc 1 {name} {n}\n</observation>\n\n"
        for n in range(3)
    )
    return f"{steps}<think>ok</think>\n<answer>{name}</answer>"


async def treadle_run(folder: Path, root: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        TREADLE, "run", "config.toml", "--run", "r", "--root", str(root), "--json",
        cwd=folder, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def digests(run: Run) -> dict[str, str]:
    records = [run.record(Address.parse(f"1/{stage}")) for stage in ("conversion", "sft_rows")]
    return {kind: ref.digest for record in records if record is not None for kind, ref in record.outputs.items()}


@pytest.mark.covers("planning-30")
async def test_killed_flow_asks_for_no_rewrite_twice_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    names = [f"{kind} {n}" for n in range(3) for kind in ("good", "chain", "unplanned")]
    rows = [{"instruction": "Search.", "input": name, "output": text_of(name)} for name in names]
    (tmp_path / "mhqa.json").write_text(json.dumps(rows))
    asked: Counter[str] = Counter()
    lives: list[asyncio.subprocess.Process] = []

    def teacher(request: RecordedRequest) -> str:
        if name := question_of(request):
            asked[name] += 1
            if lives and asked.total() == 8:
                os.killpg(lives.pop().pid, signal.SIGKILL)
        return rewrite(request)

    async with hosted(teacher) as server:
        config = tmp_path / "config.toml"
        config.write_text(CONFIG.format(url=server.url, tokenizer=qwen_tokenizer(), folder=tmp_path))
        calm = new_run(tmp_path / "calm")
        for one in flow_instances(load_config(TreadleConfig, [config])):
            await asyncio.to_thread(execute, one, calm)
        # A rejected rewrite is asked for once more.
        expected = Counter({name: 1 + name.startswith("unplanned") for name in names})
        assert asked == expected
        asked.clear()
        lives.append(killed := await treadle_run(tmp_path, tmp_path / "killed"))
        await killed.communicate()
        assert killed.returncode == -signal.SIGKILL
        again = await treadle_run(tmp_path, tmp_path / "killed")
        _, said = await again.communicate()
        assert again.returncode == 0, said.decode()
    repeated = asked - expected
    assert repeated.total() == 1 and not expected - asked, "only the request in flight was sent again"
    assert digests(Run.open(tmp_path / "killed", "r")) == digests(calm) and len(digests(calm)) == 3
