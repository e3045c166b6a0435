"""From logits to a distribution to a token, and the accept-or-resample rule that keeps speculation unbiased."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from calibration.decoding.errors import DecodingError


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen. Temperature 0 is greedy; `top_k` 0 and `top_p` 1 keep every token.

    Raises DecodingError for values outside their range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise DecodingError(f"temperature: must be at least 0 and finite (got {self.temperature})")
        if self.top_k < 0:
            raise DecodingError(f"top_k: must be at least 0, which keeps every token (got {self.top_k})")
        if not 0 < self.top_p <= 1:
            raise DecodingError(f"top_p: must be above 0 and at most 1 (got {self.top_p})")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """The distribution a token is drawn from, shape (..., vocabulary) as the logits; at least single precision.

        Temperature first, then top-k, then top-p, each renormalised: the order of the common libraries. Ties at the
        k-th logit all stay, so that the result does not hang on the order of the vocabulary. Greedy is a point mass.
        """
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.greedy:
            return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
        logits = logits / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            smallest_kept = logits.topk(self.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < smallest_kept, -torch.inf)
        probs = torch.softmax(logits, dim=-1)
        if self.top_p < 1:
            ordered, order = probs.sort(dim=-1, descending=True, stable=True)
            # A token stays while those before it hold less than top_p, so the most likely one always stays.
            dropped = ordered.cumsum(-1) - ordered >= self.top_p
            probs = probs.masked_fill(torch.zeros_like(dropped).scatter(-1, order, dropped), 0.0)
            probs = probs / probs.sum(-1, keepdim=True)
        return probs


GREEDY = Sampling()


# Handed the logits of each position a draft token is chosen at, shape (vocabulary,).
Watch = Callable[[torch.Tensor], None]


class Stream(Protocol):
    """A source of uniform numbers in [0, 1)."""

    def random(self) -> float: ...


class RandomStreams:
    """One seed, one stream per use: what is drafted, whether it is accepted, what is emitted instead.

    `sequence` tells the sequences of a batch apart, so that each draws what it would draw alone.
    """

    def __init__(self, seed: int = 0, sequence: int = 0):
        self.draft: Stream = np.random.default_rng([seed, sequence, *b"draft"])
        self.accept: Stream = np.random.default_rng([seed, sequence, *b"accept"])
        self.emit: Stream = np.random.default_rng([seed, sequence, *b"emit"])


def draw(probs: torch.Tensor, stream: Stream) -> int:
    """A token from one distribution, shape (vocabulary,), by inverting its cumulative sum in double precision."""
    cumulative = probs.double().cumsum(-1)
    level = cumulative[-1] * stream.random()
    return min(int(torch.searchsorted(cumulative, level, right=True)), len(probs) - 1)


def choose(logits: torch.Tensor, sampling: Sampling, stream: Stream) -> int:
    """The next token from the logits of one position, shape (vocabulary,)."""
    return int(logits.argmax(-1)) if sampling.greedy else draw(sampling.probabilities(logits), stream)


def choose_draft(
    logits: torch.Tensor,
    sampling: Sampling,
    streams: RandomStreams,
    distributions: list[torch.Tensor],
    watch: Watch | None = None,
) -> int:
    """A draft token from the logits of one position; the distribution it was drawn from is kept, unless the draft is greedy."""
    if watch is not None:
        watch(logits)
    if sampling.greedy:
        return int(logits.argmax(-1))
    distributions.append(sampling.probabilities(logits))
    return draw(distributions[-1], streams.draft)


def confidence(logits: torch.Tensor) -> torch.Tensor:
    """What a drafter gives its likeliest token at temperature 1, shape (...): the number that rules such as llama.cpp's
    `--draft-p-min` hold against a threshold."""
    return torch.softmax(logits.float(), dim=-1).amax(-1)


def acceptance_probability(target_probs: torch.Tensor, draft_probs: torch.Tensor | None, token: int) -> float:
    """min(1, p_target / p_draft) of a drafted token. Leviathan et al. 2023, section 2.3; no `draft_probs`: a point mass."""
    target_prob = float(target_probs[token])
    draft_prob = 1.0 if draft_probs is None else float(draft_probs[token])
    return min(1.0, target_prob / draft_prob)


def residual_probabilities(target_probs: torch.Tensor, draft_probs: torch.Tensor | None, token: int) -> torch.Tensor:
    """max(0, p_target - p_draft), normalised: what is emitted in place of a rejected `token`, shape (vocabulary,)."""
    if draft_probs is None:
        residual = target_probs.clone()
        residual[token] = 0.0
    else:
        residual = (target_probs - draft_probs).clamp(min=0.0)
    total = residual.sum()
    # Two equal distributions leave nothing over; only rounding can have rejected then.
    return residual / total if total > 0 else target_probs
