"""Objectives, fronts, crowding and taking, against worked numbers and against definitions by brute force."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parity.et_agent.selection import Record, dominates, legacy_domain_in_rows, legacy_select, quadratic_fronts
from support.sweep import examples
from support.tables.selection_tables import EXAMPLE

from treadle.core.config import load_config
from treadle.core.errors import ConfigError, DataError, StageFailed
from treadle.core.untrusted.input_files import InputRow
from treadle.datagen.questions.benchmarks import rule_for
from treadle.datagen.questions.layouts import RowRejected
from treadle.datagen.questions.rows import parse_row
from treadle.datagen.questions.sources import QuestionsSettings
from treadle.rl.selection.choice import DECISIONS, Choice, choose
from treadle.rl.selection.dispersion import MAX_ROLLOUTS, Dispersion, DispersionSums, is_mixed
from treadle.rl.selection.methods.pareto_fronts import crowding_distances, distinct_points, rank_questions, sweep_ranks
from treadle.rl.selection.settings import SelectionOptions

UNHURRIED = settings(deadline=None, max_examples=examples(60))
KEYS = list(EXAMPLE)
DOMAINS = [domain for domain, _, _ in EXAMPLE.values()]


def dispersion(groups: Sequence[tuple[Sequence[float], Sequence[int]]]) -> Dispersion:
    sums = DispersionSums()
    for number, (correctness, calls) in enumerate(groups):
        sums.add(np.full(len(calls), number), np.array(calls, np.int32), np.array(correctness, np.float64))
    return sums.totals()


def of_example() -> Dispersion:
    return dispersion([(correctness, calls) for _, correctness, calls in EXAMPLE.values()])


def select(found: Dispersion, options: SelectionOptions, keys: Sequence[str], domains: Sequence[str]) -> Choice:
    no_question = np.zeros(len(keys), bool)
    return choose(keys, found, domains, options=options, held_out=no_question, selected_before=no_question)


def selected(choice: Choice) -> str:
    return "".join(sorted(choice.keys[number] for number in np.flatnonzero(choice.decisions == 0)))


def approx(values: Sequence[float]) -> object:
    return pytest.approx(values, abs=5e-4)


def records(source_of: dict[str, str] | None = None) -> list[Record]:
    sources = {"math": "aime", "qa": "hotpotqa"} | (source_of or {})
    return [Record(key, sources[domain], correct, calls) for key, (domain, correct, calls) in EXAMPLE.items()]


@pytest.mark.covers("pareto-1")
def test_worked_example_deviations_and_fronts() -> None:
    found = of_example()
    assert found.score_tool.tolist() == approx([0, 1.1180, 3, 1, 4, 0.5, 0, 0.5])
    assert found.score_corr.tolist() == approx([0.5, 0.4330, 0.3307, 0.4841, 0, 0.4330, 0, 0.0829])
    ranks = [0, 0, 0, 0, 0, 1, 3, 2]
    assert rank_questions(found.score_tool, found.score_corr, KEYS).rank.tolist() == ranks
    assert rank_questions(found.score_tool**2, found.score_corr**2, KEYS).rank.tolist() == ranks


@pytest.mark.covers("pareto-2")
def test_crowding_in_the_first_front_by_deviation_and_by_variance() -> None:
    found = of_example()
    by_deviation = rank_questions(found.score_tool, found.score_corr, KEYS).distance[:5].tolist()
    assert by_deviation == [math.inf, approx(0.8068), approx(1.5865), approx(0.4135), math.inf]
    by_variance = rank_questions(found.score_tool**2, found.score_corr**2, KEYS).distance[:5].tolist()
    assert by_variance == [math.inf, approx(1.0), approx(1.6719), approx(0.3281), math.inf]


@pytest.mark.covers("pareto-3")
@pytest.mark.parametrize(
    ("num_wanted", "keys"),
    [(2, "A"), (3, "AC"), (4, "ACB"), (5, "ABCD"), (6, "ABCDF"), (7, "ABCDF"), (8, "ABCDF")],
)
def test_legacy_selection_filters_last_and_keeps_fewer(num_wanted: int, keys: str) -> None:
    assert [record.id for record in legacy_select(records(), num_wanted)] == list(keys)


@pytest.mark.covers("pareto-4")
def test_filter_runs_first_and_every_slot_is_used() -> None:
    found = of_example()
    everything = select(found, SelectionOptions(), KEYS, DOMAINS)
    assert selected(everything) == "ABCDF"
    assert everything.rank.tolist() == [0, 0, 0, 0, -1, 1, -1, -1]
    assert everything.parts["distance"][:4].tolist() == [math.inf, approx(1.5729), math.inf, approx(0.7684)]
    assert [DECISIONS[code] for code in everything.decisions[[4, 6, 7]]] == ["all_right", "all_wrong", "all_right"]
    squared = rank_questions(found.score_tool[:4] ** 2, found.score_corr[:4] ** 2, KEYS[:4]).distance.tolist()
    assert squared == [math.inf, approx(1.7778), math.inf, approx(0.5833)]
    for num_wanted, keys in ((2, "AC"), (3, "ABC"), (4, "ABCD"), (5, "ABCDF")):
        assert selected(select(found, SelectionOptions(max_questions=num_wanted), KEYS, DOMAINS)) == keys


COORDINATES = st.integers(0, 6).map(lambda value: value / 2)
POINTS = st.lists(st.tuples(COORDINATES, COORDINATES), max_size=40)


def made_of(points: Sequence[tuple[float, float]]) -> list[Record]:
    return [Record(f"{index:03}", "", (), (), tool, corr) for index, (tool, corr) in enumerate(points)]


def arrays(points: Sequence[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(points, np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@pytest.mark.covers("pareto-5")
@UNHURRIED
@given(POINTS)
def test_sweep_ranks_equal_their_definition(points: list[tuple[float, float]]) -> None:
    ones = made_of(points)
    quadratic_fronts(ones)
    ranking = rank_questions(*arrays(points), [one.id for one in ones])
    assert ranking.rank.tolist() == [one.rank for one in ones]


@pytest.mark.covers("pareto-5")
def test_ten_thousand_random_points_rank_as_in_pairwise_comparison() -> None:
    generator = np.random.default_rng(7)
    tool, corr = generator.random(10_000), generator.random(10_000)
    ranks = rank_questions(tool, corr, [f"{number:05}" for number in range(10_000)]).rank
    left, count = np.arange(10_000), 0
    while len(left):
        # A point is dominated iff a point with more S_tool has more S_corr (there are no ties among random floats).
        order = left[np.argsort(-tool[left])]
        is_best = corr[order] >= np.maximum.accumulate(corr[order])
        assert (ranks[order] == count).tolist() == is_best.tolist()
        left, count = order[~is_best], count + 1
    assert count == ranks.max() + 1
    some = generator.choice(10_000, 600, replace=False)
    above = (tool[some, None] < tool[None, some]) & (corr[some, None] < corr[None, some])
    assert (ranks[some][None, :] < ranks[some][:, None])[above].all()


def crowding_by_hand(points: Sequence[tuple[float, float]]) -> dict[tuple[float, float], float]:
    """Compute it for the distinct points of one front."""
    distances = dict.fromkeys(points, 0.0)
    for axis in (0, 1):
        line = sorted(distances, key=lambda point: (point[axis], point[1 - axis]))
        spread = line[-1][axis] - line[0][axis]
        for place, point in enumerate(line):
            if not spread:
                continue
            if place in (0, len(line) - 1):
                distances[point] = math.inf
            else:
                distances[point] += (line[place + 1][axis] - line[place - 1][axis]) / spread
    return distances


@UNHURRIED
@given(POINTS)
def test_crowding_is_computed_on_distinct_points_and_shared_by_duplicates(points: list[tuple[float, float]]) -> None:
    ranking = rank_questions(*arrays(points), [f"{index:03}" for index in range(len(points))])
    for rank in set(ranking.rank.tolist()):
        members = [index for index in range(len(points)) if ranking.rank[index] == rank]
        by_hand = crowding_by_hand([points[index] for index in members])
        assert [ranking.distance[index] for index in members] == pytest.approx([by_hand[points[i]] for i in members])


@pytest.mark.covers("pareto-6")
@UNHURRIED
@given(st.lists(st.integers(0, 9).map(float), min_size=1, max_size=9, unique=True), st.floats(0, 4))
def test_an_objective_without_range_contributes_nothing(values: list[float], same: float) -> None:
    tool, corr = np.array(values), np.full(len(values), same)
    distances = crowding_distances(tool, corr, np.zeros(len(values), np.int32))
    by_hand = crowding_by_hand([(value, same) for value in values])
    assert distances.tolist() == pytest.approx([by_hand[value, same] for value in values])
    assert crowding_distances(tool[:1], corr[:1], np.zeros(1, np.int32)).tolist() == [0.0]


def order_by_hand(points: Sequence[tuple[float, float]]) -> list[int]:
    """Fronts one after another, in each of them rounds over distinct points."""
    ones = made_of(points)
    taken = []
    for front in quadratic_fronts(ones):
        members = [int(one.id) for one in front]
        by_hand = crowding_by_hand([points[index] for index in members])
        waiting = {
            point: sorted(index for index in members if points[index] == point)
            for point in sorted(by_hand, key=lambda point: (-by_hand[point], -point[1], -point[0]))
        }
        while any(waiting.values()):
            taken += [indices.pop(0) for indices in waiting.values() if indices]
    return taken


@pytest.mark.covers("pareto-5")
@UNHURRIED
@given(POINTS, st.randoms(use_true_random=False))
def test_selection_order_equals_its_definition_for_any_input_order(
    points: list[tuple[float, float]], shuffler: random.Random
) -> None:
    keys = [f"{index:03}" for index in range(len(points))]
    expected = [keys[index] for index in order_by_hand(points)]
    mixed = list(range(len(points)))
    shuffler.shuffle(mixed)
    tool, corr = arrays([points[index] for index in mixed])
    ranking = rank_questions(tool, corr, [keys[index] for index in mixed])
    assert [keys[mixed[place]] for place in ranking.order.tolist()] == expected


@pytest.mark.covers("pareto-5")
@UNHURRIED
@given(POINTS, st.integers(1, 40))
def test_no_excluded_question_dominates_a_selected_one(points: list[tuple[float, float]], limit: int) -> None:
    ones = made_of(points)
    order = rank_questions(*arrays(points), [one.id for one in ones]).order.tolist()
    taken, left = order[:limit], order[limit:]
    assert not any(dominates(ones[out], ones[chosen]) for out in left for chosen in taken)


def test_popular_point_does_not_crowd_out_its_front() -> None:
    points = [(1.0, 1.0)] * 50 + [(0.0, 2.0), (2.0, 0.0)]
    order = rank_questions(*arrays(points), [f"{index:02}" for index in range(52)]).order.tolist()
    assert order[:3] == [50, 51, 0]


def columns(group: Sequence[tuple[float, int]]) -> tuple[list[float], list[int]]:
    """Correctness and calls of a question's rollouts."""
    return [correctness for correctness, _ in group], [calls for _, calls in group]


