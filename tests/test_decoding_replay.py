"""Decoding loops replayed by the event loop: laws of what passes they run, on traces that are made up."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from calibration.decoding_pass import TARGET, DecodingPass, PassTable, PassTime, Sample
from simulator.acceptance import TraceAcceptance
from simulator.questions.decoding_replay import Decoding, Drafting, TracedPrompt, UnitTimes, replay

DRAFTINGS: tuple[Drafting, ...] = ("search", "own_cache", "shared_cache")
BUDGET = 40


def traced(seed: int, rate: float = 0.6, output: int = BUDGET, search: bool = False) -> TracedPrompt:
    rng = np.random.default_rng([seed, *b"decoding-replay"])
    flags = (rng.random(output) < rate).astype(float)
    proposed = rng.integers(0, 9, output) if search else None
    return TracedPrompt(int(rng.integers(5, 60)), BUDGET, TraceAcceptance(flags, np.array([output]), proposed))


def replayed(prompts: list[TracedPrompt], gamma: int, drafting: Drafting, batched: bool = False):
    return replay(prompts, Decoding(gamma, drafting, "draft"), UnitTimes(), batched)


@pytest.mark.parametrize("drafting", DRAFTINGS)
@pytest.mark.parametrize("gamma", [1, 2, 4, 8])
@pytest.mark.parametrize("output", [BUDGET, BUDGET - 7])
def test_rounds_emit_every_token_after_the_first_and_cost_one_verification_each(drafting, gamma, output):
    for seed in range(5):
        prompt = traced(seed, output=output, search=drafting == "search")
        found = replayed([prompt], gamma, drafting)
        (rounds,) = found.rounds
        assert 0 <= output - 1 - sum(accepted + 1 for _, accepted in rounds) + 1 <= 1  # an end inside a round emits no bonus
        assert all(0 <= accepted <= proposed <= gamma for proposed, accepted in rounds)
        assert found.terms["verify"] == found.steps == len(rounds)
        assert found.terms["prefill"] == 1
        assert found.seconds == pytest.approx(sum(found.terms.values())) == sum(found.passes.values())


@pytest.mark.parametrize("gamma", [1, 3])
def test_a_draft_with_its_own_cache_catches_up_exactly_after_full_acceptance(gamma):
    for seed in range(8):
        found = replayed([traced(seed, rate=0.8)], gamma, "own_cache")
        (rounds,) = found.rounds
        drafted = [proposed for proposed, _ in rounds if proposed]
        again = sum(accepted == proposed for (proposed, accepted), (next_proposed, _) in pairwise(rounds) if next_proposed)
        assert found.terms.get("catch-up", 0) == again
        assert found.terms["draft prefill"] == 1
        assert found.terms.get("draft", 0) == sum(drafted) - again - 1


def test_a_draft_on_the_targets_cache_never_catches_up_and_needs_no_prefill():
    found = replayed([traced(3, rate=1.0)], 4, "shared_cache")
    assert set(found.terms) == {"prefill", "draft", "verify", "sampling"}
    assert found.terms["draft"] == sum(proposed for proposed, _ in found.rounds[0])


def test_self_drafting_accepts_all_and_feeds_each_token_once():
    """Draft passes see prompt, emitted tokens and drafts: all of the text but the tokens after the last draft."""
    found = replayed([traced(1, rate=1.0)], 3, "own_cache")
    fed = sum(asked.rows * count for (asked, _), count in found.passes.items() if asked.model == "draft")
    assert all(proposed == accepted for proposed, accepted in found.rounds[0])
    prompt = traced(1, rate=1.0).prompt_tokens
    assert prompt + BUDGET - 3 <= fed <= prompt + BUDGET


@pytest.mark.parametrize("drafting", DRAFTINGS)
def test_a_batch_accepts_what_each_sequence_accepts_alone_in_as_many_rounds_as_the_slowest(drafting):
    prompts = [traced(seed, rate, search=drafting == "search") for seed, rate in enumerate((0.2, 0.5, 0.8, 0.95))]
    alone = [replayed([prompt], 4, drafting) for prompt in prompts]
    together = replayed(prompts, 4, drafting, batched=True)
    assert together.rounds == tuple(each.rounds[0] for each in alone)
    assert together.steps == max(each.steps for each in alone)
    assert together.terms["verify"] == together.steps
    sizes = Counter(
        asked.sequences for (asked, _), count in together.passes.items() if asked.model == TARGET and not asked.prompt
    )
    assert set(sizes) == {1, 2, 3, 4}, "sequences that end leave the batch"


def test_plain_decoding_is_one_pass_a_token():
    found = replay([traced(0)], Decoding(), UnitTimes(), False)
    assert found.terms == {"prefill": 1, "sampling": 0, "decode": BUDGET - 1}
    assert found.rounds == ((),)
    contexts = sorted(context for asked, context in found.passes if not asked.prompt)
    assert contexts == list(range(traced(0).prompt_tokens, traced(0).prompt_tokens + BUDGET - 1))


def test_several_prompts_are_a_batch():
    with pytest.raises(ValueError, match="batch"):
        replay([traced(0), traced(1)], Decoding(), UnitTimes(), False)


# --------------------------------------------------------------------------------------------------------- table of passes

PASS = DecodingPass(TARGET, 1, False, 1, 1)


def test_a_time_is_linear_between_measured_contexts_and_constant_beyond():
    table = PassTable()
    for context, seconds in ((100, 1.0), (200, 3.0)):
        table.add(PASS, Sample(context, 0, PassTime(seconds, 0.5, 0.0)))
    assert [table.time(PASS, context).forward_s for context in (50, 100, 150, 200, 300)] == [1.0, 1.0, 2.0, 3.0, 3.0]
    assert table.time(PASS, 150).seconds == 2.5


def test_a_tenth_of_the_samples_at_either_end_does_not_count():
    table = PassTable()
    for seconds in (*[1.0] * 9, 2.0, *[3.0] * 9, 1e6):
        table.add(PASS, Sample(0, 0, PassTime(seconds, 0.0, 0.0)))
    assert table.time(PASS, 0).forward_s == pytest.approx((7 * 1 + 2 + 8 * 3) / 16)


def test_blocks_are_told_apart_and_a_pass_missing_in_a_block_keeps_its_samples():
    table, other = PassTable(), DecodingPass(TARGET, 1, False, 5, 5)
    for block, seconds in ((0, 1.0), (1, 3.0)):
        table.add(PASS, Sample(0, block, PassTime(seconds, 0.0, 0.0)))
    table.add(other, Sample(0, 0, PassTime(7.0, 0.0, 0.0)))
    second = table.of_blocks([1])
    assert (second.time(PASS, 0).forward_s, second.time(other, 0).forward_s) == (3.0, 7.0)


def test_a_pass_that_was_not_timed_has_no_price():
    with pytest.raises(KeyError):
        replay([traced(0)], Decoding(), PassTable(), False)
