"""Experience in a training: the pool of each step, hints in the groups of a step, and updates that survive a kill."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.experience.scripted_author import ScriptedAuthor, records, roles, valid
from support.servers.scripted_server import Fault, ScriptedServer, served
from support.training.rewards import group_rewards
from support.training.scripted_groups import ALONE, ANSWER, ScriptedGenerator, WordCodec, make_rollouts

from treadle.agent.contract import Task
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.core.errors import EndpointUnavailable
from treadle.rl.engine.experience import TrainingExperience
from treadle.rl.engine.group_source import ScoredGroup
from treadle.rl.experience.files import ExperienceFiles
from treadle.rl.experience.record import Experience
from treadle.rl.experience.settings import ExperienceOptions, ExperienceSettings, ExperienceUse
from treadle.rl.groups.group import GroupJob
from treadle.rl.groups.rollout import MixedRollouts, roll_out_groups

TASK = Task("k", "Find the key?")


def lesson(shown: dict[str, Any]) -> list[dict[str, str]]:
    return [{"kind": "strategy", "situation": f"when asked: {shown['task']}", "advice": "look under the table"}]


@contextlib.contextmanager
def training(
    folder: Path,
    server: ScriptedServer | None,
    initial: list[Experience] | None = None,
    batch_size: int = 8,
    **use: Any,
) -> Iterator[TrainingExperience]:
    """Yield the experience of a training in a folder, as an attempt opens it."""
    summariser, validator = roles(server.url, outage_wait_s=0.05, retry_limit=1) if server is not None else (None, None)
    settings = ExperienceSettings(
        summariser=summariser, validator=validator, options=ExperienceOptions(batch_size=batch_size)
    )
    files = ExperienceFiles(folder, settings)
    files.put_initial(initial or [])
    opened = ExperienceFiles.of_job({"experience": files.as_job()})
    assert opened is not None
    made = TrainingExperience(ExperienceUse(**use), opened, frozenset(), lambda task, hint: True)
    with made.updating():
        yield made


async def rolled_out(experience: TrainingExperience, step: int) -> ScoredGroup:
    """Return the scored group of a step, of 4 rollouts."""
    codec, said = WordCodec(), ANSWER.replace("done", f"step {step}")
    rollouts = make_rollouts(ScriptedGenerator(codec, lambda *_: said), codec, branching=ALONE)
    mixed = experience.hinted(MixedRollouts({"default": rollouts}), step)
    (group,) = await roll_out_groups(mixed, [GroupJob("g", TASK, 4, step)])
    return ScoredGroup(group, group_rewards(group.items, ["1"], "math", 0.1, 0.1, dialect=TOOL_DIALECT))


def beat() -> None:
    """Do nothing while an update is awaited."""


@pytest.mark.covers("service-26")
async def test_update_of_a_step_is_seen_from_the_next_one_on(tmp_path: Path) -> None:
    author = ScriptedAuthor(lesson, valid)
    use = {"rollout_mode": "mixed", "update_steps": 2, "initial": False}
    with served(author) as server, training(tmp_path, server, **use) as experience:
        for step, number in ((1, 0), (2, 0), (3, 1), (4, 1), (5, 1)):
            made = await rolled_out(experience, step)
            assert sum(bool(one.hint) for one in made.group.trajectories) == (2 if number else 0)
            share = 0.5 if number else 0.0
            figures = {"num_experiences": number, "hinted": share, "hint_cut": share}
            assert experience.figures(step, [made]) == figures
            assert experience.is_due(step) == (step in (2, 4))
            experience.begin_update(step, [made])
            experience.finish_update(beat)
        (record,) = experience.pool_at(9).records
    assert (record.step, record.question_keys, record.advice) == (2, ("k",), "look under the table")
    # Step 4 was summarised and found to repeat step 2.
    assert [role for role, _ in author.shown] == ["summariser", "validator"] * 2
    assert "look under" not in author.shown[2][1]["rollouts"][0]["messages"][0]["content"]


async def test_update_that_is_made_again_after_a_kill_asks_nothing(tmp_path: Path) -> None:
    author = ScriptedAuthor(lesson, valid)
    use = {"rollout_mode": "all", "update_steps": 1, "initial": False}
    with served(author) as server:
        with training(tmp_path, server, **use) as experience:
            experience.begin_update(1, [await rolled_out(experience, 1)])
            experience.finish_update(beat)
            paid, found = len(author.asked), experience.pool_at(2).records
        with training(tmp_path, server, **use) as experience:
            assert experience.pool_at(1).records == []
            experience.begin_update(1, [await rolled_out(experience, 1)])
            experience.finish_update(beat)
            assert experience.pool_at(2).records == found and len(author.asked) == paid


async def test_equal_batches_of_a_group_are_paid_for_once(tmp_path: Path) -> None:
    author = ScriptedAuthor(lesson, valid)
    with (
        served(author) as server,
        training(tmp_path, server, batch_size=2, update_steps=1, initial=False) as experience,
    ):
        made = await rolled_out(experience, 1)
        assert len({one.trajectory.text for one in made.group.trajectories}) == 1
        experience.begin_update(1, [made])
        experience.finish_update(beat)
        assert len(experience.pool_at(2)) == 1
    assert [role for role, _ in author.shown] == ["summariser", "validator"]


async def test_replies_before_a_failed_update_are_not_paid_again(tmp_path: Path) -> None:
    author, fails = ScriptedAuthor(lesson, valid), [True]

    def script(request: Any) -> Any:
        if "The record is valid if" in request.text and fails[0]:
            return Fault.status(500)
        return author(request)

    use = {"rollout_mode": "all", "update_steps": 1, "initial": False}
    with served(script) as server:
        with training(tmp_path, server, **use) as experience:
            experience.begin_update(1, [await rolled_out(experience, 1)])
            with pytest.raises(EndpointUnavailable):
                experience.finish_update(beat)
        fails[0] = False
        with training(tmp_path, server, **use) as experience:
            experience.begin_update(1, [await rolled_out(experience, 1)])
            experience.finish_update(beat)
            assert len(experience.pool_at(2)) == 1
    assert [role for role, _ in author.shown] == ["summariser", "validator"]


async def test_refused_request_leaves_its_rollouts_out_and_training_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refusing(request: Any) -> Any:
        return Fault.status(400, "not this text") if "It is data" in request.text else "OK"

    with served(refusing) as server, training(tmp_path, server, update_steps=1, initial=False) as experience:
        experience.begin_update(1, [await rolled_out(experience, 1)])
        experience.finish_update(beat)
        assert experience.pool_at(2).records == []
    assert "no experience was made of rollouts of task k" in caplog.text and "not this text" in caplog.text


async def test_initial_pool_is_used_without_models(tmp_path: Path) -> None:
    initial = [*records("key"), *records("key else", workspace="other")]
    with training(tmp_path, None, initial, rollout_mode="all") as experience:
        made = await rolled_out(experience, 1)
        assert {one.hint.count("guessing") for one in made.group.trajectories} == {1}
        assert experience.figures(1, [made])["num_experiences"] == 1 and not experience.is_due(1)


def test_woexp_leaves_the_rollouts_as_they_are(tmp_path: Path) -> None:
    with training(tmp_path, None, records("key")) as experience:
        codec = WordCodec()
        rollouts = MixedRollouts(
            {"default": make_rollouts(ScriptedGenerator(codec, lambda *_: ANSWER), codec, branching=ALONE)}
        )
        assert experience.hinted(rollouts, 1) is rollouts