GROUPS = st.lists(
    st.lists(st.tuples(st.sampled_from([0.0, 1 / 3, 0.5, 2 / 3, 0.8, 1.0]), st.integers(0, 9)), min_size=1, max_size=9),
    min_size=1,
    max_size=8,
)


@UNHURRIED
@given(GROUPS, st.randoms(use_true_random=False))
def test_sums_give_population_deviations_in_any_rollout_order(
    groups: list[list[tuple[float, int]]], shuffler: random.Random
) -> None:
    rollouts = [(number, *outcome) for number, group in enumerate(groups) for outcome in group]
    whole = dispersion([columns(group) for group in groups])
    shuffler.shuffle(rollouts)
    sums = DispersionSums()
    for start in range(0, len(rollouts), 5):
        numbers, correctness, calls = (np.array(column) for column in zip(*rollouts[start : start + 5], strict=True))
        sums.add(numbers, calls, correctness)
    for one, other in zip(whole, sums.totals(), strict=True):
        assert one.tolist() == other.tolist()
    for number, group in enumerate(groups):
        correctness, calls = columns(group)
        assert whole.score_corr[number] == pytest.approx(statistics.pstdev(correctness), abs=2e-6)
        assert whole.score_tool[number] == pytest.approx(statistics.pstdev(calls))
        assert whole.mean[number] == pytest.approx(statistics.fmean(correctness), abs=1e-6)
        assert (whole.lowest[number], whole.highest[number]) == pytest.approx(
            (min(correctness), max(correctness)), abs=1e-6
        )


