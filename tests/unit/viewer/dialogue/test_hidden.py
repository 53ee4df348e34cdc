"""What is hidden from the agent, and the dialogue as its partner saw it."""

from __future__ import annotations

from treadle.viewer.dialogue.hidden import hidden_fields, partner_view
from treadle.viewer.segments import pieces_of


def segments(*parts: tuple[str, str]) -> list[dict[str, object]]:
    return [{"kind": kind, "text": text, "start": 0, "end": 0} for kind, text in parts]


TALK = segments(
    ("private", "hm OUTPUT:"), ("text", "Which?"), ("frame", "<|im_end|>"), ("user", "That."),
    ("frame", "<|im_start|>"), ("text", "Fine. "), ("answer", "I WANT TO ANSWER: x"),
)  # fmt: skip


def test_partner_sees_no_private_text_and_no_frames() -> None:
    assert [(one.speaker, one.text) for one in partner_view("Write f.", TALK)] == [
        ("partner", "Write f."),
        ("policy", "Which?"),
        ("partner", "That."),
        ("policy", "Fine. I WANT TO ANSWER: x"),
    ]
    assert partner_view("What?", segments(("think", "a"), ("answer", "b"))) == []


def test_private_text_is_folded_and_named() -> None:
    private, shown, *_, answer = pieces_of(TALK)
    assert (private.style, private.is_folded, private.is_plain, private.is_unclosed) == ("think", True, False, False)
    assert private.text == "hm OUTPUT:" and not shown.is_folded and shown.is_plain
    assert (answer.style, answer.is_unclosed) == ("answer", False)


def test_fields_are_text_or_json_and_cut() -> None:
    text, other, long = hidden_fields({"reference": "def f(): ...", "tests": {"a": "f()"}, "long": "x" * 20_000})
    assert (text.text, text.is_cut) == ("def f(): ...", False)
    assert other.text == '{\n  "a": "f()"\n}'
    assert (len(long.text), long.num_chars, long.is_cut) == (16_000, 20_000, True)
