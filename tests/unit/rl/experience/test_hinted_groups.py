"""Groups of rollouts that see experience: who sees it, what training sees of it, and what is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.training.rewards import group_rewards
from support.training.scripted_groups import (
    ALONE,
    ANSWER,
    SEARCH,
    ScriptedGenerator,
    StubTool,
    WordCodec,
    make_rollouts,
    num_results,
)

from treadle.agent.contract import EpisodeOptions, Task
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.rl.engine.group_source import ScoredGroup
from treadle.rl.engine.trl.sample_rows import rows_of_updates
from treadle.rl.experience.hints import HintedRuntime, Hints
from treadle.rl.experience.pool import ExperiencePool
from treadle.rl.experience.record import Experience
from treadle.rl.experience.settings import ExperienceUse
from treadle.rl.groups.dump import rollout_row
from treadle.rl.groups.group import Group, GroupJob
from treadle.rl.groups.rollout import GroupRollouts, roll_out_groups

TASK = Task("k", "Find the key?")
MARK = "experience"
POOL = ExperiencePool("default", 0.8, [Experience("strategy", "finding a key", "look twice")])


def hinted(use: ExperienceUse, codec: WordCodec, model: ScriptedGenerator, **hints: Any) -> GroupRollouts:
    """Return a runner whose groups see experience."""
    rollouts = make_rollouts(model, codec, branching=ALONE, tools=[StubTool("search")])
    return replace(rollouts, runtime=HintedRuntime(rollouts.runtime, Hints(use, **{"pool": POOL, **hints})))


def searching(codec: WordCodec) -> ScriptedGenerator:
    return ScriptedGenerator(codec, lambda context, seed: SEARCH if num_results(context) < seed % 2 else ANSWER)


async def rolled_out(
    use: ExperienceUse, codec: WordCodec | None = None, **hints: Any
) -> tuple[Group, WordCodec, ScriptedGenerator]:
    codec = codec or WordCodec()
    model = searching(codec)
    (group,) = await roll_out_groups(hinted(use, codec, model, **hints), [GroupJob("g", TASK, 8, 1)])
    return group, codec, model


@pytest.mark.covers("service-26")
async def test_discarded_experience_is_in_no_training_prompt_and_sampled_ids_are_untouched() -> None:
    use = ExperienceUse(rollout_mode="mixed", rollout_ratio=0.5)
    group, codec, model = await rolled_out(use)
    plain, _, _ = await rolled_out(ExperienceUse(), codec)
    seen = [one for one in group.trajectories if one.hint]
    assert len(seen) == 4 and [one.hint_cut for one in group.trajectories] == [
        bool(one.hint) for one in group.trajectories
    ]
    prompts = {tuple(one.prompt_ids) for one in group.trajectories}
    assert prompts == {tuple(plain.trajectories[0].prompt_ids)}, "all train on the prompt without it"
    assert MARK not in codec.decode([*prompts.pop()])
    first = [text for text in map(codec.decode, (one.prompt for one in model.requests)) if "<think>look" not in text]
    assert ["look twice" in text for text in first] == [bool(one.hint) for one in group.trajectories], "half saw it"
    for own, other in zip(group.trajectories, plain.trajectories, strict=True):
        assert (own.completion_ids, own.env_mask, own.logprobs) == (
            other.completion_ids,
            other.env_mask,
            other.logprobs,
        )


@pytest.mark.covers("service-26")
async def test_kept_experience_stays_in_training_prompts_without_the_mask() -> None:
    use = ExperienceUse(rollout_mode="all")
    group, codec, model = await rolled_out(use, kept=frozenset({TASK.key}))
    assert all(one.hint and not one.hint_cut for one in group.trajectories)
    for one in group.trajectories:
        assert "look twice" in codec.decode(one.prompt_ids) and one.prompt_ids in [
            list(r.prompt) for r in model.requests
        ]


@pytest.mark.covers("service-26")
async def test_nothing_found_leaves_the_group_as_it_is() -> None:
    empty = ExperiencePool("default", 0.8, [Experience("lesson", "weather", "take a coat")])
    group, _, _ = await rolled_out(ExperienceUse(rollout_mode="all"), pool=empty)
    assert not any(one.hint or one.hint_cut for one in group.trajectories)


async def test_records_that_do_not_fit_are_left_out_from_the_last() -> None:
    pool = ExperiencePool(
        "default", 0.8, [Experience("lesson", f"key {word}", f"advice {word}") for word in ("one", "two", "three")]
    )
    use = ExperienceUse(rollout_mode="all", top_k=3)
    most = 2
    fitting = Hints(use, pool, fits=lambda task, hint: hint.count("advice") <= most)
    assert fitting.text_of(TASK).count("advice") == 2
    most = 0
    assert fitting.text_of(TASK) == ""


async def test_hint_of_the_environment_is_joined_and_always_cut() -> None:
    hints = Hints(ExperienceUse(rollout_mode="all"), POOL, kept=frozenset({TASK.key}))
    (made,) = await hints.added_to([EpisodeOptions(hint="own")], TASK, 1)
    assert made.hint.startswith("own\n\n") and "look twice" in made.hint and not made.trains_on_hint


async def test_placeholder_in_a_record_is_not_replaced_again() -> None:
    pool = ExperiencePool("default", 0.8, [Experience("lesson", "key", "say {experience}")])
    text = Hints(ExperienceUse(rollout_mode="all", template="<{experience}>"), pool).text_of(TASK)
    assert text == "<1. key: say {experience}>"


async def test_rows_and_dumped_rollouts_say_which_hints_were_cut() -> None:
    group, _, _ = await rolled_out(ExperienceUse(rollout_mode="mixed"))
    rewards = group_rewards(group.items, ["1"], "math", 0.1, 0.1, dialect=TOOL_DIALECT)
    rows = rows_of_updates([ScoredGroup(group, rewards)], 1, 1, lambda number: number)
    assert [row.hint_cut for row in rows] == [bool(one.hint) for one in group.trajectories]
    notes = [rollout_row(1, group, *pair)["notes"] for pair in zip(group.trajectories, rewards, strict=True)]
    assert [note.endswith("hint:cut") for note in notes] == [bool(one.hint) for one in group.trajectories]


class _Given:
    """Runtime whose options are given."""

    async def group_options(self, task: Task, size: int, seed: int) -> Sequence[EpisodeOptions]:
        return [EpisodeOptions(group_seed=seed)] * size


async def test_other_options_of_the_environment_are_kept() -> None:
    runtime: Any = _Given()
    made = await HintedRuntime(runtime, Hints(ExperienceUse(rollout_mode="mixed"), POOL)).group_options(TASK, 8, 3)
    assert [one.group_seed for one in made] == [3] * 8 and sum(bool(one.hint) for one in made) == 4
