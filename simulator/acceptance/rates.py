"""The ways acceptance is reported, turned into each other; curves of τ turned into rates, and rates extended.

Five numbers go by the same few words. For drafts 1..γ of one round:

* conditional rate i: P(draft i accepted | all before it were). Independent acceptance has one value for all, α.
* survival rate i (vLLM's "per-position acceptance rate", unconditional): P(drafts 1..i all accepted); never rises.
* τ, mean acceptance length: 1 + the sum of the survival rates; the 1 is the bonus token. vLLM, SGLang, EAGLE and
  Spec-Bench print it so; TensorRT-LLM's forced acceptance, aiconfigurator and gpt-fast print τ - 1.
* draft acceptance rate: accepted / drafted = (τ - 1) / γ, where every round has γ drafts.
* τ of rounds with a proposal, or of all rounds: they differ where a drafter may find nothing to propose (n-gram).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.theory import increasing_root

Rates = npt.NDArray[np.float64]
# Weights and slopes of a fit below this are rounding.
_LEAST_SLOPE = 1e-10


def survival_from_conditional(conditional_rates: Sequence[float] | Rates) -> Rates:
    """Survival rate i is the product of the conditional rates 1..i.

    >>> survival_from_conditional([0.8, 0.5]).tolist()
    [0.8, 0.4]
    """
    survival: Rates = np.cumprod(np.asarray(conditional_rates, dtype=float))
    return survival


def conditional_from_survival(survival_rates: Sequence[float] | Rates) -> Rates:
    """Conditional rate i is survival i / survival i-1; 0 where nothing survives that far.

    >>> conditional_from_survival([0.8, 0.4, 0.0, 0.0]).tolist()
    [0.8, 0.5, 0.0, 0.0]
    """
    survival = np.asarray(survival_rates, dtype=float)
    before = np.concatenate(([1.0], survival[:-1])) if survival.size else survival
    conditional: Rates = np.divide(survival, before, out=np.zeros_like(survival), where=before > 0)
    return conditional


def sglang_acceptance_length(accept_rate: float, num_draft_tokens: int, *, counts_root: bool) -> float:
    """τ from SGLang's logged "accept rate". `num_draft_tokens` counts the root, so a chain drafts one token less.

    `counts_root`: older releases printed τ / num_draft_tokens; newer ones accepted drafts / (num_draft_tokens - 1).

    >>> round(sglang_acceptance_length(0.54, 4, counts_root=True), 2)
    2.16
    >>> round(sglang_acceptance_length(0.39, 4, counts_root=False), 2)
    2.17
    """
    return accept_rate * num_draft_tokens if counts_root else 1 + accept_rate * (num_draft_tokens - 1)


@dataclass(frozen=True, slots=True)
class AcceptanceCounters:
    """What an engine counted: `drafts` are rounds with a proposal, the others are `rounds_without_draft`.

    Rates of rounds with different draft lengths do not average; counters add. From a vLLM run of prompt lookup:

    >>> run = AcceptanceCounters(drafts=993, draft_tokens=4960, accepted_tokens=3562, rounds_without_draft=821)
    >>> round(run.mean_acceptance_length_of_proposals, 2), round(run.mean_acceptance_length, 2)
    (4.59, 2.96)
    >>> round(run.draft_acceptance_rate, 3), round(run.proposal_share, 3), run.emitted_tokens
    (0.718, 0.547, 5376)
    """

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    rounds_without_draft: int = 0

    def __post_init__(self) -> None:
        if not (
            0 <= self.accepted_tokens <= self.draft_tokens
            and 0 <= self.drafts <= self.draft_tokens
            and self.rounds_without_draft >= 0
        ):
            raise ValueError(f"must have accepted_tokens and drafts between 0 and draft_tokens (got {self})")
        if self.drafts + self.rounds_without_draft == 0:
            raise ValueError("must have at least one round")

    @classmethod
    def from_llama_cpp(cls, n_predict: int, n_drafted: int, n_accept: int) -> AcceptanceCounters:
        """llama.cpp counts no rounds: each emits one token of its own, so there are n_predict - n_accept of them, and at most as
        many with a proposal as there are drafts."""
        rounds = n_predict - n_accept
        proposals = min(rounds, n_drafted)
        return cls(proposals, n_drafted, n_accept, rounds - proposals)

    @property
    def mean_acceptance_length_of_proposals(self) -> float:
        """τ over rounds with a proposal, bonus included: what vLLM and SGLang print. 1 where there was none."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else 1.0

    @property
    def mean_acceptance_length(self) -> float:
        """τ over all rounds: generated tokens per decode step of one sequence."""
        return 1 + self.accepted_tokens / (self.drafts + self.rounds_without_draft)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / drafted; 0 where nothing was drafted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def proposal_share(self) -> float:
        """Share of rounds that had a proposal."""
        return self.drafts / (self.drafts + self.rounds_without_draft)

    @property
    def emitted_tokens(self) -> int:
        return self.accepted_tokens + self.drafts + self.rounds_without_draft


def check_curve(mean_acceptance_lengths: Mapping[int, float]) -> None:
    """Raises ValueError where there is no τ, or one outside 1..γ+1."""
    if not mean_acceptance_lengths:
        raise ValueError("must have at least one point")
    for count, length in mean_acceptance_lengths.items():
        if count < 1 or not 1 <= length <= count + 1:
            raise ValueError(
                f"τ must be between 1 and {count + 1} at {count} speculative tokens, bonus included (got {length:g})"
            )


