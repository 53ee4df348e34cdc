"""Search trajectories for a text, ignoring case."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from treadle.viewer.index import Index
from treadle.viewer.trajectories import InstancePart, QuestionTables

_MAX_CACHED_TEXTS = 16


class TextSearch:
    """Full scan over all texts, with a cache of the masks of recent searches. Thread-safe."""

    def __init__(self) -> None:
        self._masks: OrderedDict[str, dict[str, np.ndarray]] = OrderedDict()
        """Text -> digest of a table -> mask of its rows that contain the text."""
        self._lock = threading.Lock()

    def mask(self, parts: Sequence[InstancePart], questions: QuestionTables, index: Index, text: str) -> np.ndarray:
        """Return a mask of rows whose question or trajectory contains a text, or whose key starts with it.

        Raise ArtifactError if a table cannot be read.
        """
        asked = pc.is_in(index.facts["question_key"], options=pc.SetLookupOptions(_questions_with(questions, text)))
        mask: np.ndarray = asked.to_numpy() | pc.starts_with(index.facts["key"], text).to_numpy()
        # Searches run one at a time, so that equal ones are scanned once.
        with self._lock:
            found = self._masks.pop(text, {})
            self._masks[text] = {digest: found[digest] for part in parts if (digest := _digest(part)) in found}
            while len(self._masks) > _MAX_CACHED_TEXTS:
                self._masks.popitem(last=False)
            for part in parts:
                start = index.starts[part.instance]
                mask[start : start + len(part.facts)] |= self._part_mask(part, text)
        return mask

    def _part_mask(self, part: InstancePart, text: str) -> np.ndarray:
        masks = self._masks[text]
        if _digest(part) not in masks:
            masks[_digest(part)] = _rows_with(part, text)
        return masks[_digest(part)]


def _digest(part: InstancePart) -> str:
    return part.table.reader.digest


def _rows_with(part: InstancePart, text: str) -> np.ndarray:
    found = [
        pc.match_substring(table[part.kind.text], text, ignore_case=True).to_numpy()
        for _, table in part.table.reader.row_groups([part.kind.text])
    ]
    return np.concatenate([np.zeros(0, bool), *found])


def _questions_with(questions: QuestionTables, text: str) -> pa.Array:
    found = [
        table.keys.filter(pc.match_substring(table.facts["question"], text, ignore_case=True))
        for table in questions.tables
    ]
    return pa.chunked_array([chunk for keys in found for chunk in keys.chunks], pa.string()).combine_chunks()
