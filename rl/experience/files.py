"""Define the files of the experience of a training: the pool that it begins with, and a store of its updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from treadle.core.store.storage import LocalStorage
from treadle.rl.experience.finders import open_finder
from treadle.rl.experience.pool import ExperiencePool
from treadle.rl.experience.record import Experience, read_records, write_records
from treadle.rl.experience.settings import ExperienceSettings
from treadle.rl.experience.store import ExperienceStore

_POOL = "pool.jsonl"


class ExperienceFiles:
    """Experience in the folder of a training, with the rules of its pool."""

    def __init__(self, folder: Path, settings: ExperienceSettings) -> None:
        self.settings = settings
        self.workspace = settings.options.workspace
        self.similarity = settings.options.similarity
        self.finder = open_finder(settings.options.encoder)
        self.store = ExperienceStore(LocalStorage(folder), "store", self.workspace)
        """Records that the updates added, and the replies of models that they were made from."""
        self._folder = folder
        self._initial: list[Experience] | None = None

    @classmethod
    def of_job(cls, job: Mapping[str, Any]) -> ExperienceFiles | None:
        """Return the files that an engine's job names; None if the job has no pool."""
        given = job.get("experience")
        if given is None:
            return None
        return cls(Path(given["folder"]), ExperienceSettings.model_validate(given["settings"]))

    def as_job(self) -> dict[str, Any]:
        """Return the part of a job that `of_job` reads."""
        return {"folder": str(self._folder), "settings": self.settings.model_dump(mode="json")}

    def put_initial(self, records: Iterable[Experience]) -> None:
        """Write the pool that the training begins with."""
        self._folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._folder / f"{_POOL}.tmp"
        unfinished.write_bytes(write_records(records))
        unfinished.replace(self._folder / _POOL)

    def pool(self, records: Iterable[Experience]) -> ExperiencePool:
        """Return a pool of the given records, with this training's workspace, similarity and finder."""
        return ExperiencePool(self.workspace, self.similarity, records, self.finder)

    def records(self, *, before_step: int) -> list[Experience]:
        """Return the records that the training began with, and those that updates before `before_step` added."""
        if self._initial is None:
            self._initial = list(read_records([self._folder / _POOL]))
        return [*self._initial, *self.store.records(before_step=before_step)]
