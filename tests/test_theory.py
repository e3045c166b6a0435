"""The closed forms: their inverses, their limits, and what a plain random experiment says."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit

from simulator import theory

rates = st.floats(0, 1)
token_counts = st.integers(1, 12)
quick = settings(derandomize=True, deadline=None, max_examples=60)


@quick
@given(rates, token_counts)
def test_acceptance_rate_is_recovered_from_its_mean_acceptance_length(rate: float, tokens: int) -> None:
    length = theory.mean_acceptance_length(rate, tokens)
    assert theory.mean_acceptance_length(theory.acceptance_rate_for(length, tokens), tokens) == pytest.approx(length)


@quick
@given(st.floats(0, 0.999), token_counts)
def test_mean_acceptance_length_is_the_geometric_series(rate: float, tokens: int) -> None:
    assert theory.mean_acceptance_length(rate, tokens) == pytest.approx((1 - rate ** (tokens + 1)) / (1 - rate))


@quick
@given(rates, st.integers(0, 12))
def test_a_longer_draft_never_lowers_tokens_per_round_and_is_bounded(rate: float, tokens: int) -> None:
    length = theory.mean_acceptance_length(rate, tokens)
    assert 1 <= length <= tokens + 1
    assert theory.mean_acceptance_length(rate, tokens + 1) >= length


def test_mean_acceptance_length_agrees_with_coin_flips() -> None:
    flips = np.random.default_rng(7).random((200_000, 4)) < 0.65
    emitted = 1 + np.logical_and.accumulate(flips, axis=1).sum(axis=1)
    error = emitted.std() / math.sqrt(len(emitted))
    assert abs(emitted.mean() - theory.mean_acceptance_length(0.65, 4)) < 4 * error


@quick
@given(st.floats(1, 13), token_counts)
def test_speculation_breaks_even_where_tokens_per_round_equal_the_round_cost_ratio(ratio: float, tokens: int) -> None:
    rate = theory.break_even_acceptance_rate(ratio, tokens)
    if ratio > tokens + 1:
        assert rate is None
        assert theory.break_even_draft_acceptance_rate(ratio, tokens) > 1
    else:
        assert rate is not None
        assert theory.mean_acceptance_length(rate, tokens) == pytest.approx(ratio)
        assert theory.draft_acceptance_rate(rate, tokens) == pytest.approx(theory.break_even_draft_acceptance_rate(ratio, tokens))


def test_a_round_no_dearer_than_a_plain_step_wins_at_any_acceptance() -> None:
    assert theory.break_even_acceptance_rate(0.9, 3) == 0.0
    assert theory.break_even_acceptance_rate(1.0, 3) == 0.0


def test_textbook_speedup_breaks_even_at_its_own_round_cost() -> None:
    rate = theory.break_even_acceptance_rate(1 + 4 * 0.1, 4)
    assert rate is not None
    assert theory.textbook_speedup(theory.mean_acceptance_length(rate, 4), 4, 0.1) == pytest.approx(1)


@pytest.mark.parametrize(
    ("service_s", "expected_wait_s"),
    [
        (np.full(400_000, 0.7), theory.md1_mean_wait_s(1.0, 0.7)),
        (np.random.default_rng(2).exponential(0.7, 400_000), theory.mm1_mean_wait_s(1.0, 0.7)),
    ],
    ids=["deterministic", "exponential"],
)
def test_mean_wait_agrees_with_a_single_server_queue(service_s: np.ndarray, expected_wait_s: float) -> None:
    gaps_s = np.random.default_rng(1).exponential(1.0, len(service_s))
    # Lindley's recursion as a running minimum: wait = cumulative (service - gap) above its lowest value so far.
    drift = np.concatenate(([0.0], np.cumsum(service_s[:-1] - gaps_s[1:])))
    waits_s = drift - np.minimum.accumulate(drift)
    batches = waits_s.reshape(40, -1).mean(axis=1)
    assert abs(waits_s.mean() - expected_wait_s) < 4 * batches.std() / math.sqrt(len(batches))


def test_a_saturated_queue_waits_for_ever() -> None:
    assert theory.md1_mean_wait_s(1.0, 1.0) == math.inf
    assert theory.mm1_mean_wait_s(2.0, 1.0) == math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.mean_acceptance_length(1.1, 3), "acceptance_rate must be between 0 and 1 (got 1.1)"),
        (lambda: theory.mean_acceptance_length(0.5, -1), "num_speculative_tokens must be at least 0 (got -1)"),
        (lambda: theory.acceptance_rate_for(4.2, 3), "mean_acceptance_length must be between 1 and 4 (got 4.2)"),
        (lambda: theory.acceptance_rate_for(1.0, 0), "num_speculative_tokens must be at least 1"),
        (lambda: theory.draft_acceptance_rate(0.5, 0), "num_speculative_tokens must be at least 1 (got 0)"),
        (lambda: theory.textbook_speedup(2.0, 3, -0.1), "cost_coefficient must be at least 0 (got -0.1)"),
        (lambda: theory.mg1_mean_wait_s(1.0, 0.5, 0.1), "second moment"),
    ],
)
def test_impossible_values_are_refused_with_the_bound(call: Callable[[], float], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.parametrize("root", [1e-6, 0.123, 0.5, 0.9999])
@pytest.mark.parametrize(
    "increasing",
    [
        lambda x: x,
        lambda x: x**9,
        lambda x: x**0.1,
        lambda x: math.exp(30 * x),
        lambda x: math.atan(1000 * (x - 0.12)) + x,
    ],
)
def test_a_root_is_found_to_the_last_bits_in_few_steps(increasing: Callable[[float], float], root: float) -> None:
    asked = []

    def function(x: float) -> float:
        asked.append(x)
        return increasing(x) - increasing(root)

    found = theory.increasing_root(function, 0.0, 1.0)
    assert len(asked) <= 40
    assert function(found * (1 - 1e-14)) <= 0 <= function(found * (1 + 1e-14))
    assert all(0 <= x <= 1 for x in asked)


def test_a_jump_through_zero_is_its_root_and_without_a_crossing_the_nearer_end_is() -> None:
    assert theory.increasing_root(lambda x: 1.0 if x >= 0.123 else -1e-9, 0.0, 1.0) == pytest.approx(0.123, rel=1e-14)
    assert theory.increasing_root(lambda x: x + 1, 0.0, 1.0) == 0
    assert theory.increasing_root(lambda x: x - 2, 0.0, 1.0) == 1


@pytest.mark.parametrize("probability", [0.5, 0.6, 0.9, 0.975, 0.999])
def test_quantiles_of_students_t_are_those_of_the_library(probability: float) -> None:
    for degrees in (*range(1, 40), 199, 1000):
        assert theory.student_t_quantile(probability, degrees) == pytest.approx(
            stdtrit(degrees, probability), rel=1e-10, abs=1e-12
        )


@pytest.mark.parametrize(("probability", "degrees"), [(0.4, 3), (1.0, 3), (0.9, 0)])
def test_there_is_no_quantile_outside_the_series(probability: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        theory.student_t_quantile(probability, degrees)
