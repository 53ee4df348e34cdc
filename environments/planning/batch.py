"""Read the calls of one turn from tags: several in one turn, and several queries in one tag, joined by a bar.

Ids are those of Agent Foundation Models (arXiv 2508.13167), with the turn in front: `t3.call_wiki_search_0_1`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treadle.agent.contract import Call

_BAR = re.compile(r"\\?\|")
_LABEL = re.compile(r"\s*((?:T|Task[ \t]+)\d{1,3})[ \t]*:\s*(?=\S)", re.IGNORECASE)

EMPTY_CALL = "the call is empty; write a query between the tags"
"""Error of a call without an argument."""


@dataclass(frozen=True, slots=True)
class TagMatch:
    """One complete tag in a text: its name, start and end, and the text between its markers."""

    name: str
    start: int
    end: int
    body: str


def find_tags(text: str, words: Sequence[str]) -> list[TagMatch]:
    """Return all complete tags of these words, by position.

    A tag goes from an opening marker to the next closing one, without another opening marker of the same word between
    them. Tags of different words may overlap: each word is searched on its own. Takes linear time.
    """
    found = []
    for word in words:
        opening, closing = f"<{word}>", f"</{word}>"
        position = 0
        while (end := text.find(closing, position)) >= 0:
            start = text.rfind(opening, position, end)
            position = end + len(closing)
            if start >= 0:
                found.append(TagMatch(word, start, position, text[start + len(opening) : end]))
    return sorted(found, key=lambda tag: tag.start)


def split_queries(body: str) -> list[str]:
    r"""Return the queries of a tag: parts between bars, stripped, without empty ones; `\|` is a bar inside a query."""
    parts, position = [""], 0
    for match in _BAR.finditer(body):
        parts[-1] += body[position : match.start()]
        position = match.end()
        if match[0] == "|":
            parts.append("")
        else:
            parts[-1] += "|"
    parts[-1] += body[position:]
    return [part for part in map(str.strip, parts) if part]


def read_calls(
    text: str,
    turn: int,
    parameters: Mapping[str, str],
    splitting: Sequence[str],
    *,
    several: bool = True,
    unavailable: Sequence[TagMatch] = (),
) -> tuple[Call, ...]:
    """Return the calls of a turn in the order of the text.

    `parameters` has the name of the argument for each tag that calls a tool, `splitting` the tags whose text may be
    several queries, `unavailable` the tags of the text that call missing tools. These, and tags without any query, give
    calls with an error. Without `several`, only the first tag counts.
    """
    calls: list[Call] = []
    tags = sorted([*find_tags(text, list(parameters)), *unavailable], key=lambda tag: tag.start)
    for index, tag in enumerate(tags if several else tags[:1]):
        id = f"t{turn}.call_{tag.name}_{index}"
        if tag.name not in parameters:
            error = f"there is no tool {tag.name} here; tools: {', '.join(parameters) or 'none'}"
            calls.append(Call(id, tag.name, {"input": tag.body.strip()}, error))
            continue
        queries = split_queries(tag.body) if tag.name in splitting else [tag.body.strip()]
        if not any(queries):
            calls.append(Call(id, tag.name, {parameters[tag.name]: ""}, EMPTY_CALL))
        for number, query in enumerate(filter(None, queries)):
            own = f"{id}_{number}" if tag.name in splitting else id
            calls.append(Call(own, tag.name, {parameters[tag.name]: query}))
    return tuple(calls)


def end_of_batch(text: str, words: Sequence[str], others: Sequence[str] = ()) -> int:
    """Return the end of the first run of tags with only white space between them; 0 without a tag.

    The run begins with a tag of `words`; tags of `others` may follow.
    """
    end = 0
    for tag in find_tags(text, [*words, *others]):
        if not end and tag.name not in words:
            continue
        if end and (tag.start < end or text[end : tag.start].strip()):
            break
        end = tag.end
    return end


def split_label(query: str) -> tuple[str, str]:
    """Return the label of a query that names a task of the plan, as in `T2: query`, and the query without it."""
    match = _LABEL.match(query)
    return (match[1], query[match.end() :]) if match else ("", query)
