"""Tokens of a guided rollout apart from those of its turns, from its cached units."""

from __future__ import annotations

import orjson

from treadle.core.llm.types import Completion
from treadle.core.seeds import derive_seed
from treadle.rl.guided.turns import choices_of, guide_tokens


class Units(dict[str, bytes]):
    """Cached units."""

    def append(self, unit: str, value: bytes) -> None:
        self[unit] = value


def candidate(prompt_tokens: int, completion_tokens: int) -> bytes:
    return Completion("x", (1,), "stop", None, prompt_tokens, completion_tokens, "http://x", 0.1, 0).to_json()


def choice(chosen: int) -> bytes:
    return orjson.dumps({"chosen": chosen, "num_candidates": 2, "scored": []})


def test_chosen_candidates_are_counted_with_their_turns_alone() -> None:
    units = {
        "llm-0": candidate(10, 2),
        "candidate-5-0": candidate(10, 1),
        "candidate-5-1": candidate(10, 2),
        "critic-5-0": orjson.dumps([-1.5, 40]),
        "critic-5-1": orjson.dumps([-2.5, 41]),
        "reference-5-0": orjson.dumps([-1.0, 20]),
        "choice-5": choice(1),
        "candidate-6-0": candidate(100, 30),
        "ask/human-0": candidate(1000, 1000),
        "tool-0": b"{}",
    }
    assert guide_tokens(units) == (10 + 20 + 100, 1 + 30, 81)
    restarted = {f"restart-1/{name}": value for name, value in units.items()}
    assert guide_tokens(units | restarted) == (260, 62, 162)
    assert guide_tokens({}) == (0, 0, 0)


def test_choices_are_those_of_the_turns_of_one_seed() -> None:
    units = Units({f"choice-{derive_seed(7, turn)}": choice(turn) for turn in (0, 1, 2)})
    units["choice-8"] = choice(9)
    assert [one["chosen"] for one in choices_of(units, 7, 2)] == [0, 1]
    assert choices_of(units, 8, 3) == []