def survival_from_curve(mean_acceptance_lengths: Mapping[int, float]) -> Rates:
    """Survival rates 1..γmax from τ measured at several γ (keys), each γ fixed in its own run.

    survival i = τ(i) - τ(i-1), which takes the rate of a depth to be the same at every γ. Noise is met by the nearest
    (least squares) curve whose increments never rise and never fall below 0. A γ that was not measured is filled:
    conditional rates are equal across a gap, save that a missing γ = 1 before measured 2 and 3 takes conditional rates
    1, 2, 3 to decay geometrically. Hiding γ = 1 of the shipped curves costs that rule 0.6 % of τ(1) on average.
    Raises ValueError where some τ is outside 1..γ+1.

    >>> survival_from_curve({1: 1.8, 2: 2.4, 3: 2.7}).round(6).tolist()
    [0.8, 0.6, 0.3]
    >>> survival_from_curve({2: 2.44}).round(6).tolist()  # one point: independent acceptance, α + α² = 1.44
    [0.8, 0.64]
    """
    check_curve(mean_acceptance_lengths)
    counts = sorted(mean_acceptance_lengths)
    curve = nearest_concave(counts, [mean_acceptance_lengths[count] for count in counts])
    survival: list[float] = []
    for count, length in zip(counts, curve, strict=True):
        missing, gained = count - len(survival), length - 1 - sum(survival)
        if count == 2 and missing == 2 and 3 in mean_acceptance_lengths:
            second = max(0.0, curve[1] - curve[0]) ** (1 / 3)
            survival.append(min(1.0, gained / (1 + second)))
            survival.append(min(survival[0], gained - survival[0]))
        else:
            survival += _filled(survival[-1] if survival else 1.0, max(0.0, gained), missing)
    return np.array(survival)


def _filled(before: float, gained: float, missing: int) -> list[float]:
    """Survival rates over `missing` depths that sum to `gained`, with equal conditional rates after `before`."""

    def rates(conditional: float) -> list[float]:
        return [before * conditional**depth for depth in range(1, missing + 1)]

    return [min(gained, before)] if missing == 1 else rates(increasing_root(lambda rate: sum(rates(rate)) - gained, 0.0, 1.0))


def nearest_concave(counts: Sequence[int], lengths: Sequence[float]) -> list[float]:
    """The curve itself if its increments per draft never rise and are not negative, else the nearest such curve."""
    slopes = np.diff([1.0, *lengths]) / np.diff([0, *counts])
    if np.all(np.diff(slopes) <= 1e-9) and slopes[-1] >= 0:
        return list(lengths)
    # A concave rising curve is a sum of ramps min(γ, knot) with weights of at least 0.
    ramps = np.minimum.outer(np.asarray(counts, dtype=float), np.asarray(counts, dtype=float))
    return [float(length) for length in 1 + ramps @ _nonnegative_weights(ramps, np.asarray(lengths) - 1)]


def _nonnegative_weights(columns: Rates, wanted: Rates) -> Rates:
    """Weights, none below 0, with which independent columns come nearest to `wanted`: the active sets of Lawson and Hanson.

    For the few points of a curve: the library that has this takes longer to load than a prediction takes.
    """
    weights = np.zeros(columns.shape[1])
    free = np.zeros(len(weights), dtype=bool)
    slopes = columns.T @ wanted
    while (slopes[~free] > _LEAST_SLOPE).any():
        free[np.argmax(np.where(free, -np.inf, slopes))] = True
        while True:
            found = np.zeros(len(weights))
            found[free] = np.linalg.lstsq(columns[:, free], wanted, rcond=None)[0]
            falling = free & (found <= 0)
            if not falling.any():
                break
            # As far towards the new weights as all of them allow; the first to reach 0 is held there.
            step = np.min(weights[falling] / (weights[falling] - found[falling]))
            weights += step * (found - weights)
            free &= weights > _LEAST_SLOPE
            weights[~free] = 0.0
        weights = found
        slopes = columns.T @ (wanted - columns @ weights)
    return weights


def held(conditional_rates: Rates, num_speculative_tokens: int) -> Rates:
    """Conditional rates 1..γ with the last measured one held."""
    extra = max(0, num_speculative_tokens - len(conditional_rates))
    return np.concatenate((conditional_rates[:num_speculative_tokens], np.full(extra, conditional_rates[-1])))


def decayed(conditional_rates: Rates, num_speculative_tokens: int) -> Rates:
    """Conditional rates 1..γ, falling on by the ratio of the last two measured ones (never rising)."""
    extra = max(0, num_speculative_tokens - len(conditional_rates))
    falling = len(conditional_rates) > 1 and conditional_rates[-2] > 0
    ratio = min(1.0, conditional_rates[-1] / conditional_rates[-2]) if falling else 1.0
    tail = conditional_rates[-1] * ratio ** np.arange(1, extra + 1)
    return np.concatenate((conditional_rates[:num_speculative_tokens], tail))


def extended(conditional_rates: Rates, num_speculative_tokens: int) -> Rates:
    """Conditional rates 1..γ; past the measured ones, those whose τ is the mean of `held` and `decayed`.

    The two rules err on opposite sides: held over, decayed under.
    """
    if num_speculative_tokens <= len(conditional_rates):
        return conditional_rates[:num_speculative_tokens]
    both = (held(conditional_rates, num_speculative_tokens), decayed(conditional_rates, num_speculative_tokens))
    return conditional_from_survival(sum(map(survival_from_conditional, both), np.zeros(num_speculative_tokens)) / 2)
