"""Write the sample world to files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import orjson

from treadle.core.errors import StorageError
from treadle.demo.world import Encyclopedia, Split, World


def write_world(
    folder: Path,
    *,
    documents: int = 1000,
    questions: int = 200,
    heldout_questions: int = 100,
    tiers: Sequence[int] = (0,),
    seed: int = 0,
) -> World:
    """Write `corpus.jsonl` and `questions.jsonl`; equal parameters give equal bytes.

    Args:
        folder: where to write; created if missing. Files of an earlier world there are replaced.
        documents: 100 to 1,000,000; one entity and one sentence each.
        questions: number of questions about the training entities.
        heldout_questions: number of questions about the held-out entities, which no training question is about.
        tiers: 0 (one call), 1 (two to four calls) and 2 (two or three calls that do not depend on each other), used
            in turn.
        seed: selects the world.

    Raises:
        ConfigError: a size is out of range, or the documents do not give enough questions.
        StorageError: the folder cannot be written.
    """
    from treadle.demo.world_questions import make_questions

    world = Encyclopedia(documents, seed)
    sides: tuple[tuple[Split, int], ...] = (("train", questions), ("heldout", heldout_questions))
    rows = [row for split, count in sides for row in make_questions(world, split, count, tiers)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_jsonl(folder / "corpus.jsonl", world.stream())
        _write_jsonl(folder / "questions.jsonl", rows)
    except OSError as error:
        raise StorageError(f"the sample world cannot be written to {folder}: {error}") from error
    return World(folder, folder / "corpus.jsonl", folder / "questions.jsonl", documents, questions, heldout_questions)


def write_questions(folder: Path, rows: Iterable[object], what: str) -> Path:
    """Write `questions.jsonl` and return its path; `what` names its rows in errors. Raises StorageError."""
    path = folder / "questions.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_jsonl(path, rows)
    except OSError as error:
        raise StorageError(f"the {what} cannot be written to {folder}: {error}") from error
    return path


def _write_jsonl(path: Path, rows: Iterable[object]) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with part.open("wb") as file:
        for row in rows:
            file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
    part.replace(path)
