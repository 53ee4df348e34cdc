"""Measure the cost of changing a question file: requests sent again after appending one row, or editing one word.

    python -m benchmarks.runs.reuse [--questions 210]

A run answers questions of the sample world with the tutor. Then a row that the run does not select (`datasets`) is
appended to its question file, and the run is repeated; then one word of one question is edited. Prints the number of
requests that reached the tutor each time, including the one or two that ask which model it serves.

`--json` prints the figures as one JSON object instead. `--folder` is the folder for the files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import orjson

from benchmarks.parts.measuring import run_command
from benchmarks.parts.scale_runs import tutor
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.world_files import write_world

CONFIG = """
[models.tutor]
model = "treadle-tutor"
endpoints = [{{ url = "{url}" }}]

[flow]
stages = ["rollouts"]

[questions]
sources = [{{ path = "questions.jsonl", source_field = "source", domain = "math" }}]

[environment]
search = {{ enabled = false }}
python = {{ enabled = false }}

[rollouts]
datasets = ["asked"]
"""
TREADLE = "from treadle.cli.main import main; main()"


def reuse(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the requests of a run and of two repetitions."""
    world = write_world(folder / "world", questions=options.questions, heldout_questions=1)
    lines = [orjson.loads(line) for line in world.questions.read_text().splitlines()]
    rows = [{"question": row["question"], "answer": "1", "source": "asked"} for row in lines][: options.questions]
    with tutor(write_byte_tokenizer(folder / "tokenizer")) as url:
        (folder / "run.toml").write_text(CONFIG.format(url=url))
        figures = {"questions": len(rows), "requests": _requests(folder, url, rows)}
        more = [*rows, {"question": "Is this one selected?", "answer": "no", "source": "other"}]
        figures["after_a_row_that_is_not_selected"] = _requests(folder, url, more)
        first, *others = more
        text = first["question"].replace("Wh", "Now wh", 1) if "Wh" in first["question"] else "Now " + first["question"]
        figures["after_one_word"] = _requests(folder, url, [{**first, "question": text}, *others])
    return figures


def _requests(folder: Path, url: str, rows: list[dict[str, Any]]) -> int:
    """Make the run with these questions; return how many requests it sent."""
    (folder / "questions.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    before = _num_requests(url)
    command = [sys.executable, "-c", TREADLE, "run", "run.toml", "--run", "r"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return _num_requests(url) - before


def _num_requests(url: str) -> int:
    with urllib.request.urlopen(url.removesuffix("/v1") + "/log/counts", timeout=10) as response:
        return int(json.load(response)["requests"])


def main() -> None:
    """Parse the options, measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=210)
    run_command(parser, (), reuse)


if __name__ == "__main__":
    main()
