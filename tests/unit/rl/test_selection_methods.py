"""Selection methods: found by name or in a file, seeded, checked, and reported under the names that they declare."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tables.selection_tables import EXAMPLE

from treadle.core.config import load_config
from treadle.core.errors import ConfigError, StageFailed
from treadle.rl.selection.choice import Choice, choose
from treadle.rl.selection.dispersion import Dispersion, DispersionSums
from treadle.rl.selection.methods.pareto import Pareto
from treadle.rl.selection.methods.random import Random
from treadle.rl.selection.report import SelectionFindings, draw_selection, metrics_of, render_report
from treadle.rl.selection.settings import SelectionOptions

HARDEST = '''
import numpy as np
from treadle.api import Candidates, Ranking, SelectionMethod


class Hardest(SelectionMethod):
    """Take the questions that are wrong most often."""

    PARTS = {"difficulty": "share of correctness that the rollouts miss"}
    most: float = 1.0
    """Greatest difficulty; harder questions come last."""

    def rank(self, candidates: Candidates, limit: int, seed: int) -> Ranking:
        missed = 1 - candidates.figures.mean
        order = np.argsort(np.where(missed > self.most, 1, -missed), kind="stable")
        return Ranking([candidates.keys[number] for number in order], parts={"difficulty": missed})
'''


@pytest.fixture(autouse=True)
def in_folder_of_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def dispersion() -> Dispersion:
    sums = DispersionSums()
    for number, (_, correctness, calls) in enumerate(EXAMPLE.values()):
        sums.add(np.full(len(calls), number), np.array(calls, np.int32), np.array(correctness, np.float64))
    return sums.totals()


def options_of(folder: Path, code: str, **changes: Any) -> SelectionOptions:
    (folder / "my_selection.py").write_text(code)
    given = {"method": {"type": "my_selection.py:Hardest", **changes.pop("method", {})}}
    return load_config(SelectionOptions, data={**given, **changes})


def chosen(options: SelectionOptions, seed: int = 0, *, backwards: bool = False) -> Choice:
    step = -1 if backwards else 1
    keys, domains = list(EXAMPLE)[::step], [domain for domain, _, _ in EXAMPLE.values()][::step]
    found, none = dispersion(), np.zeros(len(keys), bool)
    found = Dispersion(*(values[::step] for values in found))
    return choose(keys, found, domains, options=options, held_out=none, selected_before=none, seed=seed)


def order(choice: Choice) -> list[str]:
    """Return the selected keys in their order."""
    taken = np.flatnonzero(choice.place >= 0)
    return [choice.keys[number] for number in taken[np.argsort(choice.place[taken])]]


def pages(choice: Choice) -> tuple[Mapping[str, Any], str, str]:
    findings = SelectionFindings(choice, ["world"] * len(choice.keys), ["default"] * len(choice.keys), (), 0, 0)
    return metrics_of(findings), render_report(findings, 1), draw_selection(choice).decode()


def test_a_string_names_the_method_and_pareto_is_the_default() -> None:
    assert isinstance(SelectionOptions().method, Pareto)
    assert isinstance(load_config(SelectionOptions, data={"method": "random"}).method, Random)
    with pytest.raises(ConfigError, match=r"'method': type = 'best' is unknown; known: pareto, random"):
        load_config(SelectionOptions, data={"method": "best"})


RANDOM = {"method": "random"}


def random_options(**changes: Any) -> SelectionOptions:
    return load_config(SelectionOptions, data={**RANDOM, **changes})


def test_random_takes_only_mixed_questions_in_an_order_of_the_seed() -> None:
    orders = {seed: order(chosen(random_options(), seed)) for seed in range(40)}
    assert {tuple(sorted(one)) for one in orders.values()} == {tuple("ABCDF")}
    assert {one[0] for one in orders.values()} == set("ABCDF")
    assert order(chosen(random_options(), 3, backwards=True)) == orders[3]


def test_random_respects_limit_and_quotas() -> None:
    firsts = {tuple(order(chosen(random_options(max_questions=2), seed))) for seed in range(40)}
    assert all(len(first) == 2 for first in firsts) and len(firsts) > 10
    quotas = chosen(random_options(max_questions=5, quotas={"math": 1, "qa": 3}))
    domains = [quotas.domains[quotas.keys.index(key)] for key in order(quotas)]
    assert domains == ["math", "qa"]
    assert (quotas.counts()["over_quota"], quotas.unfilled()) == (3, [("qa", 1, 3)])


def test_random_has_no_groups_or_numbers_and_is_reported_without() -> None:
    choice = chosen(random_options(max_questions=4))
    assert set(choice.rank.tolist()) == {-1} and choice.facts(0)["rank"] is None and choice.facts(0)["parts"] == []
    metrics, report, picture = pages(choice)
    assert metrics["rows"] == 4 and not [name for name in metrics if "front" in name or name.startswith("part.")]
    assert "5 have rollouts that disagree; their order is that of the method random" in report
    assert "Fronts" not in report and "over the limit" in picture and "front" not in picture


def test_own_method_is_a_class_in_a_file_with_keys_of_its_own(tmp_path: Path) -> None:
    assert len(HARDEST.strip().splitlines()) <= 25
    choice = chosen(options_of(tmp_path, HARDEST, max_questions=2))
    missed = {key: 1 - sum(correct) / len(correct) for key, (_, correct, _) in EXAMPLE.items()}
    assert [missed[key] for key in order(choice)] == sorted((missed[key] for key in "ABCDF"), reverse=True)[:2]
    (part,) = choice.facts(list(EXAMPLE).index("F"))["parts"]
    assert part == {"name": "difficulty", "value": pytest.approx(missed["F"], abs=1e-6)}
    metrics, report, picture = pages(choice)
    assert metrics["part.difficulty"] == pytest.approx(np.mean([missed[key] for key in order(choice)]), abs=1e-6)
    assert "share of correctness that the rollouts miss" in report and "difficulty" in picture
    other = options_of(tmp_path, HARDEST, max_questions=2, method={"most": 0.3})
    assert order(chosen(other)) != order(choice)
    with pytest.raises(ConfigError, match="least"):
        options_of(tmp_path, HARDEST, method={"least": 0.3})


def test_edited_file_is_another_method(tmp_path: Path) -> None:
    first = options_of(tmp_path, HARDEST).method
    second = options_of(tmp_path, HARDEST + "# edited\n").method
    assert first.code_sha256 != second.code_sha256


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return Ranking([*candidates.keys, 'A'])", "it returned 'A' twice"),
        ("return Ranking(['Z\\x1b[2J'])", r"it returned 'Z\x1b[2J', which is no candidate"),
        ("return Ranking(candidates.keys[:2])", "it returned 2 of 5 candidates, of which 4 are wanted"),
        ("return candidates.keys", "it returned list, not a Ranking"),
        ("return None", "it returned NoneType, not a Ranking"),
        ("return Ranking(candidates.keys, groups=[0] * 5)", "it returned groups, but its class has no GROUP"),
        ("return Ranking(candidates.keys, parts={'spread': [0.0] * 5})", "part 'spread', which its PARTS"),
        ("return Ranking(candidates.keys, parts={'difficulty': [0.0]})", "part 'difficulty' is not 5 numbers"),
        ("raise KeyError('no\\nkey')", "KeyError:"),
        ("return Ranking([[1]])", "TypeError:"),
        ("raise SystemExit(0)", "the code tried to end the process"),
    ],
)
def test_unusable_results_of_a_method_are_refused_in_one_line(tmp_path: Path, body: str, said: str) -> None:
    code = HARDEST[: HARDEST.index("        missed")] + f"        {body}\n"
    with pytest.raises(StageFailed) as refused:
        chosen(options_of(tmp_path, code, max_questions=4))
    text = str(refused.value)
    assert text.startswith("selection.method my_selection.py:Hardest: ") and said in text
    assert "\n" not in text and "\x1b" not in text


def test_class_that_is_no_method_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not derived from treadle.api.SelectionMethod"):
        options_of(tmp_path, "class Hardest:\n    pass\n")
    with pytest.raises(ConfigError, match=r"has no method rank\(candidates, limit, seed\)"):
        options_of(tmp_path, "from treadle.api import SelectionMethod\nclass Hardest(SelectionMethod):\n    pass\n")
