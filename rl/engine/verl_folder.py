"""Where the files of a training with verl lie, beside those of every training."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
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

    @property
    def groups(self) -> Path:
        """What the workers wrote of the steps in progress."""
        return self.path / "groups"

    def groups_of(self, step: int, *, validation: bool) -> Path:
        """Folder of the groups of a step, or of the validation after it."""
        return self.groups / f"{'valid' if validation else 'train'}-{step:06d}"

    def write_group(self, step: int, group_id: str, lines: Iterable[Mapping[str, Any]], *, validation: bool) -> None:
        """Write the trajectories of one group, a line each; the file is there whole or not at all."""
        write_lines(self.groups_of(step, validation=validation) / f"{group_id}.jsonl", lines)

    def fail_group(self, step: int, group_id: str, message: str, *, validation: bool) -> None:
        """Write why a group cannot be used, in place of its trajectories; may be told by each of its sessions."""
        folder = self.groups_of(step, validation=validation)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{group_id}.failed").write_text(message[:2000], encoding="utf-8")
        (folder / f"{group_id}.jsonl").unlink(missing_ok=True)

    def read_groups(self, step: int, *, validation: bool) -> list[list[dict[str, Any]]]:
        """The lines of each group, by question and session."""
        paths = sorted(self.groups_of(step, validation=validation).glob("*.jsonl"))
        groups = [[json.loads(line) for line in path.read_bytes().splitlines()] for path in paths]
        return sorted(groups, key=lambda lines: (str(lines[0]["row"]["question_key"]), str(lines[0]["row"]["group"])))

    def failures(self, step: int, *, validation: bool) -> list[str]:
        """Why groups of a step cannot be used, a message each."""
        paths = sorted(self.groups_of(step, validation=validation).glob("*.failed"))
        return [path.read_text(encoding="utf-8") for path in paths]

    @property
    def environment_failure(self) -> Path:
        """What kept a worker from opening the environment."""
        return self.path / "environment.failed"


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines; the file appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    unfinished.rename(path)
