"""Drawing the next token of several sequences, each with its own settings and its own stream of random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treadle.core.llm.config import Sampling
from treadle.rl.branching import ENTROPY_WINDOW
from treadle.rl.engine.errors import Diverged


class Draw:
    """The tokens drawn so far for one request, and the stream that decides the next one.

    The stream depends on the request's seed alone, so that who else is in the batch decides nothing.

    Attributes:
        ids: Drawn ids.
        logprobs: Their log-probabilities at the request's temperature, before `top_p` and its like cut anything off.
        entropies: In nats, at the first positions at least, where they were asked for.
    """

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self.sampling = sampling
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.entropies: list[float] = []
        self._stream = torch.Generator().manual_seed(seed)

    def uniform(self) -> float:
        """The next random number in [0, 1)."""
        return float(torch.rand((), dtype=torch.float64, generator=self._stream))


def draw(logits: torch.Tensor, draws: Sequence[Draw], vocab_size: int, *, with_entropies: bool = True) -> list[int]:
    """Draw one more token for each; `logits` is (sequences, at least vocab_size), further ids are never drawn.

    Raises Diverged where they are no numbers.
    """
    scores = logits[:, :vocab_size].float()
    temperatures = [one.sampling.temperature or 1.0 for one in draws]
    if any(temperature != 1.0 for temperature in temperatures):
        scores = scores / torch.tensor(temperatures, device=scores.device)[:, None]
    logprobs = scores.log_softmax(-1)
    probabilities = logprobs.exp()
    if not torch.isfinite(probabilities.sum()):
        raise Diverged("the policy's scores are no numbers")
    chosen = _choose(probabilities, draws).to(logits.device)
    taken = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
    if with_entropies and any(len(one.ids) < ENTROPY_WINDOW for one in draws):
        for one, entropy in zip(draws, torch.special.entr(probabilities).sum(-1).tolist(), strict=True):
            one.entropies.append(entropy)
    ids: list[int] = chosen.tolist()
    for one, id_, logprob in zip(draws, ids, taken, strict=True):
        one.ids.append(id_)
        one.logprobs.append(logprob)
    return ids


def _choose(probabilities: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    chosen = torch.empty(len(draws), dtype=torch.long)
    plain = [row for row, one in enumerate(draws) if one.sampling.temperature > 0 and _is_plain(one.sampling)]
    if plain:
        values = probabilities[plain].cpu().double().cumsum(-1)
        points = torch.tensor([draws[row].uniform() for row in plain], dtype=torch.float64) * values[:, -1]
        # The first id at which the sum exceeds the point: never one of probability 0.
        chosen[plain] = torch.searchsorted(values, points[:, None], right=True)[:, 0].clamp_max(values.shape[1] - 1)
    for row in sorted({*range(len(draws))} - {*plain}):
        chosen[row] = _choose_one(probabilities[row], draws[row])
    return chosen


def _is_plain(sampling: Sampling) -> bool:
    return sampling.top_p >= 1 and sampling.top_k <= 0 and sampling.min_p <= 0


def _choose_one(probabilities: torch.Tensor, one: Draw) -> int:
    """With the tail cut off, or the likeliest."""
    sampling = one.sampling
    if sampling.temperature == 0:
        return int(probabilities.argmax())
    values, ids = probabilities.double().sort(descending=True, stable=True)
    sums = values.cumsum(-1)
    # What lies before an id decides, so that the likeliest always stays.
    kept = (sums - values < sampling.top_p) & (values >= sampling.min_p * values[0])
    if sampling.top_k > 0:
        kept[sampling.top_k :] = False
    sums = torch.where(kept, values, 0.0).cumsum(-1)
    point = one.uniform() * sums[-1]
    place = torch.searchsorted(sums, point, right=True).clamp_max(int(kept.sum()) - 1)
    return int(ids[place])
