"""Give TRL the trajectories of a step with their rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trl import GRPOTrainer

from treadle.agent.contract import Task
from treadle.rl.engine.dynamic_sampling import Draws, NoSpread, draw_groups, rows_of_draw
from treadle.rl.engine.experience import TrainingExperience
from treadle.rl.engine.group_source import GroupSource, ScoredGroup
from treadle.rl.engine.trl.events import TrlReporter, gathered, rank_and_world
from treadle.rl.engine.trl.sample_rows import SampleRow, rows_of_updates
from treadle.rl.engine.trl.step_rows import StepRows
from treadle.rl.groups.attempts import check_step
from treadle.rl.groups.dump import rollout_row, write_draws, write_started, write_step
from treadle.rl.groups.group import Group
from treadle.rl.groups.oversampling import oversampling_figures
from treadle.rl.rewards.rewarded import RewardedItem
from treadle.rl.training.figures import environment_figures, step_figures
from treadle.rl.training.plan import RlPlan


class RolloutFunction:
    """Callback that gives TRL the trajectories of a step with their rewards."""

    def __init__(
        self,
        plan: RlPlan,
        rows: Sequence[Task],
        source: GroupSource,
        refresh_weights: Callable[[], None],
        reporter: TrlReporter,
        dump: Path,
        experience: TrainingExperience | None = None,
    ) -> None:
        self._plan = plan
        self._rows = rows
        self._step_rows = StepRows(plan, rows)
        self._source = source
        self._refresh_weights = refresh_weights
        self._reporter = reporter
        self._dump = dump
        self._experience = experience
        if experience is not None:
            source.hinted = experience.hinted

    def __call__(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Return the samples of the trajectories of a step; TRL's `rollout_func`.

        A prompt is the index of its row, repeated once per trajectory of the group. Raises RuntimeError if the indices
        are not those of the plan's step, in whole groups.
        """
        options = self._plan.options
        indices = [int(prompt) for prompt in prompts]
        step = trainer.state.global_step // self._plan.updates_per_step + 1
        num_groups = len(indices) // options.group_size
        mine = slice(first := trainer.accelerator.process_index * num_groups, first + num_groups)
        planned = [0] * options.prompts_per_step if options.dynamic_sampling else self._step_rows.of(step)
        if indices != [index for index in planned[mine] for _ in range(options.group_size)]:
            raise RuntimeError(f"TRL requested other rollouts than the plan has in step {step}, or incomplete groups")
        self._refresh_weights()
        if options.dynamic_sampling:
            draws = self._draw(step)
            everyone, all_drawn = draws.chosen(options.prompts_per_step), [*draws.kept, *draws.equal]
            if rank_and_world()[0] == 0:
                write_draws(self._dump, step, map(_drawn, all_drawn))
            drawn = draws.figures(options.prompts_per_step)
        else:
            everyone = gathered(self._source.step(step, [self._rows[index] for index in planned[mine]], first))
            all_drawn, drawn = everyone, {}
            check_step([one.group for one in everyone])
        # A credit rule may send paid requests, so it gets only groups that are trained on.
        made = self._source.credited(everyone[mine], step)
        everyone = gathered(made)
        self._report_step(step, everyone, all_drawn, drawn, trainer)
        rows = rows_of_updates(
            made,
            self._plan.updates_per_step,
            trainer.args.gradient_accumulation_steps,
            lambda number: max(gathered([number])),
        )
        trainer.own_advantages = [row.advantage for row in rows]
        trainer.own_hint_cut = [row.hint_cut for row in rows] if self._experience is not None else []
        return _to_trl(rows)

    def end_step(self, step: int) -> None:
        """Wait, in all processes, until the update of the pool of experience that began in this step is stored."""
        if self._experience is not None and self._experience.is_due(step):
            self._experience.finish_update(self._reporter.heartbeat)
            gathered([step])

    def _draw(self, step: int) -> Draws[ScoredGroup]:
        """Return the groups of all draws of a step; each process rolls out its share of a draw.

        All processes get the same groups in the same order, and so make the same choice. Raises NoSpread if the
        rewards of every group are equal.
        """
        plan, options = self._plan, self._plan.options
        rank, world = rank_and_world()
        drawn: list[Group] = []

        def rows_of(draw: int) -> Sequence[int]:
            return rows_of_draw(plan.num_rows, options.prompts_per_draw, step, draw, plan.seed)

        def roll_out(rows: Sequence[int], num_before: int) -> Sequence[ScoredGroup]:
            begin, end = len(rows) * rank // world, len(rows) * (rank + 1) // world
            mine = self._source.step(step, [self._rows[row] for row in rows[begin:end]], num_before + begin)
            everyone = gathered(mine)
            drawn.extend(one.group for one in everyone)
            check_step(drawn)
            return everyone

        try:
            return draw_groups(
                options.prompts_per_step, options.max_extra_batches, rows_of, roll_out, lambda one: one.rewards
            )
        except NoSpread as error:
            raise NoSpread(f"step {step:,}: {error}") from None

    def _report_step(
        self,
        step: int,
        everyone: Sequence[ScoredGroup],
        all_drawn: Sequence[ScoredGroup],
        drawn: Mapping[str, int],
        trainer: GRPOTrainer,
    ) -> None:
        """Report the figures of a step's groups and draws, and store its rollouts."""
        names = [scored.group.question.environment for scored in everyone] if self._plan.is_mixed else None
        figures = {**step_figures([scored.rewards for scored in everyone], names), **drawn}
        if self._plan.options.oversample is not None:
            figures |= oversampling_figures((one.group.started, one.group.is_audit) for one in all_drawn)
        if self._experience is not None:
            figures |= self._experience.figures(step, everyone)
        self._reporter.set_figures(figures)
        for name, value in figures["parts"].items():
            # TRL logs these with its own metrics, to the trackers too.
            trainer._metrics["train"][f"parts/{name}"].append(value)
        for name, value in drawn.items():
            trainer._metrics["train"][f"sampling/{name}"].append(value)
        for name, value in environment_figures(figures.get("environments", {})):
            trainer._metrics["train"][name].append(value)
        if rank_and_world()[0] == 0:
            pairs = [
                (one.group, pair) for one in everyone for pair in zip(one.group.trajectories, one.rewards, strict=True)
            ]
            write_step(self._dump, step, [rollout_row(step, group, *pair) for group, pair in pairs])
            if self._experience is not None:
                self._experience.begin_update(step, everyone)
            if self._plan.options.oversample is not None:
                write_started(self._dump, step, [one.group for one in all_drawn])


def _drawn(one: ScoredGroup) -> tuple[dict[str, str], Sequence[RewardedItem]]:
    """Return key, data set and environment of a group's question as columns, and the rewards of the group."""
    question = one.group.question
    columns = {"question_key": question.key, "dataset": question.dataset, "environment": question.environment}
    return columns, one.rewards


def precomputed_rewards(completions: Sequence[Any], reward: Sequence[float | None], **_: Any) -> list[float | None]:
    """Return the rewards that came with the rollouts; TRL's reward function."""
    return list(reward)


def _to_trl(rows: Sequence[SampleRow]) -> dict[str, Any]:
    columns = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward")
    return {name: [getattr(row, name) for row in rows] for name in columns}


class RolloutFunctionSlot:
    """Placeholder for the rollout function: TRL needs it before the trainer exists, rollouts need the trainer."""

    rollouts: RolloutFunction

    def __call__(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Return what the rollout function returns."""
        return self.rollouts(prompts, trainer)
