"""Play the two sides of a dialogue about a page by rule: the agent that writes it, and the human who sees pictures.

The human reads the designs of both pages, the agent's and the target, from pictures alone, and knows only pages of the
sample world. The agent begins with a random design, and changes the details that the human names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Literal

from treadle.demo.pages.design import COLORS, NUM_CARDS, PLACES, Design, page, read_page, read_request
from treadle.demo.tutor.conversation import Conversation
from treadle.demo.tutor.dialogue import ANSWER_MARKER, UNKNOWN
from treadle.demo.tutor.seeded_draws import Draws

PageRole = Literal["page-writer", "page-guesser", "page-human"]

SAME = "It looks as I want it."
"""Reply of the human to a page that does not differ from the target page."""
MAX_TOLD = 2
"""Maximum number of differences that the human names in a reply."""
_LAST = "One message is left"
_TOLD = {
    "bar": re.compile(rf"\bbar must be ({'|'.join(COLORS)})\b"),
    "panel": re.compile(rf"\bpanel must be ({'|'.join(COLORS)})\b"),
    "heading": re.compile(rf"\bheading must be (?:on|in) the ({'|'.join(PLACES)})\b"),
    "num_cards": re.compile(r"\bmust be (\d) cards\b"),
}
"""Detail of a design -> pattern of the human's sentence about it."""


def next_page_turn(conversation: Conversation, role: PageRole, draws: Draws) -> str:
    """Return the next turn of an agent, or the reply of the human."""
    if role == "page-human":
        return page_reply(conversation.pictures)
    shop = read_request(conversation.user)
    if shop is None:
        return f"OUTPUT: {ANSWER_MARKER}\nI only know pages of the sample world."
    replies = [text for speaker, text in conversation.messages if speaker == "user"]
    own = [text for speaker, text in conversation.messages if speaker == "assistant"]
    design = (read_page(own[-1]) if own else None) or _guessed(draws)
    if replies:
        design = _changed(design, replies[-1])
    is_final = role == "page-guesser" or bool(replies and (SAME in replies[-1] or _LAST in replies[-1]))
    return f"OUTPUT: {f'{ANSWER_MARKER}{chr(10)}' if is_final else ''}{page(shop, design)}"


def page_reply(pictures: Sequence[bytes]) -> str:
    """Return the human's reply to pictures of the page so far (if there is one) and of the target page."""
    from treadle.demo.pages.sight import Unseen, seen_design  # loads numpy and Pillow

    if not pictures:
        return UNKNOWN
    try:
        wanted = seen_design(pictures[-1])
        shown = seen_design(pictures[0]) if len(pictures) > 1 else None
    except Unseen:
        return UNKNOWN
    if wanted is None:
        return UNKNOWN
    if shown is None:
        return " ".join(["I see no page with a bar, a panel and cards.", *_sentences(wanted, None)])
    return " ".join(_sentences(wanted, shown)[:MAX_TOLD]) or SAME


def _sentences(wanted: Design, shown: Design | None) -> list[str]:
    """Return a sentence for each detail in which the designs differ; for every detail if no page is shown."""
    said = {
        "bar": f"The bar must be {wanted.bar}",
        "panel": f"The panel must be {wanted.panel}",
        "heading": f"The heading must be {'in' if wanted.heading == 'middle' else 'on'} the {wanted.heading}",
        "num_cards": f"There must be {wanted.num_cards} cards",
    }
    differing = [one.name for one in fields(Design) if _detail(wanted, one.name) != _detail(shown, one.name)]
    return [f"{said[name]}{f', not {_detail(shown, name)}' if shown else ''}." for name in differing]


def _detail(design: Design | None, name: str) -> Any:
    return None if design is None else getattr(design, name)


def _guessed(draws: Draws) -> Design:
    colors = tuple(COLORS)
    return Design(
        bar=draws.choose("bar", colors),
        panel=draws.choose("panel", colors),
        heading=draws.choose("heading", PLACES),
        num_cards=draws.choose("cards", NUM_CARDS),
    )


def _changed(design: Design, reply: str) -> Design:
    """Return a design with the changes that the human's reply asks for."""
    told = {name: match[1] for name, pattern in _TOLD.items() if (match := pattern.search(reply))}
    changes: dict[str, Any] = dict(told)
    if "num_cards" in told:
        changes["num_cards"] = int(told["num_cards"])
    return replace(design, **changes)
