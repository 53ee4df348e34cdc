"""The product's texts are plain English: docstrings, comments, and raised or logged messages."""

from __future__ import annotations

import ast
import functools
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
DIALECT = re.compile(
    r"\bwhere (it|there)('s| is| are|\b)|\b(nobody|somebody|whoever)\b|\bbeside\b|\bgo(es|ne)? on (with|from|behind)\b"
    r"|\b(came|comes?) (of|to)\b|\banew\b",
    re.IGNORECASE,
)
# Drawn from the product's texts before they were rewritten: 129 of 1,000 matched one of these.
RIDDLES = re.compile(
    "|".join(
        (
            r"\bow(e|es|ed|ing)\b",
            r"\b(take|takes|taken|took) over\b",
            r"\bin force\b",
            r"\bat work\b",
            r"\b(is|are|was|were) (gone|had)\b",
            r"\b(told|tell|tells) (of|apart|from|by|it|them|how|what|which)\b",
            r"\bstands?\b",
            r"\b(hand|hands|handed) (over|back|out|on|to)\b",
            r"\b(say|says|said) (so|of|by|that|what|how|which)\b",
            r"\b(die|dies|died|dying)\b",
            r"\b(want|wants|wanted)\b",
            r"\b(know|knows|known) (of|how|what|which|where)\b",
            r"\bthat which\b|\bthose who\b|\bwho (asks|waits|calls|has|is|reads|runs)\b",
            r"\bnone (of|is|are|where)\b",
            r"\b(is|are|was) to be\b",
            r"\blies? (in|at|there|on)\b",
            r"\bgo(es)? by\b|\bwent\b",
            r"\bbrings?\b|\bbrought\b",
            r"\bas (it|they) (is|are|was|were)\b",
            r"\bmore than once\b|\bonce more\b",
        )
    ),
    re.IGNORECASE,
)
OPENINGS = frozenset(("What", "Whether", "Of", "Who", "Where", "Which", "How"))
LOGGED = frozenset(("debug", "info", "warning", "error", "exception"))


@functools.cache
def product() -> tuple[tuple[str, str], ...]:
    """Return path and source of the product's modules."""
    listed = subprocess.check_output(["git", "-C", str(ROOT), "ls-files", "*.py"], text=True).split()
    names = [name for name in listed if not name.startswith(("tests/", "typings/"))]
    return tuple((name, (ROOT / name).read_text()) for name in names if (ROOT / name).exists())


class Product(NamedTuple):
    """The product as its readers see it: all of it is read in one pass, for which parsing takes seconds."""

    texts: list[tuple[str, str]]
    """Path and text of each docstring, message and comment."""
    docs: list[str]
    """Docstrings of functions."""
    names: set[tuple[str, str]]
    """Path and name of everything that is defined: classes, functions, parameters, fields, variables."""


@functools.cache
def read_product() -> Product:
    found = Product([], [], set())
    for path, source in product():
        texts = [text for node in ast.walk(ast.parse(source)) for text in _read(found, path, node)]
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        texts += [token.string for token in tokens if token.type == tokenize.COMMENT]
        found.texts.extend((path, text) for text in texts if len(text.split()) > 2)
    return found


def _read(found: Product, path: str, node: ast.AST) -> Iterator[str]:
    """Add the docstring and the names of a node; yield its texts."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        yield node.value.value
    if isinstance(node, ast.Raise) or _logs(node):
        words = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
        yield " ".join(word for word in words if isinstance(word, str))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (doc := ast.get_docstring(node)):
        found.docs.append(doc)
    found.names.update((path, name) for name in _names(node))


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.keyword) and node.arg:
        yield node.arg


def _logs(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOGGED


def matching(pattern: re.Pattern[str]) -> list[str]:
    return [f"{name}: {' '.join(text.split())[:100]}" for name, text in read_product().texts if pattern.search(text)]


def test_at_most_5_texts_in_1000_use_dialect_words() -> None:
    found = matching(DIALECT)
    assert 1000 * len(found) / len(read_product().texts) <= 5, "\n".join(found)


def test_at_most_5_texts_in_1000_match_riddle_patterns() -> None:
    found = matching(RIDDLES)
    assert 1000 * len(found) / len(read_product().texts) <= 5, "\n".join(found)


def test_function_docstrings_start_with_a_verb() -> None:
    docs = read_product().docs
    found = [doc for doc in docs if doc.split()[0] in OPENINGS]
    assert len(found) <= 0.03 * len(docs), "\n".join(found)


# Names of the private dialect that were replaced by those of the field; compared without case and underscores.
REPLACED = frozenset(
    (
        "crew",
        "kit",
        "nobody",
        "ballot",
        "fate",
        "takenover",
        "asking",
        "stretch",
        "patience",
        "harmless",
        "handover",
        "went",
        "owed",
        "workbench",
        "docket",
        "opinion",
        "course",
        "making",
        "openmodel",
        "forgetful",
        "iswhole",
        "attendance",
        "numowed",
        "owedretries",
        "owedpauses",
    )
)


def test_no_replaced_name_is_defined_or_used() -> None:
    assert {(path, name) for path, name in read_product().names if name.lower().replace("_", "") in REPLACED} == set()


def test_no_key_or_column_has_a_replaced_name() -> None:
    keys = {
        word
        for page in ("config.md", "tables.md")
        for word in re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/reference" / page).read_text(), re.M)
    }
    assert len(keys) > 300
    assert {key for key in keys if key.replace("_", "") in REPLACED} == set()
