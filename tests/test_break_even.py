"""break-even: a map of R over γ × batch × context, and the γ that gains most."""

from __future__ import annotations

import pytest

from simulator import break_even, theory
from simulator.reports.tables import break_even_sentence, rows_asked_for
from simulator.scenario import load_scenario
from tests.test_simulation import scenario


def test_alpha_star_solves_tau_equals_r_everywhere_and_none_wins_beyond_gamma_plus_one():
    answer = break_even(scenario())
    assert {point.num_speculative_tokens for point in answer.points} == set(range(1, 9))
    for point in answer.points:
        gamma, rate = point.num_speculative_tokens, point.break_even_acceptance_rate
        if rate is None:
            assert point.r > gamma + 1
        else:
            assert theory.mean_acceptance_length(rate, gamma) == pytest.approx(max(point.r, 1.0), rel=1e-5)
        assert point.r_low < point.r < point.r_high


def test_needed_acceptance_rises_with_batch_in_the_end_and_best_gamma_falls():
    answer = break_even(scenario(), batches=(1, 64, 256), contexts=(512,))
    at = {(point.num_speculative_tokens, point.batch): point.break_even_acceptance_rate for point in answer.points}
    assert all(at[gamma, 256] > at[gamma, 1] for gamma in (3, 5))
    best = [cell.num_speculative_tokens for cell in answer.best]
    assert best == sorted(best, reverse=True)


def test_ties_take_the_smaller_gamma_and_a_map_of_losses_switches_off():
    good, bad = (
        break_even(scenario(acceptance={"acceptance_rate": rate}), batches=(1,), contexts=(512,)) for rate in (0.7, 0.01)
    )
    speedups = {point.num_speculative_tokens: point.speedup for point in good.points}
    chosen = good.best[0].num_speculative_tokens
    assert speedups[chosen] >= 0.97 * max(speedups.values())
    assert all(speedups[gamma] < 0.97 * max(speedups.values()) for gamma in range(1, chosen))
    assert bad.best[0].num_speculative_tokens == 0


def test_without_acceptance_there_is_a_break_even_and_no_map():
    answer = break_even(scenario(acceptance=None), batches=(1, 8))
    assert answer.best == ()
    assert all(point.speedup is None for point in answer.points)


def test_batches_that_the_kv_cache_cannot_hold_are_marked():
    answer = break_even(scenario(), batches=(1, 256), contexts=(32768,))
    assert {point.batch: point.fits for point in answer.points} == {1: True, 256: False}


def test_flash_decoding_stacks_with_speculation_and_decides_the_sign_at_long_context():
    """Same card, models and acceptance: without split-KV each round walks the cache and loses; with it speculation wins."""
    loaded = load_scenario("long_context_4090")
    tau = loaded.acceptance(3).law.mean_acceptance_length(3)
    walk = break_even(loaded, gammas=(3,), batches=(1, 4), contexts=(512, 32768))
    from dataclasses import replace

    from simulator.serving_engine import find_engine

    split_engine = replace(
        loaded,
        deployment=replace(
            loaded.deployment, engine=find_engine("vllm").model_copy(update={"attention": find_engine("sglang").attention})
        ),
    )
    split = break_even(split_engine, gammas=(3,), batches=(1, 4), contexts=(512, 32768))
    r = {name: {(p.batch, p.context_tokens): p.r for p in answer.points} for name, answer in (("walk", walk), ("split", split))}
    assert r["walk"][1, 32768] > tau > r["split"][1, 32768]
    assert r["walk"][1, 512] < tau


def test_the_workloads_own_context_is_what_its_tokens_see():
    from simulator.questions.break_even import own_context
    from tests.test_simulation import workload

    assert own_context(scenario(workload=workload(prompt=1000, output=200, rate_per_s=1.0))) == 1100


def test_a_mixture_that_loses_alone_and_wins_in_company_is_said_to_win_in_company_only():
    answer = break_even(load_scenario("moe_under_load"))
    shape, row = rows_asked_for(answer)
    losing = [point.batch for point in row if point.speedup < 1]
    winning = [point.batch for point in row if point.speedup > 1]
    assert shape.depth == 3
    assert losing == [1, 2, 4, 8, 16]
    assert break_even_sentence(answer).startswith(f"Speculation wins at batch {winning[0]} to {winning[-1]}")


def test_a_kernel_that_changes_with_the_rows_leaves_a_hole_in_what_is_certain():
    answer = break_even(load_scenario("apple_unified"))
    _, row = rows_asked_for(answer)
    assert [point.batch for point in row if point.speedup_low > 1] == [1, 2, 16]
    assert "(certain at 1, 2 and 16)" in break_even_sentence(answer)
