"""Indexes that FlashRAG prepared, against the answers that its own retriever gave (tests/support/flashrag)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.flashrag_parity import CHECKS, GOLDEN


@pytest.mark.parametrize("check", CHECKS)
def test_prepared_indexes_answer_like_flashrag(check: Callable[..., None], tmp_path: Path) -> None:
    check(GOLDEN, json.loads((GOLDEN / "answers.json").read_text()), tmp_path)
