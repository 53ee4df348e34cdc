"""Choose the rows of each step, in the order in which TRL reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

from treadle.agent.contract import Task
from treadle.core.seeds import derive_seed
from treadle.rl.training.plan import RlPlan


class StepRows:
    """Rows of each step of a plan: by the shares of environments if the plan has any, else in passes over all rows."""

    def __init__(self, plan: RlPlan, rows: Sequence[Task]) -> None:
        self._plan = plan
        self._shared = plan.rows_of_steps([row.environment for row in rows]) if plan.options.shares else None

    def of(self, step: int) -> list[int]:
        """Return the indices of the rows of a step, counted from 1."""
        if self._shared is not None:
            return self._shared[step - 1]
        plan = self._plan
        epoch, place = divmod(step - 1, plan.steps_per_epoch)
        order = torch.randperm(
            plan.num_rows, generator=torch.Generator().manual_seed(derive_seed(plan.seed, "rows", epoch))
        )
        count = plan.options.prompts_per_step
        chosen: list[int] = order[place * count : (place + 1) * count].tolist()
        return chosen


class StepSampler(Sampler[int]):  # type: ignore[misc]
    """Sampler of row indices in the order in which TRL reads them, over all steps of a plan.

    TRL reads the batch of a step once for each micro-batch and uses it once. The order of each pass depends only on the
    seed, so a resumed training gets the same rows as an uninterrupted one. With dynamic sampling, the rows of a step
    are not known beforehand, and placeholders (index 0) take their places.
    """

    def __init__(self, plan: RlPlan, rows: Sequence[Task], steps_per_generation: int) -> None:
        self._plan = plan
        self._rows = StepRows(plan, rows)
        self._reads = steps_per_generation
        self._placeholders = [0] * plan.options.prompts_per_step if plan.options.dynamic_sampling else []

    def __len__(self) -> int:
        return self._plan.num_steps * self._plan.trajectories_per_step * self._reads

    def __iter__(self) -> Iterator[int]:
        size = self._plan.options.group_size
        for step in range(1, self._plan.num_steps + 1):
            for _ in range(self._reads):
                for row in self._placeholders or self._rows.of(step):
                    yield from [row] * size
