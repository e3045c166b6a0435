"""What a trace says in numbers: rates, τ by γ with its uncertainty, spread between prompts, runs, and the laws that fit.

α here is the acceptance of one draft after a true prefix, over all positions that have a proposal; survival and
conditional rates are over the rounds of a replay, as engines count them, so their first entry differs a little from α.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from simulator.acceptance.law_fits import FittedLaw, fitted_laws
from simulator.acceptance.path import Flags
from simulator.acceptance.rates import Rates, survival_from_conditional
from simulator.acceptance.traces import TraceAcceptance

DEEPEST = 16
RATES_AT = 8  # γ of the printed rates by depth
THRESHOLDS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9)
Entry = TypeVar("Entry", bound=np.generic)
_RESAMPLES = 2000
_INTERVAL = (0.1, 0.9)


@dataclass(frozen=True, slots=True)
class LengthAt:
    """τ over all rounds at one γ, its 80 % interval from resampling whole prompts, and accepted / drafted.

    low, high: None for a single prompt, which says nothing of others.
    """

    num_speculative_tokens: int
    mean_acceptance_length: float
    low: float | None
    high: float | None
    draft_acceptance_rate: float


@dataclass(frozen=True, slots=True)
class Spread:
    """α by prompt. `beyond_chance`: the standard deviation left once that of finitely many independent positions is taken off."""

    lowest: float
    median: float
    highest: float
    standard_deviation: float
    beyond_chance: float


@dataclass(frozen=True, slots=True)
class Runs:
    """How agreement clusters: accepted drafts in a row from any position, beside what independence at the same α gives; and
    the correlation of neighbouring positions, pooled over all text and within prompts."""

    mean_length: float
    mean_length_if_independent: float
    neighbour_correlation: float
    neighbour_correlation_within_prompts: float


@dataclass(frozen=True, slots=True)
class StoppingAt:
    """What becomes of a round that ends its drafting at the first token given less than `threshold`.

    mean_acceptance_length is exact; drafts_per_round and draft_acceptance_rate are approximate where `Confidence.approximate`.
    """

    threshold: float
    drafts_per_round: float
    mean_acceptance_length: float
    draft_acceptance_rate: float


@dataclass(frozen=True, slots=True)
class Confidence:
    """What the drafter gave its likeliest token: the mean over first drafts, and over those accepted and rejected, None where
    there are none.

    approximate: one number a token, so that drafts past a first mismatch are counted as if they followed the true text.
    stopping: at `num_speculative_tokens` drafts at most, a threshold of 0 being none.
    """

    mean: float
    where_accepted: float | None
    where_rejected: float | None
    approximate: bool
    num_speculative_tokens: int
    stopping: tuple[StoppingAt, ...]


@dataclass(frozen=True, slots=True)
class TraceSummary:
    prompts: int
    tokens: int
    proposal_share: float
    acceptance_rate: float
    survival_rates: Rates
    conditional_rates: Rates
    lengths: tuple[LengthAt, ...]
    spread: Spread
    runs: Runs
    by_category: dict[str, LengthAt]
    laws: tuple[FittedLaw, ...]
    confidence: Confidence | None = None


def summarise(trace: TraceAcceptance, seed: int = 0) -> TraceSummary:
    """All of it, for γ up to 16 or the depth of the trace."""
    deepest = min(DEEPEST, trace.measured_up_to or DEEPEST)
    first, offered = first_drafts(trace)
    lengths = lengths_with_intervals(trace, range(1, deepest + 1), seed)
    conditional = trace.conditional_rates(min(RATES_AT, deepest))
    return TraceSummary(
        prompts=len(trace.lengths),
        tokens=int(trace.lengths.sum()),
        proposal_share=trace.proposal_share(deepest),
        acceptance_rate=float(first[offered].mean()) if offered.any() else 0.0,
        survival_rates=survival_from_conditional(conditional),
        conditional_rates=conditional,
        lengths=lengths,
        spread=_spread(first, offered, trace.lengths),
        runs=_runs(trace, first, offered),
        by_category={
            name: lengths_with_intervals(trace.of_category(name), [min(4, deepest)], seed)[0] for name in trace.category_names()
        },
        laws=fitted_laws(trace, first, offered, {count: _endless_length(trace, count) for count in range(1, deepest + 1)}),
        confidence=_confidence(trace, first, offered),
    )


def first_drafts(trace: TraceAcceptance) -> tuple[Rates, Flags]:
    """(acceptance of the first draft of a round that starts there, whether it has one), both by position."""
    first = trace.acceptance if trace.acceptance.ndim == 1 else trace.acceptance[:, 0]
    return first, np.ones(len(first), dtype=bool) if trace.proposed is None else trace.proposed > 0


def lengths_with_intervals(trace: TraceAcceptance, counts: Sequence[int], seed: int = 0) -> tuple[LengthAt, ...]:
    """τ at these γ. Prompts, not rounds, are resampled: rounds of one prompt resemble each other."""
    generator = np.random.default_rng([seed, *b"trace-bootstrap"])
    prompts = list(trace.prompts())
    drawn = generator.integers(len(prompts), size=(_RESAMPLES, len(prompts)))
    tokens = (trace.lengths - 1)[drawn].sum(axis=1)  # the prefill emits the first
    found = []
    for count in counts:
        rounds = np.array([prompt.rounds(count) for prompt in prompts])
        together = rounds[drawn].sum(axis=1)
        resampled = np.divide(tokens, together, out=np.ones(len(tokens)), where=together > 0)
        low, high = map(float, np.quantile(resampled, _INTERVAL)) if len(prompts) > 1 else (None, None)
        length = trace.mean_acceptance_length(count)
        found.append(LengthAt(count, length, low, high, trace.draft_acceptance_rate(count)))
    return tuple(found)


def _confidence(trace: TraceAcceptance, first: Rates, offered: Flags) -> Confidence | None:
    if trace.confidence is None or not offered.any():
        return None
    count = min(RATES_AT, trace.measured_up_to or RATES_AT)
    own = (trace.confidence if trace.confidence.ndim == 1 else trace.confidence[:, 0])[offered]
    accepted = first[offered]
    stopping = []
    for threshold in THRESHOLDS:
        law = trace.stopping_below(threshold)
        length, rate = law.mean_acceptance_length(count), law.draft_acceptance_rate(count)
        stopping.append(StoppingAt(threshold, law.drafts_per_round(count), length, rate))
    return Confidence(
        float(own.mean()),
        _weighted_mean(own, accepted),
        _weighted_mean(own, 1 - accepted),
        trace.confidence.ndim == 1,
        count,
        tuple(stopping),
    )


def _weighted_mean(values: Rates, weights: Rates) -> float | None:
    total = float(weights.sum())
    return float((values * weights).sum()) / total if total > 0 else None


def _endless_length(trace: TraceAcceptance, count: int) -> float:
    """τ as it would be in longer outputs, to hold laws against, which know no end: rates of the drafts that were tried.

    Where proposals are shorter than γ that cannot be told apart from the end of the output, and τ stays as replayed.
    """
    if trace.proposed is not None:
        return trace.mean_acceptance_length(count)
    return 1 + float(survival_from_conditional(trace.conditional_rates(count)).sum())


def _spread(first: Rates, offered: Flags, lengths: npt.NDArray[np.int64]) -> Spread:
    by_prompt = [values[kept] for values, kept in zip(_split(first, lengths), _split(offered, lengths), strict=True)]
    rates = np.array([values.mean() for values in by_prompt if len(values)])
    if not len(rates):
        return Spread(0.0, 0.0, 0.0, 0.0, 0.0)
    chance = np.mean([values.var() / len(values) for values in by_prompt if len(values)])
    variance = float(rates.var(ddof=1)) if len(rates) > 1 else 0.0
    return Spread(
        float(rates.min()),
        float(np.median(rates)),
        float(rates.max()),
        variance**0.5,
        max(0.0, variance - float(chance)) ** 0.5,
    )


def _runs(trace: TraceAcceptance, first: Rates, offered: Flags) -> Runs:
    depth = trace.measured_up_to or DEEPEST
    rate = float(first[offered].mean()) if offered.any() else 0.0
    observed, independent = [], []
    for prompt in trace.prompts():
        length = int(prompt.lengths[0])
        for start in range(length):
            reach = min(depth, length - start, depth if prompt.proposed is None else int(prompt.proposed[start]))
            if reach:
                observed.append(np.cumprod(prompt.row(start, reach)).sum())
                independent.append(np.cumprod(np.full(reach, rate)).sum())
    return Runs(
        float(np.mean(observed)) if observed else 0.0,
        float(np.mean(independent)) if independent else 0.0,
        _neighbour_correlation(first, offered, trace.lengths, within=False),
        _neighbour_correlation(first, offered, trace.lengths, within=True),
    )


def _neighbour_correlation(first: Rates, offered: Flags, lengths: npt.NDArray[np.int64], *, within: bool) -> float:
    """Correlation of the first drafts' acceptance at t and t + 1 where both have one; 0 where nothing varies."""
    centre = float(first[offered].mean()) if offered.any() else 0.0
    pairs: list[Rates] = []
    for values, kept in zip(_split(first, lengths), _split(offered, lengths), strict=True):
        if kept.any():
            deviations = values - (values[kept].mean() if within else centre)
            both = kept[1:] & kept[:-1]
            pairs.append(np.stack([deviations[:-1][both], deviations[1:][both]]))
    joined = np.concatenate(pairs, axis=1) if pairs else np.empty((2, 0))
    scale = float(np.sqrt((joined[0] ** 2).sum() * (joined[1] ** 2).sum()))
    return float((joined[0] * joined[1]).sum()) / scale if scale > 0 else 0.0


def _split(values: npt.NDArray[Entry], lengths: npt.NDArray[np.int64]) -> list[npt.NDArray[Entry]]:
    return np.split(values, np.cumsum(lengths)[:-1])
