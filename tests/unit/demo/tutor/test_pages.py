"""The tutor in dialogues about pages: an agent that writes them, one that guesses, and the human who sees pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.page_pictures import picture_of
from support.pictures import png

from treadle.core.chat import ChatTokenizer
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.pages.design import Design, read_page, request
from treadle.demo.tutor.completion import ReplyWriter, RequestError
from treadle.demo.tutor.dialogue import UNKNOWN
from treadle.demo.tutor.pages import SAME
from treadle.demo.tutor.settings import MODEL, TutorSettings
from treadle.environments.colbench.dialect import read_turn
from treadle.environments.colbench.frontend.episode import NOTICE
from treadle.environments.colbench.frontend.human import comparing_messages
from treadle.environments.colbench.prompts import instructions

WANTED = Design("green", "pink", "middle", 3)


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> ReplyWriter:
    tokenizer = ChatTokenizer.load(write_byte_tokenizer(tmp_path_factory.mktemp("bytes")))
    return ReplyWriter(TutorSettings(), tokenizer)


def says(writer: ReplyWriter, shown: bytes | None, wanted: bytes) -> str:
    """Return what the human says about pictures."""
    messages = comparing_messages(instructions("page_human"), shown, wanted)
    return writer.write({"model": f"{MODEL}-page-human", "messages": messages}, chat=True).text


def turn(writer: ReplyWriter, role: str, *messages: tuple[str, str]) -> str:
    """Return the next turn of an agent."""
    turns = [("system", instructions("page_agent")), ("user", request("zoo")), *messages]
    body = {"messages": [{"role": speaker, "content": text} for speaker, text in turns]}
    return writer.write({"model": f"{MODEL}-page-{role}", **body}, chat=True).text


def test_human_names_two_differences_at_a_time_and_none_of_equal_pages(writer: ReplyWriter) -> None:
    wanted = picture_of(WANTED)
    assert says(writer, wanted, wanted) == SAME
    other = picture_of(Design("red", "pink", "left", 4))
    assert says(writer, other, wanted) == (
        "The bar must be green, not red. The heading must be in the middle, not left."
    )
    assert says(writer, picture_of(replace(WANTED, num_cards=2)), wanted) == "There must be 3 cards, not 2."


def test_human_tells_all_about_a_page_that_is_missing_or_of_another_kind(writer: ReplyWriter) -> None:
    wanted = picture_of(WANTED)
    for shown in (None, png(300, 300)):
        said = says(writer, shown, wanted)
        assert said.startswith("I see no page") and "bar must be green." in said and "be 3 cards." in said


def test_human_knows_only_this_world(writer: ReplyWriter) -> None:
    assert says(writer, picture_of(WANTED), png(300, 300)) == UNKNOWN
    assert says(writer, b"broken", picture_of(WANTED)) == UNKNOWN


@pytest.mark.parametrize("content", [7, [{"type": "image_url", "image_url": {"url": "https://x/a.png"}}], [7], None])
def test_messages_without_text_and_pictures_elsewhere_are_refused(writer: ReplyWriter, content: Any) -> None:
    body = {"model": f"{MODEL}-page-human", "messages": [{"role": "user", "content": content}]}
    with pytest.raises(RequestError):
        writer.write(body, chat=True)


def test_agent_changes_its_page_until_the_human_is_content(writer: ReplyWriter) -> None:
    wanted, said = picture_of(WANTED), list[tuple[str, str]]()
    for _ in range(4):
        text = turn(writer, "writer", *said)
        reading = read_turn(text)
        design = read_page(text)
        assert design is not None
        if reading.answer is not None:
            break
        said += [("assistant", reading.visible), ("user", says(writer, picture_of(design), wanted))]
    assert reading.answer is not None and design == WANTED and says(writer, picture_of(design), wanted) == SAME


def test_last_message_is_the_final_page_and_a_guesser_writes_no_other(writer: ReplyWriter) -> None:
    first = turn(writer, "writer")
    assert read_turn(first).answer is None
    said: Sequence[tuple[str, str]] = (("assistant", first), ("user", f"The bar must be green, not red.{NOTICE}"))
    last = turn(writer, "writer", *said)
    found = read_page(last)
    assert read_turn(last).answer is not None and found is not None and found.bar == "green"
    assert read_turn(turn(writer, "guesser")).answer is not None
