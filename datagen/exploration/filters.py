"""Drop tasks that ask the same as others: by their words, by their meaning, or by a rule of your own."""

from __future__ import annotations

import math
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny, WrapValidator
from typing_extensions import TypeAliasType

from treadle.core.registry import Entry, Registry
from treadle.datagen.exploration.drafts import Draft
from treadle.retriever.config import EncoderSettings

_UNSPACED = r"\u3005\u3007\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003347f"
"""Chinese characters and Japanese kana, between whose words there are no spaces."""
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
_QUERIES_PER_BATCH = 256
_ROUNDING = 1e-9
_VECTOR_ROUNDING = 1e-6
"""The cosine of a vector of float32 with itself may be less than 1 by this much."""


class DraftFilter(Entry):
    """Settings of a filter, and the filter itself. Derive a class and implement `kept`."""

    type: str
    """Type of the filter: `lexical`, `embedding`, `my_file.py:Class` for a class in a file next to the configuration,
    `package.module:Class`, or the name of an entry point."""

    def kept(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Return the drafts that stay, in their order. It is called once, with all drafts, outside of event loops."""
        raise NotImplementedError(f"{type(self).__name__} needs a method kept(drafts)")


class _DuplicateFilter(DraftFilter, ABC):
    """Base of filters that keep the most confident of drafts that are alike."""

    within: Literal["all", "seed"] = "all"
    """Drafts that are compared: all, as published, or only those of one seed task, if equal words mean another task on
    another state."""

    def kept(self, drafts: Sequence[Draft]) -> list[Draft]:
        """See `DraftFilter`; of drafts that are alike the most confident stays, of equally confident ones the first."""
        views = dict(zip((draft.key for draft in drafts), self._views([draft.query for draft in drafts]), strict=True))
        groups: defaultdict[str, list[Draft]] = defaultdict(list)
        for draft in sorted(drafts, key=lambda draft: -draft.confidence):
            groups[draft.seed_key if self.within == "seed" else ""].append(draft)
        chosen: set[str] = set()
        for group in groups.values():
            places = self._different([views[draft.key] for draft in group])
            chosen |= {group[place].key for place in places}
        return [draft for draft in drafts if draft.key in chosen]

    @abstractmethod
    def _views(self, queries: Sequence[str]) -> Sequence[Any]:
        """Return for each query the value that is compared, such as its set of words or its vector."""

    @abstractmethod
    def _different(self, views: Sequence[Any]) -> Iterator[int]:
        """Yield the index of each value that is not similar to any of those yielded before."""


class LexicalFilter(_DuplicateFilter):
    """Drop tasks whose words are nearly those of a more confident one."""

    type: str = "lexical"
    """Words are compared."""
    threshold: float = Field(default=0.8, gt=0.0, le=1.0)
    """Jaccard similarity of the sets of words at which two tasks are alike."""

    def _views(self, queries: Sequence[str]) -> Sequence[Any]:
        return [words_of(query) for query in queries]

    def _different(self, views: Sequence[Any]) -> Iterator[int]:
        counts = Counter(word for words in views for word in words)
        # Two similar sets share at least one of their rarest words, so only sets with such a common word are compared.
        by_word: defaultdict[str, list[frozenset[str]]] = defaultdict(list)
        for place, words in enumerate(views):
            rarest = sorted(words, key=lambda word: (counts[word], word))
            rarest = rarest[: len(words) - math.ceil(self.threshold * len(words) - _ROUNDING) + 1]
            others = (other for word in rarest for other in by_word[word])
            if any(jaccard(words, other) >= self.threshold for other in others):
                continue
            for word in rarest:
                by_word[word].append(words)
            yield place


class EmbeddingFilter(_DuplicateFilter):
    """Drop tasks whose meaning, as an encoder of texts sees it, is nearly that of a more confident one."""

    type: str = "embedding"
    """Vectors are compared."""
    threshold: float = Field(default=0.95, gt=0.0, le=1.0)
    """Cosine of the vectors at which two tasks are alike."""
    encoder: EncoderSettings = EncoderSettings()
    """Encoder of text into vectors."""

    def _views(self, queries: Sequence[str]) -> Sequence[Any]:
        from treadle.retriever.dense.encoders import normalized
        from treadle.retriever.dense.open_encoder import open_encoder

        encoder = open_encoder(self.encoder)
        try:
            starts = range(0, len(queries), _QUERIES_PER_BATCH)
            return [
                vector
                for start in starts
                for vector in normalized(encoder.encode_passages(queries[start : start + _QUERIES_PER_BATCH]))
            ]
        finally:
            encoder.close()

    def _different(self, views: Sequence[Any]) -> Iterator[int]:
        import numpy as np

        matrix, kept = np.stack(views), list[int]()
        for place, vector in enumerate(views):
            if not kept or float(np.max(matrix[kept] @ vector)) < self.threshold - _VECTOR_ROUNDING:
                kept.append(place)
                yield place


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text, case folded; a text without letters and numbers counts as one word.

    A character of a script without spaces is a word.
    """
    folded = unicodedata.normalize("NFC", text).casefold()
    # Vowels of many scripts are marks, which `\w` would take for the ends of words.
    letters = "".join(char if char == "_" or unicodedata.category(char)[0] in "LMN" else " " for char in folded)
    return frozenset(_WORD.findall(letters) or [" ".join(folded.split())])


def jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    """Return the size of the intersection divided by that of the union; 1 for two empty sets."""
    union = len(left | right)
    return len(left & right) / union if union else 1.0


FILTERS = Registry(
    base=DraftFilter,
    key="exploration.filters",
    group="treadle.draft_filters",
    example="my_filters.py:Mine",
    shipped={
        "lexical": "treadle.datagen.exploration.filters:LexicalFilter",
        "embedding": "treadle.datagen.exploration.filters:EmbeddingFilter",
    },
    methods={"kept": "kept(drafts)"},
)
"""Filters by name."""

AnyFilter = TypeAliasType("AnyFilter", Annotated[SerializeAsAny[DraftFilter], WrapValidator(FILTERS.validate), FILTERS])
"""Settings of a filter of any type."""
