"""Closed forms: what can be computed without a simulation, and what the simulation is held to.

Symbols as in Leviathan et al. 2023 ("Fast Inference from Transformers via Speculative Decoding"): α is
`acceptance_rate`, γ is `num_speculative_tokens`, τ is `mean_acceptance_length` (tokens emitted per round, bonus token
included), c is `cost_coefficient` (one draft pass / one target pass). R is `round_cost_ratio`: one round / one plain
decode step at equal batch and context. Queueing formulas give the mean wait before service starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

# Of a number in double precision, with room for what is rounded off in between.
_RESOLUTION = 4e-16


def mean_acceptance_length(acceptance_rate: float, num_speculative_tokens: int) -> float:
    """τ = (1 - α^(γ+1)) / (1 - α): expected tokens per round, bonus included.

    Leviathan et al. 2023, eq. 1. Assumes draft tokens are accepted independently. Summed as 1 + α + … + α^γ, which
    has no singularity at α = 1.

    >>> round(mean_acceptance_length(0.8, 5), 2)
    3.69
    >>> mean_acceptance_length(1.0, 5)
    6.0
    """
    _check_rate(acceptance_rate)
    _check_tokens(num_speculative_tokens)
    return _series(acceptance_rate, num_speculative_tokens)


def draft_acceptance_rate(acceptance_rate: float, num_speculative_tokens: int) -> float:
    """(τ - 1) / γ: accepted / drafted, the engines' "acceptance rate". It is not α.

    >>> round(draft_acceptance_rate(0.8, 5), 2)
    0.54
    """
    if num_speculative_tokens < 1:
        raise ValueError(f"num_speculative_tokens must be at least 1 (got {num_speculative_tokens})")
    return (mean_acceptance_length(acceptance_rate, num_speculative_tokens) - 1) / num_speculative_tokens


def acceptance_rate_for(mean_acceptance_length: float, num_speculative_tokens: int) -> float:
    """The α whose τ(α, γ) is the given one: the inverse of `mean_acceptance_length`. Raises ValueError outside 1..γ+1.

    >>> round(acceptance_rate_for(3.69, 5), 2)
    0.8
    """
    _check_tokens(num_speculative_tokens)
    top = num_speculative_tokens + 1
    if not 1 <= mean_acceptance_length <= top:
        raise ValueError(f"mean_acceptance_length must be between 1 and {top} (got {mean_acceptance_length:g})")
    if num_speculative_tokens == 0:
        raise ValueError("num_speculative_tokens must be at least 1: without drafts no acceptance rate can be told")
    return increasing_root(lambda rate: _series(rate, num_speculative_tokens) - mean_acceptance_length, 0.0, 1.0)


def textbook_speedup(mean_acceptance_length: float, num_speculative_tokens: int, cost_coefficient: float) -> float:
    """τ / (γc + 1): the improvement factor with verification taken as free.

    Leviathan et al. 2023, theorem 3.8; with τ = accepted + 1 it is the (accepted + 1) / (1 + γ · draft cost / target
    cost) in common use. The true denominator is R.

    >>> round(textbook_speedup(mean_acceptance_length(0.8, 5), 5, 0.05), 2)
    2.95
    """
    if cost_coefficient < 0:
        raise ValueError(f"cost_coefficient must be at least 0 (got {cost_coefficient:g})")
    return mean_acceptance_length / (num_speculative_tokens * cost_coefficient + 1)


def break_even_acceptance_rate(round_cost_ratio: float, num_speculative_tokens: int) -> float | None:
    """α* with τ(α*, γ) = R: speculation wins above it. 0 where R ≤ 1; None where R > γ+1, which no acceptance repays.

    With R = γc + v (v: verification pass / plain pass), γ = 4 and c = 0.05:

    >>> [round(break_even_acceptance_rate(4 * 0.05 + v, 4), 2) for v in (1, 1.6, 3)]
    [0.17, 0.46, 0.77]
    >>> round(break_even_acceptance_rate(1 * 0.3 + 1, 1), 6)  # γ = 1 and free verification: α* = c
    0.3
    """
    _check_tokens(num_speculative_tokens)
    if round_cost_ratio <= 1:
        return 0.0
    if round_cost_ratio > num_speculative_tokens + 1:
        return None
    return acceptance_rate_for(round_cost_ratio, num_speculative_tokens)


def break_even_draft_acceptance_rate(round_cost_ratio: float, num_speculative_tokens: int) -> float:
    """(R - 1) / γ: the accepted / drafted at which a round of γ drafts repays its cost. Above 1 it cannot.

    >>> round(break_even_draft_acceptance_rate(1.8, 4), 2)
    0.2
    """
    if num_speculative_tokens < 1:
        raise ValueError(f"num_speculative_tokens must be at least 1 (got {num_speculative_tokens})")
    return (round_cost_ratio - 1) / num_speculative_tokens


def mm1_mean_wait_s(arrival_rate_per_s: float, service_s: float) -> float:
    """M/M/1: ρs / (1 - ρ), with ρ = λs; infinite from ρ = 1.

    >>> mm1_mean_wait_s(0.5, 1.0)
    1.0
    """
    return mg1_mean_wait_s(arrival_rate_per_s, service_s, 2 * service_s**2)


def md1_mean_wait_s(arrival_rate_per_s: float, service_s: float) -> float:
    """M/D/1: ρs / (2(1 - ρ)), half of the M/M/1 wait.

    >>> md1_mean_wait_s(0.5, 1.0)
    0.5
    """
    return mg1_mean_wait_s(arrival_rate_per_s, service_s, service_s**2)


def mg1_mean_wait_s(arrival_rate_per_s: float, service_s: float, service_second_moment_s2: float) -> float:
    """M/G/1: λE[S²] / (2(1 - ρ)) (Pollaczek and Khinchine); infinite from ρ = 1.

    >>> mg1_mean_wait_s(0.5, 1.0, 3.0)
    1.5
    """
    if arrival_rate_per_s < 0 or service_s < 0 or service_second_moment_s2 < service_s**2:
        raise ValueError("rates and times must be at least 0, and the second moment at least the square of the mean")
    load = arrival_rate_per_s * service_s
    return arrival_rate_per_s * service_second_moment_s2 / (2 * (1 - load)) if load < 1 else math.inf


def increasing_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where an increasing function crosses zero in [low, high], to the last bits; the nearer end where it does not.

    By inverse quadratic interpolation while that halves the bracket quickly, by bisection elsewhere: Chandrupatla, "A new hybrid
    quadratic/bisection algorithm for finding the zero of a nonlinear function without using derivatives", 1997. It asks some ten
    times where bisection alone asks eighty times.
    """
    at_low, at_high = function(low), function(high)
    if at_low >= 0:
        return low
    if at_high <= 0:
        return high
    (newest, f_newest), (other, f_other), share = (high, at_high), (low, at_low), 0.5
    while True:
        root = newest if abs(f_newest) < abs(f_other) else other
        least = _RESOLUTION * abs(root) / abs(other - newest)
        if least > 0.5:
            return root
        between = newest + min(max(share, least), 1 - least) * (other - newest)
        value = function(between)
        if value == 0 or between in (newest, other):
            return between
        if (value < 0) == (f_newest < 0):
            before, f_before = newest, f_newest
        else:
            (before, f_before), (other, f_other) = (other, f_other), (newest, f_newest)
        newest, f_newest = between, value
        place, height = (newest - other) / (before - other), (f_newest - f_other) / (f_before - f_other)
        share = 0.5
        if height**2 < place and (1 - height) ** 2 < 1 - place:
            share = f_newest / (f_other - f_newest) * f_before / (f_other - f_before)
            share += (before - newest) / (other - newest) * f_newest / (f_before - f_newest) * f_other / (f_before - f_other)


