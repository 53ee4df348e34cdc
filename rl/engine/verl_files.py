"""Where the files of a training with verl lie, beside those of every training."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.rl.verl_config import VerlFiles


@dataclass(frozen=True, slots=True)
class VerlFolder:
    """The folder `verl` of a training; on several machines, all of them must see it."""

    path: Path

    @classmethod
    def of_job(cls, job: Mapping[str, Any]) -> VerlFolder:
        """Beside the events."""
        return cls(Path(job["events"]).parent / "verl")

    def files(self, job: Mapping[str, Any]) -> VerlFiles:
        """What verl is given."""
        return VerlFiles(
            job=self.path / "job.json",
            rows=self.path / "train.parquet",
            validation=self.path / "valid.parquet",
            model=Path(job["model"]),
            output=Path(job["output"]),
            loop=self.path / "loop.yaml",
            metrics=self.path / "metrics.jsonl",
            resume=Path(job["resume"]) if job.get("resume") else None,
        )

    def groups(self, step: int, *, validation: bool) -> Path:
        """Folder of the groups of a step, or of the validation after it."""
        return self.path / "groups" / f"{'valid' if validation else 'train'}-{step:06d}"

    def write_group(self, step: int, group_id: str, lines: Iterable[Mapping[str, Any]], *, validation: bool) -> None:
        """Write the trajectories of one group, a line each; the file is there whole or not at all."""
        write_lines(self.groups(step, validation=validation) / f"{group_id}.jsonl", lines)

    def read_groups(self, step: int, *, validation: bool) -> list[list[dict[str, Any]]]:
        """The lines of each group, by question and session."""
        paths = sorted(self.groups(step, validation=validation).glob("*.jsonl"))
        groups = [[json.loads(line) for line in path.read_bytes().splitlines()] for path in paths]
        return sorted(groups, key=lambda lines: (str(lines[0]["row"]["question_key"]), str(lines[0]["row"]["group"])))

    @property
    def failures(self) -> Path:
        """JSON lines from the workers: what kept groups from being made."""
        return self.path / "failures.jsonl"

    def note_failure(self, kind: str, message: str) -> None:
        """Append to `failures`; `kind` is `environment` or `group`."""
        line = json.dumps({"kind": kind, "message": message[:2000]}) + "\n"
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.failures, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def noted_failures(self) -> Iterator[dict[str, str]]:
        """What was noted so far."""
        if self.failures.exists():
            yield from (json.loads(line) for line in self.failures.read_text(encoding="utf-8").splitlines())


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines; the file appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    unfinished.rename(path)
