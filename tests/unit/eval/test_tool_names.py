"""Figures by tool: their names come from the data, and no model can make any number of them."""

from __future__ import annotations

from support.tables.scored_rollouts import averages, scored

from treadle.environments.rollouts.tool_counts import MAX_TOOLS, OTHERS
from treadle.eval.config import ReportSettings
from treadle.eval.dataset_figures import dataset_figures
from treadle.eval.metrics import bounds_of, is_figure, is_share, title_of
from treadle.eval.scored_rollout import ScoredRollout, ToolCalls
from treadle.eval.tool_names import MAX_TOOL_SETS, CommonTools
from treadle.report.summary import model_rows

SETTINGS = ReportSettings(bootstrap_samples=100)


def calling(number: int = 0, dataset: str = "world", failed: int = 0, **tools: int) -> ScoredRollout:
    """Return a rollout with so many calls of each tool, of which `failed` of each failed."""
    calls = tuple(ToolCalls(tool.replace("_", "-"), num, num, failed) for tool, num in sorted(tools.items()))
    total = sum(tools.values())
    return scored(1.0, total, question_key=f"q{number}", dataset=dataset, tools=calls)


def test_three_tools_have_figures_of_their_own() -> None:
    rollouts = [calling(0, calc=2, failed=1), calling(1, calc=1, wiki_page=3), calling(2, shell=1), calling(3)]
    tools = CommonTools.of(rollouts)
    assert tools.names == ("calc", "wiki-page", "shell")
    (figures,) = dataset_figures(map(tools.apply, rollouts), tools=tools.names)
    values = {name: sums.value for name, sums in figures.sums.items() if ":" in name}
    assert values == {
        "calls:calc": 0.75, "calls:wiki-page": 0.75, "calls:shell": 0.25,
        "call_success:calc": 2 / 3, "call_success:wiki-page": 1.0, "call_success:shell": 1.0,
    }  # fmt: skip
    used = {name: num for name, num in figures.counts.items() if name.startswith("tools_used:")}
    assert used == {"tools_used:calc": 1, "tools_used:calc+wiki-page": 1, "tools_used:shell": 1, "tools_used:none": 1}
    assert title_of("calls:calc") == "calls of calc" and is_share("call_success:calc") and not is_share("calls:calc")
    assert bounds_of("calls:calc") is None and is_figure("calls:calc") and not is_figure("tools_used:calc")


def test_averages_count_data_sets_in_which_a_tool_is_not_called() -> None:
    rollouts = [calling(0, "a", calc=2), calling(1, "b", wiki=1), calling(2, "b", wiki=1)]
    tools = CommonTools.of(rollouts)
    parts = dataset_figures(map(tools.apply, rollouts), tools=tools.names)
    assert averages(parts)["all"]["calls:calc"] == 1.0 and averages(parts)["all"]["calls:wiki"] == 0.5


def test_ten_thousand_names_make_few_figures() -> None:
    rollouts = [calling(number, calc=1, **{f"tool_{number}": 1}) for number in range(10_000)]
    tools = CommonTools.of(rollouts)
    assert tools.names[0] == "calc" and tools.names[-1] == OTHERS and len(tools.names) == MAX_TOOLS + 1
    parts = dataset_figures(map(tools.apply, rollouts), tools=tools.names)
    rows = {row["figure"]: row["value"] for row in model_rows("m", parts, SETTINGS)}
    assert len(rows) < 100 and rows["calls:calc"] == 1.0
    assert sum(value for name, value in rows.items() if name.startswith("calls:")) == rows["calls_requested"] == 2.0
    assert sum(value for name, value in rows.items() if name.startswith("tools_used:")) == 10_000


def test_sets_of_tools_are_few_even_if_all_tools_are_real() -> None:
    """Eight tools have 255 sets; the sixteen most common ones are counted, the rest together."""
    rollouts = []
    for number in range(1, 256):
        names = [f"t{place}" for place in range(8) if number >> place & 1]
        rollouts += [calling(number, **dict.fromkeys(names, 1)) for _ in range(1 + (number < 9))]
    tools = CommonTools.of(rollouts)
    assert len(tools.names) == 8 and OTHERS not in tools.names
    (figures,) = dataset_figures(map(tools.apply, rollouts), tools=tools.names)
    used = {name: num for name, num in figures.counts.items() if name.startswith("tools_used:")}
    assert len(used) == MAX_TOOL_SETS + 1 and used["tools_used:t0"] == 2
    assert used[f"tools_used:{OTHERS}"] == len(rollouts) - sum(num for name, num in used.items() if OTHERS not in name)
    assert sum(used.values()) == len(rollouts)


def test_rollouts_that_an_environment_scored_have_figures_by_tool_only_with_calls() -> None:
    with_calls = scored(2.0, 1, scorer="environment", tools=(ToolCalls("move", 1, 1, 0),))
    without = scored(-1.0, scorer="environment")
    for rollouts, expected in (([with_calls, without], True), ([without], False)):
        (figures,) = dataset_figures(rollouts, tools=("move",))
        assert ("calls:move" in figures.sums) is expected
        assert any(name.startswith("tools_used:") for name in figures.counts) is expected
