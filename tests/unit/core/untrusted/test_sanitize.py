"""Text made safe for terminals and logs."""

from __future__ import annotations

import json
import logging

import pytest

from treadle.agent.dialects.base import render
from treadle.agent.dialects.tags import TOOL_DIALECT, tokenise
from treadle.core.answers.extraction import extract_prediction
from treadle.core.untrusted.sanitize import SanitizingFormatter, sanitize, sanitized_json

HOSTILE = "\x1b[31mred\x9b2J\x7f\u202e\u2066\u2028\r\x00\U000e0041"


def test_terminal_control_characters_are_removed() -> None:
    assert sanitize(HOSTILE + "\ttab\nline") == (
        r"\x1b[31mred\x9b2J\x7f\u202e\u2066\u2028\r\x00\U000e0041" + "\ttab\nline"
    )


def test_json_for_terminals_round_trips() -> None:
    text = sanitized_json({HOSTILE: [HOSTILE, 1]})
    assert text.isprintable() and json.loads(text) == {HOSTILE: [HOSTILE, 1]}


def test_log_line_cannot_be_forged_or_drive_a_terminal() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "said %s", (f"{HOSTILE}\n2026-01-01 ERROR forged",), None)
    line = SanitizingFormatter("%(levelname)s %(message)s").format(record)
    assert line.split("\n")[1] == "    2026-01-01 ERROR forged" and line.replace("\n", "").isprintable()


@pytest.mark.parametrize("marker", ["<python>", "<result>", "<think><search>", "</think>"])
def test_many_markers_are_scanned_in_one_pass(marker: str) -> None:
    """Searching for the closing marker again at each one would take minutes."""
    text = marker * (300_000 // len(marker))
    segments = tokenise(text, model_text=True, dialect=TOOL_DIALECT)
    assert render(segments) == text
    assert extract_prediction([{"kind": segment.kind, "text": segment.text} for segment in segments]) == ""
