"""Servers that freeze or whose network is cut, and runs that are stopped: the same bytes as a calm run."""

from __future__ import annotations

import array
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.runs import treadle_forks
from support.runs.processes import look, until
from support.servers.tcp_link import TcpLink
from support.sweep import sampled

from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.world_files import write_world

TIME_S = 6.0
"""Of a rollout and of a question in `pools`; all of them together take longer, each takes a part of it."""
STAGES = ("1/rollouts@tutor", "1/pools")
NUM_AT_WORK = 4

CONFIG = """
seed = 7

[models.tutor]
probe_base_s = 0.25
model = "treadle-tutor"
tokenizer = "{folder}/tokenizer"
endpoints = [{{ url = "{url}" }}]

[questions]
sources = [{{ path = "{folder}/world/questions.jsonl", source_field = "source", split_field = "split" }}]

[questions.domains]
world-lookup = "qa"
world-hops = "qa"
world-compare = "qa"
world-compute = "math"
world-arithmetic = "math"

[environment]
rollout_time_s = {time_s}

[environment.search]
corpus = ["{folder}/world/corpus.jsonl"]
cache_folder = "{folder}/indexes"
top_n = 1
document_chars = 200

[environment.python]
enabled = false

[rollouts]
max_concurrent = 4
sampling = {{ max_tokens = 256 }}

[pools]
max_concurrent = 4
rounds = 1
initial_rollouts = 2
operators = ["rerollout"]
"""


class Command:
    """A running `treadle stage`, forked from a process that has imported it; it ends with its block."""

    def __init__(self, forks: Path, root: Path, *words: str) -> None:
        self.said = root / f"{words[0].split('/')[1].split('@')[0]}.err"
        self._forks = socket.socket(socket.AF_UNIX)
        self._forks.connect(str(forks))
        argv = ["stage", *words, "--run", "r", "--root", str(root)]
        message = json.dumps([argv, str(root), dict(os.environ)]).encode()
        with self.said.open("wb") as said, Path(os.devnull).open("r+b") as nothing:
            descriptors = array.array("i", [nothing.fileno(), nothing.fileno(), said.fileno()])
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
            self._forks.sendmsg([len(message).to_bytes(4, "big")], rights)
        self._forks.sendall(message)
        self.pid = int.from_bytes(self._forks.recv(4), "big")

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *exc: object) -> None:
        self._forks.close()

    def finish(self) -> None:
        assert int.from_bytes(self._forks.recv(4), "big", signed=True) == 0, self.said.read_text()


def freeze(pid: int) -> None:
    """Stop a process, and return once it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: (seen := look(pid)) is not None and seen.state == "T", f"process {pid} stands still")


class Desk:
    """A tutor, and runs that ask it through a link that can be cut."""

    def __init__(self, folder: Path, forks: Path, tutor: int, url: str, link: TcpLink) -> None:
        self.folder, self.tutor, self.url, self.link, self._forks = folder, tutor, url, link, forks

    def in_flight(self) -> int:
        with urllib.request.urlopen(self.url.removesuffix("/v1") + "/log/counts", timeout=30) as reply:
            return int(json.load(reply)["in_flight"])

    def num_requests(self) -> int:
        with urllib.request.urlopen(self.url.removesuffix("/v1") + "/log/counts", timeout=30) as reply:
            return int(json.load(reply)["requests"])

    def begin(self, name: str) -> Path:
        """Make a run with questions; returns its root."""
        root = self.folder / name
        if name == "calm":
            root.mkdir()
            text = CONFIG.format(folder=self.folder, url=f"http://127.0.0.1:{self.link.port}/v1", time_s=TIME_S)
            (root / "config.toml").write_text(text)
            with self.command(root, "1/questions", str(root / "config.toml")) as command:
                command.finish()
            shutil.copytree(root, self.folder / "begun")
        else:
            shutil.copytree(self.folder / "begun", root)
        return root

    def command(self, root: Path, *words: str) -> Command:
        """Begin `treadle stage`."""
        return Command(self._forks, root, *words)


def digests(root: Path) -> dict[str, str]:
    """Table -> digest, of all that the stages made."""
    run = Run.open(root, "r")
    records = [run.record(Address.parse(address)) for address in STAGES]
    return {kind: ref.digest for record in records if record for kind, ref in record.outputs.items()}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("frozen")
    write_world(folder / "world", documents=100, questions=8, heldout_questions=0, tiers=(0, 1))
    write_byte_tokenizer(folder / "tokenizer")
    command = [sys.executable, "-m", "treadle.demo.tutor", "--persona", "noisy", "--latency-s", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tutor:
        forks = treadle_forks.install(folder, folder / "forks")
        try:
            assert tutor.stdout is not None
            url = json.loads(tutor.stdout.readline())["url"]
            with TcpLink(urlsplit(url).port or 0) as link:
                yield Desk(folder, folder / "forks", tutor.pid, url, link)
        finally:
            tutor.kill()
            forks.communicate()


@pytest.fixture(scope="module")
def calm(desk: Desk) -> tuple[dict[str, str], int]:
    """Digests and the number of requests of a calm run."""
    before = desk.num_requests()
    return disturbed(desk, "calm"), desk.num_requests() - before


def disturbed(desk: Desk, name: str, *things: str) -> dict[str, str]:
    """Make rollouts and pools at once; freeze or cut `things` in the middle for longer than their time; digests."""
    root = desk.begin(name)
    with ExitStack() as stack:
        stages = [stack.enter_context(desk.command(root, address)) for address in STAGES]
        if things:
            until(lambda: desk.in_flight() >= 2 * NUM_AT_WORK, "both stages are at work")
            frozen = [
                *([desk.tutor] if "server" in things else []),
                *(stage.pid for stage in stages if "run" in things),
            ]
            if "network" in things:
                desk.link.cut()
            for pid in frozen:
                freeze(pid)
            began = time.monotonic()
            until(lambda: time.monotonic() - began > TIME_S + 1.0, "the time of all rollouts is over", pause_s=0.1)
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
            desk.link.mend()
        for stage in stages:
            stage.finish()
    return digests(root)


@pytest.mark.parametrize("things", sampled(["server", "run", "server-run", "network"], ["run"]))
def test_interrupted_run_produces_the_rows_of_an_undisturbed_one(
    desk: Desk, calm: tuple[dict[str, str], int], things: str
) -> None:
    before = desk.num_requests()
    assert disturbed(desk, things, *things.split("-")) == calm[0]
    if "network" not in things:
        # A frozen server still holds its requests, so they are not sent again. A busy machine may hedge a few.
        assert desk.num_requests() - before < calm[1] + NUM_AT_WORK
