"""Sample the next token of several sequences, each with its own settings and its own random stream."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treadle.core.engines.errors import Diverged
from treadle.core.llm.config import Sampling
from treadle.rl.groups.branching import ENTROPY_WINDOW


class TokenSampler:
    """Tokens sampled so far for one request, with the random stream that decides the next one.

    The stream depends only on the request's seed, so a result does not depend on the rest of the batch.

    Attributes:
        ids: Sampled token ids.
        logprobs: Log-probability of each id at the request's temperature, before `top_p`, `top_k` or `min_p` apply.
        entropies: Entropy in nats of at least the first positions, if requested.
    """

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self.sampling = sampling
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.entropies: list[float] = []
        self._stream = torch.Generator().manual_seed(seed)

    def uniform(self) -> float:
        """Return the next random number in [0, 1)."""
        return float(torch.rand((), dtype=torch.float64, generator=self._stream))


def draw(
    logits: torch.Tensor, draws: Sequence[TokenSampler], vocab_size: int, *, with_entropies: bool = True
) -> list[int]:
    """Sample one token for each sequence and return the ids.

    `logits` has the shape (sequences, at least vocab_size); ids from vocab_size on are never sampled. Raises Diverged
    if the logits contain nan or inf.
    """
    scores = logits[:, :vocab_size].float()
    temperatures = [one.sampling.temperature or 1.0 for one in draws]
    if any(temperature != 1.0 for temperature in temperatures):
        scores = scores / torch.tensor(temperatures, device=scores.device)[:, None]
    logprobs = scores.log_softmax(-1)
    probabilities = logprobs.exp()
    if not torch.isfinite(probabilities.sum()):
        raise Diverged("the policy's logits contain nan or inf")
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


def _choose(probabilities: torch.Tensor, draws: Sequence[TokenSampler]) -> torch.Tensor:
    chosen = torch.empty(len(draws), dtype=torch.long)
    plain = [row for row, one in enumerate(draws) if one.sampling.temperature > 0 and _is_plain(one.sampling)]
    if plain:
        values = probabilities[plain].cpu().double().cumsum(-1)
        points = torch.tensor([draws[row].uniform() for row in plain], dtype=torch.float64) * values[:, -1]
        # The first id whose cumulative probability exceeds the point; its own probability is never 0.
        chosen[plain] = torch.searchsorted(values, points[:, None], right=True)[:, 0].clamp_max(values.shape[1] - 1)
    for row in sorted({*range(len(draws))} - {*plain}):
        chosen[row] = _choose_one(probabilities[row], draws[row])
    return chosen


def _is_plain(sampling: Sampling) -> bool:
    return sampling.top_p >= 1 and sampling.top_k <= 0 and sampling.min_p <= 0


def _choose_one(probabilities: torch.Tensor, one: TokenSampler) -> int:
    """Sample one id with `top_p`, `top_k` and `min_p`, or return the most likely id at temperature 0."""
    sampling = one.sampling
    if sampling.temperature == 0:
        return int(probabilities.argmax())
    values, ids = probabilities.double().sort(descending=True, stable=True)
    sums = values.cumsum(-1)
    # The mass before an id decides, so the most likely id is always kept.
    kept = (sums - values < sampling.top_p) & (values >= sampling.min_p * values[0])
    if sampling.top_k > 0:
        kept[sampling.top_k :] = False
    sums = torch.where(kept, values, 0.0).cumsum(-1)
    point = one.uniform() * sums[-1]
    place = torch.searchsorted(sums, point, right=True).clamp_max(int(kept.sum()) - 1)
    return int(ids[place])