@lru_cache
def student_t_quantile(probability: float, degrees_of_freedom: int) -> float:
    """Student's t below which `probability` (at least a half, below 1) lies, for whole degrees of freedom.

    The closed series of Abramowitz and Stegun 26.7.3 and 26.7.4 in θ = atan(t / √ν), inverted: the library that has this
    function takes longer to load than a short simulation takes.

    >>> round(student_t_quantile(0.9, 24), 4)
    1.3178
    """
    if degrees_of_freedom < 1 or not 0.5 <= probability < 1:
        raise ValueError(f"no quantile of Student's t at {probability:g} for {degrees_of_freedom} degrees of freedom")
    odd = degrees_of_freedom % 2

    def within(angle: float) -> float:
        """Probability of -t..t."""
        term = math.cos(angle) if odd else 1.0
        total = 0.0
        for power in range(2 + odd, degrees_of_freedom + 1, 2):
            total += term
            term *= math.cos(angle) ** 2 * (power - 1) / power
        total *= math.sin(angle)
        return 2 / math.pi * (angle + total) if odd else total

    angle = increasing_root(lambda angle: within(angle) - (2 * probability - 1), 0.0, math.pi / 2)
    return math.tan(angle) * math.sqrt(degrees_of_freedom)


def _series(acceptance_rate: float, num_speculative_tokens: int) -> float:
    return math.fsum(acceptance_rate**depth for depth in range(num_speculative_tokens + 1))


def _check_rate(acceptance_rate: float) -> None:
    if not 0 <= acceptance_rate <= 1:
        raise ValueError(f"acceptance_rate must be between 0 and 1 (got {acceptance_rate:g})")


def _check_tokens(num_speculative_tokens: int) -> None:
    if num_speculative_tokens < 0:
        raise ValueError(f"num_speculative_tokens must be at least 0 (got {num_speculative_tokens})")
