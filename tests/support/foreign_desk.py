"""Files as other programs write them, and a folder with a configuration to import them with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from treadle.cli.commands.export import export
from treadle.cli.commands.import_files import import_
from treadle.core.config import load_config
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig

CONFIG = """
[flow]
stages = {stages}

[models.policy]
model = "elsewhere"
endpoints = [{{ url = "http://127.0.0.1:9/v1" }}]
tokenizer = "{tokenizer}"

[environment]
search.enabled = false

[scores]
symbolic = false

[curriculum]
sampling_model = "policy"

[rl]
start = "embedded"
"""
RIGHT = r"<think>Tiles.</think><answer>There are \boxed{36}.</answer>"
WRONG = r"<think>Tiles.</think><answer>There are \boxed{35}.</answer>"


def calling(*results: str, tool: str = "python", end: str = RIGHT) -> str:
    """Return a trajectory with a call for each result."""
    return "".join(f"<think>I compute.</think><{tool}>1+1</{tool}><result>{text}</result>" for text in results) + end


def evolved(number: int, *texts: str, verdicts: Sequence[bool | None] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a record as the program published with arXiv 2601.06860 writes it."""
    verdicts = [text.strip().endswith(RIGHT) for text in texts] if verdicts is None else verdicts
    record = {
        "instruction": "Another prompt.", "input": f"How many tiles are {number} rows of {'x' * number} dozen?",
        "answer": "36", "source": "openr1", "initial_output": "", "prediction": "", "initial_logs": [],
        "evolve_trajectories_buffer": list(texts),
        "evolve_predictions": ["36" if right else "35" for right in verdicts],
        "evolve_trajectories_llm_judge_results": list(verdicts), "evolve_judgements": ["hint at tail"],
    }  # fmt: skip
    return record | fields


def sampled(number: int, *texts: str, counts: Sequence[int] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a record of direct rollouts."""
    ran = [text.count("<result>") for text in texts] if counts is None else counts
    record = evolved(number) | {
        "rollout_outputs": list(texts), "predictions": ["36"] * len(texts),
        "tool_counts": [{"search_times": 0, "python_times": each, "total_times": each} for each in ran],
    }  # fmt: skip
    return {name: value for name, value in record.items() if not name.startswith("evolve_")} | fields


class Desk:
    """A folder with a configuration, and files to import."""

    def __init__(self, folder: Path, stages: Sequence[str]) -> None:
        self.folder = folder
        self.root = folder / "outputs"
        self.config = folder / "run.toml"
        self.tokenizer = write_byte_tokenizer(folder / "tokenizer")
        self.config.write_text(CONFIG.format(stages=json.dumps(stages), tokenizer=self.tokenizer))

    def write(self, records: Sequence[Any], name: str = "foreign.json") -> Path:
        path = self.folder / name
        if name.endswith(".jsonl"):
            path.write_text("".join(one if isinstance(one, str) else json.dumps(one) + "\n" for one in records))
        else:
            path.write_text(json.dumps(records, indent=4, ensure_ascii=False))
        return path

    def ask(self, kind: str, path: Path, *more: str, name: str = "r") -> Result:
        """Run `import et-agent KIND` with the config, and return its outcome."""
        arguments = ["et-agent", kind, str(path), str(self.config), "--run", name, "--root", str(self.root), *more]
        return CliRunner().invoke(import_, arguments, catch_exceptions=False)

    def go_on(self, kind: str, path: Path, *more: str) -> Result:
        """`import et-agent KIND` with the configuration that the run has."""
        arguments = ["et-agent", kind, str(path), "--run", "r", "--root", str(self.root), *more]
        return CliRunner().invoke(import_, arguments, catch_exceptions=False)

    def bring(self, kind: str, path: Path, *more: str) -> Any:
        """Import with the questions of the file, and return the output as JSON."""
        out = [] if "--out" in more else ["--out", str(self.folder / "questions")]
        return json.loads(self.ask(kind, path, *more, *out, "--json").stdout)

    @property
    def run(self) -> Run:
        return Run.open(self.root, "r")

    def send(self, kind: str, address: str) -> Any:
        out = self.folder / "sent"
        arguments = ["--run", "r", "--root", str(self.root), "--instance", address, "--out", str(out), "--force"]
        assert CliRunner().invoke(export, ["et-agent", kind, *arguments], catch_exceptions=False).exit_code == 0
        return json.loads(next(out.glob("[pr]*.json")).read_text())

    def make(self, address: str) -> StageRecord:
        config = load_config(TreadleConfig, base=self.run.config())
        return execute(instance(config, Address.parse(address)), self.run)

    def record(self, address: str) -> StageRecord:
        """Return the current result, which must exist."""
        record = self.run.record(Address.parse(address))
        assert record is not None
        return record

    def rows(self, address: str, kind: str) -> list[dict[str, Any]]:
        return list(self.run.rows(self.record(address).outputs[kind]).rows())
