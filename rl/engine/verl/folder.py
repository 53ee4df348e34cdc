"""Locate, read and write the files of a training with verl that come in addition to those of every training."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.rl.groups.dump import write_lines
from treadle.rl.verl.config import VerlFiles


@dataclass(frozen=True, slots=True)
class VerlFolder:
    """The folder `verl` of a training; on several machines, all of them need access to it."""

    path: Path

    @classmethod
    def of_job(cls, job: Mapping[str, Any]) -> VerlFolder:
        """Return the folder next to the job's event file."""
        return cls(Path(job["events"]).parent / "verl")

    def files(self, job: Mapping[str, Any]) -> VerlFiles:
        """Return the paths that verl gets."""
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
        """Folder with the groups of the steps in progress, which the workers write."""
        return self.path / "groups"

    def groups_of(self, step: int, *, validation: bool) -> Path:
        """Return the folder of the groups of a step, or of the validation after it."""
        return self.groups / f"{'valid' if validation else 'train'}-{step:06d}"

    def write_group(self, step: int, group_id: str, lines: Iterable[Mapping[str, Any]], *, validation: bool) -> None:
        """Write the trajectories of one group atomically, one line each."""
        write_lines(self.groups_of(step, validation=validation) / f"{group_id}.jsonl", lines)

    def fail_group(self, step: int, group_id: str, message: str, *, validation: bool) -> None:
        """Write the reason why a group cannot be used, and delete its trajectories.

        Each session of the group may call this.
        """
        folder = self.groups_of(step, validation=validation)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{group_id}.failed").write_text(message[:2000], encoding="utf-8")
        (folder / f"{group_id}.jsonl").unlink(missing_ok=True)

    def read_groups(self, step: int, *, validation: bool) -> list[list[dict[str, Any]]]:
        """Return the lines of each group, sorted by question and group id."""
        groups: list[list[dict[str, Any]]] = []
        for path in self.groups_of(step, validation=validation).glob("*.jsonl"):
            # A worker deletes the file of a group if one of its sessions fails meanwhile.
            with contextlib.suppress(FileNotFoundError):
                groups.append([json.loads(line) for line in path.read_bytes().splitlines()])
        return sorted(groups, key=lambda lines: (str(lines[0]["row"]["question_key"]), str(lines[0]["row"]["group"])))

    def num_groups(self, step: int) -> int:
        """Return the number of groups of a step that were rolled out so far."""
        return sum(1 for _ in self.groups_of(step, validation=False).glob("*.jsonl"))

    def failures(self, step: int, *, validation: bool) -> list[str]:
        """Return the messages of the failed groups of a step."""
        paths = sorted(self.groups_of(step, validation=validation).glob("*.failed"))
        return [path.read_text(encoding="utf-8") for path in paths]

    @property
    def environment_failure(self) -> Path:
        """File with the error that kept a worker from opening the environment."""
        return self.path / "environment.failed"


def merge_command(python: str, state: Path, target: Path) -> list[str]:
    """Return the command that merges the shards of an FSDP state into a model in 16 bits, without a GPU."""
    merge = [python, "-m", "verl.model_merger", "merge", "--backend", "fsdp", "--use_cpu_initialization"]
    return [*merge, "--local_dir", str(state / "actor"), "--target_dir", str(target)]
