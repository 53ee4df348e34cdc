"""Losses and gradients of the real trainer on preferences, from inside the environment `trl`; prints a line of JSON.

`python pair_trainer_checks.py TOKENIZER OUTPUT`. The models are tables: the probability of each id depends only on the
id before it, so that every log-probability of a test can be given.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import nn
from transformers import AutoTokenizer, GenerationConfig, PretrainedConfig, PreTrainedModel, get_scheduler
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput
from trl import DPOConfig

from treadle.core.engines.config import Machine
from treadle.rl.dpo.arguments import dpo_arguments
from treadle.rl.dpo.config import DpoOptions
from treadle.rl.engine.dpo.pair_trainer import PairCollator, PairTrainer

VOCABULARY = 264
OTHER = VOCABULARY - 1
"""Id that gets the rest of the probability."""
BETTER = [[0.5, 0.0, 0.5, 0.0], [0.2, 0.4]]
WORSE = [[-0.1] * 4, [0.3] * 4, [-0.2] * 2]
Turns = Sequence[Sequence[float]]


class TableConfig(PretrainedConfig):
    model_type = "table"

    def __init__(self, vocab_size: int = VOCABULARY, **kwargs: Any) -> None:
        self.vocab_size = self.hidden_size = vocab_size
        super().__init__(**kwargs)


class Table(PreTrainedModel):
    config_class = TableConfig

    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        self.table = nn.Embedding(VOCABULARY, VOCABULARY)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, **_: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=self.table(input_ids))


class TableModel(PreTrainedModel):
    """Language model whose logits after an id are the row of the id."""

    config_class = TableConfig
    base_model_prefix = "model"

    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        self.model = Table(config)
        self.lm_head = nn.Linear(VOCABULARY, VOCABULARY, bias=False)
        self.post_init()
        self.generation_config = GenerationConfig()
        with torch.no_grad():
            self.lm_head.weight.copy_(torch.eye(VOCABULARY))
            self.model.table.weight.fill_(-1e4)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        return CausalLMOutput(logits=self.lm_head(self.model(input_ids).last_hidden_state))

    def set(self, before: int, after: int, log_prob: float) -> None:
        with torch.no_grad():
            row = self.model.table.weight[before]
            row[after] = log_prob
            row[OTHER] = math.log1p(-math.exp(log_prob))


class Pairs:
    """Pairs with given log-probabilities under policy and reference; every id occurs once in all of them."""

    def __init__(self) -> None:
        self.policy, self.reference = TableModel(TableConfig()), TableModel(TableConfig())
        self.rows: list[dict[str, Any]] = []
        self._next = itertools.count(2)

    def side(self, policy: Turns, reference: Turns) -> dict[str, Any]:
        ids, mask = [], []
        for own, others in zip(policy, reference, strict=True):
            ids.append(next(self._next))  # the human says something
            mask.append(0)
            for log_prob, other in zip(own, others, strict=True):
                after = next(self._next)
                self.policy.set(ids[-1], after, log_prob)
                self.reference.set(ids[-1], after, other)
                ids.append(after)
                mask.append(1)
        return {"ids": ids, "mask": mask, "turns": [len(turn) for turn in policy]}

    def add(self, chosen: tuple[Turns, Turns], rejected: tuple[Turns, Turns], num_prompt: int = 1) -> None:
        prompt = [next(self._next) for _ in range(num_prompt)]
        for before, after in itertools.pairwise(prompt):
            self.policy.set(before, after, -1.5)
            self.reference.set(before, after, -1.0)
        row: dict[str, Any] = {"prompt_ids": prompt}
        for name, side in (("chosen", self.side(*chosen)), ("rejected", self.side(*rejected))):
            row |= {f"{name}_{key}": value for key, value in side.items()}
        self.rows.append(row)


def by_ratio(turns: Turns, reference: float = -2.0) -> tuple[Turns, Turns]:
    """Return log-probabilities under policy and reference with these log-ratios."""
    return [[reference + ratio for ratio in turn] for turn in turns], [[reference] * len(turn) for turn in turns]


class Checks:
    def __init__(self, tokenizer: Path, output: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(tokenizer)
        self._tokenizer.pad_token = self._tokenizer.pad_token or self._tokenizer.eos_token
        self._output = output

    def trainer(self, pairs: Pairs, aggregate: Any, nll_coef: float = 0.0) -> tuple[PairTrainer, dict[str, Any]]:
        options = DpoOptions(aggregate=aggregate, nll_coef=nll_coef, batch_size=len(pairs.rows))
        arguments = dpo_arguments(
            options,
            Machine(),
            num_rows=len(pairs.rows),
            has_holdout=False,
            longest_row=60,
            output=str(self._output),
            seed=1,
        )
        collator = PairCollator(self._tokenizer.pad_token_id, aggregate)
        trainer = PairTrainer(
            model=pairs.policy,
            ref_model=pairs.reference,
            args=DPOConfig(**arguments),
            data_collator=collator,
            train_dataset=Dataset.from_list(pairs.rows),
            processing_class=self._tokenizer,
            aggregate=aggregate,
            nll_coef=nll_coef,
        )
        return trainer, collator(pairs.rows)

    def loss(self, pairs: Pairs, aggregate: Any, nll_coef: float = 0.0) -> dict[str, Any]:
        trainer, batch = self.trainer(pairs, aggregate, nll_coef)
        loss = trainer.compute_loss(trainer.model, batch)
        return {"loss": float(loss.detach()), **trainer.take_margins("train")}

    def by_aggregate(self) -> dict[str, Any]:
        """Return the loss of the example of the paper's formulas, and that of equal models."""
        found = {}
        for aggregate in ("token_mean", "turn_sum", "sum"):
            pairs, equal = Pairs(), Pairs()
            pairs.add(by_ratio(BETTER), by_ratio(WORSE))
            equal.add(by_ratio([[0.0] * 3]), by_ratio([[0.0], [0.0]]))
            found[aggregate] = self.loss(pairs, aggregate)
            found[f"{aggregate} equal"] = self.loss(equal, aggregate)
        return found

    def likelihood(self) -> dict[str, Any]:
        """Return losses with the negative log-likelihood of the chosen side, with a short and a long prompt."""
        found = {}
        for name, num_prompt, nll_coef in (("plain", 1, 0.0), ("nll", 1, 0.01), ("long", 37, 0.01)):
            pairs = Pairs()
            pairs.add(([[-0.5] * 4], [[-0.75] * 4]), ([[-1.5] * 4], [[-1.25] * 4]), num_prompt)
            found[name] = self.loss(pairs, "sum", nll_coef)["loss"]
        pairs = Pairs()
        pairs.add(by_ratio(BETTER), by_ratio(WORSE))
        found["turn_sum"] = self.loss(pairs, "turn_sum", 0.01)["loss"]
        return found

    def batch_of_two(self) -> dict[str, Any]:
        """Return the loss of two pairs of different lengths in one batch."""
        pairs = Pairs()
        pairs.add(by_ratio(BETTER), by_ratio(WORSE))
        pairs.add(by_ratio([[0.0]]), by_ratio([[0.02] * 3, [0.02]]))
        return {aggregate: self.loss(pairs, aggregate) for aggregate in ("token_mean", "turn_sum")}

    def slope(self) -> list[float]:
        """Return the loss at normalised margins around 0.02."""
        found = []
        for margin in (0.019, 0.02, 0.021):
            pairs = Pairs()
            pairs.add(by_ratio([[margin] * 2, [margin]]), by_ratio([[0.0] * 5]))
            found.append(self.loss(pairs, "token_mean")["loss"])
        return found

    def gradients(self) -> dict[str, list[int]]:
        """Return the ids whose next id has a gradient, and those before sampled ids of either side."""
        found = {}
        for aggregate in ("token_mean", "turn_sum", "sum"):
            pairs = Pairs()
            pairs.add(by_ratio(BETTER), by_ratio(WORSE), num_prompt=3)
            trainer, batch = self.trainer(pairs, aggregate, 0.01)
            trainer.compute_loss(trainer.model, batch).backward()
            moved = trainer.model.model.table.weight.grad.abs().sum(dim=1).nonzero().flatten().tolist()
            row = pairs.rows[0]
            expected = [
                before
                for side in ("chosen", "rejected")
                for (before, _), (_, kept) in itertools.pairwise(
                    zip(row[f"{side}_ids"], row[f"{side}_mask"], strict=True)
                )
                if kept
            ]
            found[aggregate] = [sorted(moved), sorted(expected)]
        return found

    def schedule(self) -> dict[str, float]:
        """Return the learning rate of the preset at steps of a training of 1,000."""
        options = DpoOptions(preset="sweet-llama-8b", aggregate="sum")
        arguments = dpo_arguments(
            options, Machine(variant="cuda"), num_rows=8000, has_holdout=False, longest_row=1, output="o", seed=1
        )
        optimiser = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=arguments["learning_rate"])
        schedule = get_scheduler(
            arguments["lr_scheduler_type"],
            optimiser,
            num_warmup_steps=arguments["warmup_steps"],
            num_training_steps=arguments["max_steps"],
            scheduler_specific_kwargs=arguments["lr_scheduler_kwargs"],
        )
        rates = {}
        for step in range(1001):
            rates[str(step)] = schedule.get_last_lr()[0]
            optimiser.step()
            schedule.step()
        return {step: rates[step] for step in ("0", "15", "30", "515", "1000")}


def main(tokenizer: Path, output: Path) -> dict[str, Any]:
    """Everything."""
    checks = Checks(tokenizer, output)
    names = ("by_aggregate", "likelihood", "batch_of_two", "slope", "gradients", "schedule")
    return {name: getattr(checks, name)() for name in names}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
