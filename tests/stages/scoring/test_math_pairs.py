"""Equality of mathematical answers on labelled pairs, next to plain math-verify."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from importlib.metadata import version

import pytest
from support import math_pairs
from support.math_pairs import VERIFIED, Pair, labelled_pairs

from treadle.core.answers.math_equal import UNDECIDED_RULES, math_equal
from treadle.core.answers.symbolic import SymbolicChecker


def test_math_pairs_are_unique_and_cover_both_verdicts() -> None:
    pairs = labelled_pairs()
    assert len(pairs) >= 400
    assert len({(pair.prediction, pair.gold) for pair in pairs}) == len(pairs)
    kinds = Counter((pair.kind, pair.equal) for pair in pairs)
    assert all(kinds[kind, equal] >= 3 for kind, _ in kinds for equal in (True, False))


@pytest.mark.covers("evaluation-4")
def test_labelled_pairs_are_judged_at_least_as_well_as_by_math_verify() -> None:
    pairs = labelled_pairs()
    with SymbolicChecker(limit_s=10.0) as checker:
        verdicts = [math_equal(pair.prediction, pair.gold, checker) for pair in pairs]
    theirs = [verdict == "=" for verdict in _verified()["verdicts"]]
    ours = [verdict.equal for verdict in verdicts]
    wrong = [
        f"{pair.kind}: {pair.prediction}  ~  {pair.gold}  found {verdict}"
        for pair, verdict in zip(pairs, verdicts, strict=True)
        if verdict.equal is not pair.equal
    ]
    told = "\n".join([f"ours {_tally(ours, pairs)}, math-verify {_tally(theirs, pairs)}", *wrong])
    assert _num_right(ours, pairs) >= _num_right(theirs, pairs), told
    assert _num_false_accepts(ours, pairs) <= _num_false_accepts(theirs, pairs), told
    # Above that floor: what was reached is kept.
    assert _num_right(ours, pairs) >= 0.99 * len(pairs) and _num_false_accepts(ours, pairs) == 0, told
    assert not [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict.rule in UNDECIDED_RULES], told


def test_recorded_verdicts_are_those_of_this_math_verify() -> None:
    recorded = _verified()
    assert recorded["version"] == version("math-verify"), "record them again: see support/math_pairs.py"
    assert len(recorded["verdicts"]) == len(labelled_pairs())


@pytest.mark.sweep
def test_math_verify_judges_as_recorded() -> None:
    command = [sys.executable, math_pairs.__file__]
    assert json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) == _verified()


def _verified() -> dict[str, str]:
    return dict(json.loads(VERIFIED.read_text(encoding="utf-8")))


def _num_right(found: list[bool], pairs: list[Pair]) -> int:
    return sum(equal is pair.equal for equal, pair in zip(found, pairs, strict=True))


def _num_false_accepts(found: list[bool], pairs: list[Pair]) -> int:
    return sum(equal and not pair.equal for equal, pair in zip(found, pairs, strict=True))


def _tally(found: list[bool], pairs: list[Pair]) -> str:
    return f"{_num_right(found, pairs)} of {len(pairs)} right with {_num_false_accepts(found, pairs)} false accepts"