@pytest.mark.parametrize("outcomes", [[1, 0, 0], [1, 0.5, 0, 0, 0], [1, 1, 0.25, 0, 0, 0, 0]])
def test_equal_spreads_are_equal_points_for_any_number_of_rollouts(outcomes: list[float]) -> None:
    found = dispersion(
        [(outcomes * repeats, [round(4 * one) for one in outcomes] * repeats) for repeats in range(1, 30)]
    )
    assert len(set(found.score_corr.tolist())) == len(set(found.score_tool.tolist())) == 1


def test_unusable_rollouts_do_not_count() -> None:
    lost = math.nan
    found = dispersion([([1, 0, lost, lost], [1, 3, 9, 9]), ([lost] * 3, [1, 2, 3]), ([1, 0], [1, 3])])
    assert found.num_rollouts.tolist() == [4, 3, 2] and found.num_usable.tolist() == [2, 0, 2]
    assert found.score_tool[0] == found.score_tool[2] == 1.0
    assert all(math.isnan(values[1]) for values in found[2:])
    choice = select(found, SelectionOptions(min_rollouts=2), ["a", "b", "c"], ["math"] * 3)
    assert [DECISIONS[code] for code in choice.decisions] == ["selected", "too_few_rollouts", "selected"]


def test_huge_reward_does_not_make_the_others_equal() -> None:
    rewards = np.array([-1e9, 0.0, 0.0, 1.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75])
    sums = DispersionSums(-1e9, 1.0)
    sums.add(np.arange(10) // 2, np.zeros(10, np.int64), rewards)
    choice = select(sums.totals(), SelectionOptions(min_rollouts=2), list("abcde"), ["task"] * 5)
    expected = ["selected", "selected", "all_wrong", "all_wrong", "all_right"]
    assert [DECISIONS[code] for code in choice.decisions] == expected


def test_rollout_overflow_and_invalid_scores_are_refused() -> None:
    sums = DispersionSums()
    sums.add(np.zeros(MAX_ROLLOUTS, np.int64), np.ones(MAX_ROLLOUTS, np.int64), np.ones(MAX_ROLLOUTS))
    assert sums.totals().score_corr.tolist() == [0.0]
    sums.add(np.zeros(1, np.int64), np.ones(1, np.int64), np.ones(1))
    with pytest.raises(DataError, match="3,001 rollouts"):
        sums.totals()
    with pytest.raises(ValueError, match="outside"):
        sums.add(np.zeros(1, np.int64), np.ones(1, np.int64), np.array([1.5]))


@pytest.mark.covers("pareto-6")
def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 questions, 2 calls and 3 scores"):
        DispersionSums().add(np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(3))


@UNHURRIED
@given(st.lists(st.sampled_from([0.0, 0.5, 0.749, 0.75, 1.0]) | st.floats(0, 1), min_size=1, max_size=9), st.booleans())
def test_mixed_questions_are_defined_by_the_domain_filter(values: list[float], graded: bool) -> None:
    expected = (
        any(value >= 0.75 for value in values) and any(value < 0.75 for value in values)
        if graded
        else 0 in values and 1 in values
    )
    lowest, highest = np.array([min(values)]), np.array([max(values)])
    assert is_mixed(lowest, highest, np.array(["qa" if graded else "math"]), 0.75).tolist() == [expected]


def test_questions_of_a_users_domain_are_mixed_if_their_scores_differ() -> None:
    lowest, highest = np.array([0.3, 0.3, 0.7]), np.array([0.4, 0.3, 0.7])
    assert is_mixed(lowest, highest, np.array(["poetry"] * 3), 0.75).tolist() == [True, False, False]
    found = dispersion([([0.3, 0.4], [0, 1]), ([0.3, 0.3], [0, 1]), ([0.7, 0.7], [0, 1])])
    choice = choose(
        list("abc"),
        found,
        ["poetry"] * 3,
        options=SelectionOptions(min_rollouts=2, quotas={"poetry": 5}),
        held_out=np.zeros(3, bool),
        selected_before=np.zeros(3, bool),
    )
    assert [DECISIONS[code] for code in choice.decisions] == ["selected", "all_wrong", "all_right"]


def test_filters_apply_in_order_and_each_question_is_counted_once() -> None:
    found = dispersion([([1, 0, 1, 0], [0, 1, 2, 3])] * 4 + [([1, 0], [0, 1])])
    held_out = np.array([True, False, False, False, True])
    before = np.array([True, True, False, False, False])
    made = {"held_out": held_out, "selected_before": before}
    keys, domains = list("abcde"), ["math"] * 5
    choice = choose(keys, found, domains, options=SelectionOptions(exclude_previous=True, max_questions=1), **made)
    assert [DECISIONS[code] for code in choice.decisions] == [
        "held_out",
        "selected_before",
        "selected",
        "over_limit",
        "held_out",
    ]
    assert sum(choice.counts().values()) == 5
    kept = choose(keys, found, domains, options=SelectionOptions(), **made)
    assert [DECISIONS[code] for code in kept.decisions] == ["held_out", "selected", "selected", "selected", "held_out"]


def test_quotas_rank_each_domain_separately() -> None:
    groups = [([1, 0, 0, 0], [0, 0, 0, calls]) for calls in range(1, 5)] + [([1, 0.7, 0.7, 0.7], [0, 0, 0, 0])] * 4
    found, keys, domains = dispersion(groups), list("abcdefgh"), ["math"] * 4 + ["qa"] * 4
    assert selected(select(found, SelectionOptions(max_questions=4), keys, domains)) == "abcd"
    choice = select(found, SelectionOptions(max_questions=4, quotas={"math": 1, "qa": 3}), keys, domains)
    assert selected(choice) == "defg"
    assert choice.rank[[3, 4]].tolist() == [0, 0]
    assert (choice.counts()["over_quota"], choice.counts()["over_limit"], choice.unfilled()) == (4, 0, [])
    assert unselected_by_pool(select(found, SelectionOptions(max_questions=4), keys, domains)) == [
        ("", ["over_limit"] * 4)
    ]
    assert unselected_by_pool(choice) == [("math", ["over_quota"] * 3), ("qa", ["over_quota"])]
    assert sorted(choice.place.tolist()) == [-1, -1, -1, -1, 0, 1, 2, 3]
    with pytest.raises(StageFailed, match="no quota for domain math"):
        select(found, SelectionOptions(quotas={"qa": 3}), keys, domains)
    without = select(found, SelectionOptions(quotas={"qa": 9, "math": 0}), keys, domains)
    assert (selected(without), without.unfilled()) == ("efgh", [("qa", 4, 9)])


def unselected_by_pool(choice: Choice) -> list[tuple[str, list[str]]]:
    """Return the decisions of the unselected questions of each ranked pool."""
    return [
        (name, [DECISIONS[code] for code in pool.decisions if DECISIONS[code] != "selected"])
        for name, pool in choice.pools()
    ]


def test_fully_held_out_domain_needs_no_quota() -> None:
    found = dispersion([([1, 0, 1, 0], [0, 1, 2, 3])] * 2)
    made = {"held_out": np.array([False, True]), "selected_before": np.zeros(2, bool)}
    choice = choose(["a", "b"], found, ["math", "qa"], options=SelectionOptions(quotas={"math": 2}), **made)
    assert [DECISIONS[code] for code in choice.decisions] == ["selected", "held_out"]


def test_unsatisfiable_quotas_are_refused() -> None:
    for quotas, said in (({"math": 9}, "more than max_questions = 8"), ({"math": 0}, "all quotas are 0")):
        with pytest.raises(ConfigError, match=said):
            load_config(SelectionOptions, data={"max_questions": 8, "quotas": quotas})


@UNHURRIED
@given(GROUPS)
def test_legacy_selection_keeps_the_same_questions_if_everything_fits(groups: list[list[tuple[float, int]]]) -> None:
    found = dispersion([columns(group) for group in groups])
    keys = [str(number) for number in range(len(groups))]
    ones = [Record(key, "hotpotqa", *columns(group)) for key, group in zip(keys, groups, strict=True)]
    legacy = legacy_select(ones, 99)
    ours = select(found, SelectionOptions(min_rollouts=2), keys, ["qa"] * len(keys))
    few = {keys[number] for number, group in enumerate(groups) if len(group) < 2}
    assert set(selected(ours)) == {record.id for record in legacy} - few


@pytest.mark.covers("pareto-7")
def test_legacy_selection_treats_one_source_as_math_in_the_filter_and_qa_in_rows() -> None:
    mixed = Record("a", "still", [1, 0.8, 0, 0], [1, 1, 1, 1])
    graded = Record("b", "still", [0.9, 0.1, 0.2, 0.3], [1, 1, 1, 1])
    assert [record.id for record in legacy_select([mixed, graded], 2)] == ["a"]
    assert (legacy_domain_in_rows("still"), legacy_domain_in_rows("dapo")) == ("qa", "math")


@pytest.mark.covers("pareto-7")
def test_sources_have_one_domain_map_and_an_unknown_one_is_named() -> None:
    sources = ("openr1", "numina-tir", "numina-cot", "aime", "dapo", "still")
    assert {rule_for(source).domain for source in sources} == {"math"}
    settings = load_config(QuestionsSettings, data={"sources": [{"path": "q.jsonl", "source_field": "source"}]})
    row = {"source": "elsewhere", "question": "How many?", "answer": "12"}
    with pytest.raises(RowRejected, match="'elsewhere' has no domain; add it to questions.domains") as refused:
        parse_row(InputRow(1, row), settings.sources[0], settings)
    assert refused.value.reason == "unknown_source"


def test_legacy_selection_keeps_nothing_without_scores() -> None:
    unscored = [Record(key, "aime", None, calls) for key, (_, _, calls) in EXAMPLE.items()]
    assert legacy_select(unscored, 8) == []


def test_legacy_duplicates_and_ties_depend_on_file_order() -> None:
    groups = [("a", [1, 0, 0, 0]), ("b", [1, 1, 0, 0]), ("c", [1, 1, 0, 0]), ("d", [1, 1, 0, 0])]

    def taken(order: Sequence[tuple[str, list[int]]]) -> Counter[str]:
        return Counter(record.id for record in legacy_select([Record(k, "aime", c, [1, 1, 1, 1]) for k, c in order], 2))

    assert taken(groups) != taken(groups[::-1])
    assert len(distinct_points(*arrays([(0.0, 1.0)] * 3)).tool) == 1
    assert sweep_ranks(distinct_points(*arrays([]))).tolist() == []
