"""The tutor as a process: ready line, port file, signals, a log that survives a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

QUESTION = "<|im_start|>user\nWho wrote the book Tazmero?<|im_end|>\n<|im_start|>assistant\n"


@contextmanager
def tutor(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    command = [sys.executable, "-m", "treadle.demo.tutor", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def complete(url: str, seed: int) -> dict[str, Any]:
    body = {"model": "treadle-tutor", "prompt": QUESTION, "max_tokens": 200, "seed": seed}
    request = urllib.request.Request(
        f"{url}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return dict(json.load(response))


def test_tutor_reports_its_purpose_and_address_and_ends_on_a_signal(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    with tutor("--port-file", str(port_file), "--persona", "noisy") as (process, ready):
        assert ready["url"] == f"http://127.0.0.1:{port_file.read_text().strip()}/v1"
        assert (ready["model"], ready["persona"]) == ("treadle-tutor", "noisy")
        assert "not a language model" in ready["what"]
        assert complete(ready["url"], 2)["choices"][0]["text"].startswith("<think>")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 130


def test_two_tutor_processes_give_equal_answers() -> None:
    answers = []
    for _ in range(2):
        with tutor() as (_, ready):
            answers.append([complete(ready["url"], seed) for seed in range(5)])
    assert answers[0] == answers[1]


def test_log_contains_every_request_when_the_server_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    with tutor("--request-log", str(log)) as (process, ready):
        for seed in range(3):
            complete(ready["url"], seed)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=20)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["event"], line.get("seed")) for line in lines[::2]] == [("arrived", seed) for seed in range(3)]
    assert len(lines) == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--faults", "fire=0.5"], "--faults 'fire=0.5'"),
        (["--tokenizer", "/nonexistent"], "/nonexistent"),
        (["--latency-s", "-1"], "--latency-s"),
        (["--request-log", "/proc/none/log"], "request log"),
    ],
)
def test_wrong_settings_fail_in_one_line(arguments: list[str], words: str) -> None:
    command = [sys.executable, "-m", "treadle.demo.tutor", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode in (1, 2) and ended.stdout == ""
    assert words in ended.stderr and ended.stderr.count("\n") == 1
