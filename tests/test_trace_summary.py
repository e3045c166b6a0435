"""What a trace is summarised to: against laws whose parameters are known, and against counting by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.acceptance import (
    AcceptanceLaw,
    BetaAcceptance,
    IndependentAcceptance,
    MarkovAcceptance,
    TraceAcceptance,
    TraceFile,
    TraceSummary,
    read_trace_file,
    summarise,
    write_trace_file,
)
from simulator.acceptance.law_fits import FittedLaw
from simulator.acceptance.trace_summary import lengths_with_intervals
from simulator.reports.acceptance_trace import trace_sentence, trace_tables


def trace_of(law: AcceptanceLaw, prompts: int, tokens: int) -> TraceAcceptance:
    """A greedy trace whose text follows the law."""
    paths = [law.path(request, tokens, seed=4) for request in range(prompts)]
    flags = [float(path.accepted(position, 1)) for path in paths for position in range(tokens)]
    limits = np.array([path.proposed(position, 64) for path in paths for position in range(tokens)])
    return TraceAcceptance(np.array(flags), np.full(prompts, tokens), None if (limits == 64).all() else limits)


def fitted(summary: TraceSummary) -> dict[str, FittedLaw]:
    return {each.name: each for each in summary.laws}


def test_independent_text_is_known_as_such() -> None:
    summary = summarise(trace_of(IndependentAcceptance(0.7), 40, 120))
    assert summary.acceptance_rate == pytest.approx(0.7, abs=0.02)
    assert summary.spread.beyond_chance < 0.03
    assert abs(summary.runs.neighbour_correlation_within_prompts) < 0.05
    assert summary.runs.mean_length == pytest.approx(summary.runs.mean_length_if_independent, rel=0.05)
    independent = next(each for each in summary.laws if each.name == "independent")
    assert independent.mean_error(1, 16) < 0.02
    for at in summary.lengths:
        truth = IndependentAcceptance(0.7).mean_acceptance_length(at.num_speculative_tokens)
        assert at.low < at.mean_acceptance_length < at.high
        assert at.mean_acceptance_length == pytest.approx(truth, rel=0.04)


def test_stretches_are_found_with_their_parameters_and_fit_best() -> None:
    law = MarkovAcceptance(0.95, 0.4, 0.05, 0.1)
    summary = summarise(trace_of(law, 50, 160))
    found = fitted(summary)["easy and hard stretches"].law
    assert isinstance(found, MarkovAcceptance)
    for name in ("easy_acceptance_rate", "hard_acceptance_rate", "easy_to_hard", "hard_to_easy"):
        assert getattr(found, name) == pytest.approx(getattr(law, name), abs=0.05)
    assert summary.laws[0].name == "easy and hard stretches"
    assert summary.laws[0].mean_error(4, 16) < 0.03 < fitted(summary)["independent"].mean_error(4, 16)
    assert summary.runs.mean_length > 1.5 * summary.runs.mean_length_if_independent
    assert summary.runs.neighbour_correlation_within_prompts > 0.2


def test_copying_stretches_show_in_proposals_too() -> None:
    law = MarkovAcceptance(0.97, 0.3, 0.04, 0.06, easy_proposal_rate=0.98, hard_proposal_rate=0.2)
    found = fitted(summarise(trace_of(law, 50, 160)))["easy and hard stretches"].law
    assert isinstance(found, MarkovAcceptance)
    assert found.easy_proposal_rate == pytest.approx(0.98, abs=0.04)
    assert found.hard_proposal_rate == pytest.approx(0.2, abs=0.05)
    assert found.easy_acceptance_rate == pytest.approx(0.97, abs=0.03)


def test_requests_that_differ_are_told_from_chance() -> None:
    law = BetaAcceptance(0.7, 6.0)
    summary = summarise(trace_of(law, 120, 100))
    assert summary.spread.beyond_chance == pytest.approx((0.7 * 0.3 / 7) ** 0.5, rel=0.15)
    assert summary.runs.neighbour_correlation > 0.08 > abs(summary.runs.neighbour_correlation_within_prompts)
    found = fitted(summary)["one α per request (Beta)"].law
    assert isinstance(found, BetaAcceptance)
    assert found.mean == pytest.approx(0.7, abs=0.03)
    assert found.concentration == pytest.approx(6.0, rel=0.25)
    assert fitted(summary)["one α per request (Beta)"].mean_error(4, 16) < 0.03


def test_the_interval_over_prompts_holds_the_truth_as_often_as_it_says() -> None:
    law, inside = BetaAcceptance(0.6, 4.0), 0
    truth = trace_of(law, 400, 60).mean_acceptance_length(4)
    for index in range(40):
        paths = [law.path(1000 + 20 * index + request, 60, seed=9) for request in range(20)]
        flags = np.array([float(path.accepted(position, 1)) for path in paths for position in range(60)])
        (at,) = lengths_with_intervals(TraceAcceptance(flags, np.full(20, 60)), [4])
        inside += at.low <= truth <= at.high
    assert 25 <= inside <= 38  # 80 % of 40 within three standard errors


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_text_that_always_or_never_agrees_is_summarised_without_complaint(value: float) -> None:
    summary = summarise(TraceAcceptance(np.full(60, value), np.array([30, 30])))
    assert summary.acceptance_rate == value
    assert summary.lengths[0].low == summary.lengths[0].high == summary.lengths[0].mean_acceptance_length
    assert all(abs(each.errors[1]) < 0.01 for each in summary.laws)


def test_a_trace_without_any_proposal_has_no_laws() -> None:
    summary = summarise(TraceAcceptance(np.zeros((4, 3)), np.array([4]), proposed=np.zeros(4, dtype=np.int64)))
    assert (summary.proposal_share, summary.acceptance_rate, summary.laws) == (0.0, 0.0, ())
    assert all(at.mean_acceptance_length == 1 for at in summary.lengths)


def test_a_trace_with_depths_is_summarised_to_its_depth() -> None:
    rows = np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    summary = summarise(TraceAcceptance(rows, np.array([4]), category=np.array(["code"])))
    assert [at.num_speculative_tokens for at in summary.lengths] == [1, 2]
    assert summary.lengths[1].mean_acceptance_length == 1.5  # rounds start at 1 (1 accepted) and at 3
    assert summary.acceptance_rate == 0.75
    assert list(summary.by_category) == ["code"]


def test_a_confidence_that_knows_the_outcome_saves_every_wasted_draft() -> None:
    law = trace_of(IndependentAcceptance(0.6), 30, 80)
    knowing = replace(law, confidence=0.1 + 0.8 * law.acceptance)
    found = summarise(knowing).confidence
    assert found is not None
    assert (found.where_rejected, found.where_accepted) == (pytest.approx(0.1), pytest.approx(0.9))
    everything, *_, surest = (at for at in found.stopping if at.threshold <= 0.8)
    assert everything.drafts_per_round == 8
    for at in (everything, surest):
        assert at.mean_acceptance_length == pytest.approx(law.mean_acceptance_length(8))
    # Drafts under way at the end of a prompt go on: what a drafter would have doubted there was not recorded.
    assert surest.drafts_per_round == pytest.approx(surest.mean_acceptance_length - 1, abs=0.15)
    assert surest.draft_acceptance_rate > 0.9


def test_a_confidence_that_knows_nothing_trades_drafts_for_tokens_at_the_same_rate() -> None:
    law = trace_of(IndependentAcceptance(0.6), 60, 120)
    blind = replace(law, confidence=np.random.default_rng(5).random(len(law.acceptance)))
    shortened = blind.stopping_below(0.4)
    # A draft is made with probability 0.6 and then accepted with 0.6: as drafting at all were a coin of its own.
    assert shortened.mean_acceptance_length(8) == pytest.approx(sum(0.36**i for i in range(9)), rel=0.03)
    assert shortened.drafts_per_round(8) == pytest.approx(sum(0.6**i for i in range(1, 9)), rel=0.06)
    lengths = [blind.stopping_below(least).mean_acceptance_length(8) for least in (0.0, 0.3, 0.6, 0.9, 1.0)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 1


def test_confidence_by_depth_shortens_each_row() -> None:
    rows = np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    sure = np.array([[0.9, 0.2], [0.9, 0.9], [0.1, 0.9], [0.5, 0.0]])
    law = TraceAcceptance(rows, np.array([4]), np.array([2, 1, 2, 1]), confidence=sure)
    assert law.stopping_below(0.5).proposed.tolist() == [1, 1, 0, 1]
    assert summarise(law).confidence.approximate is False
    with pytest.raises(ValueError, match="no confidence"):
        TraceAcceptance(rows, np.array([4])).stopping_below(0.5)


@pytest.mark.parametrize(
    ("confidence", "must"),
    [
        (np.full(3, 0.5), "must be numbers in the shape of acceptance"),
        (np.full((4, 2), 1), "must be numbers in the shape of acceptance"),
        (np.full((4, 2), 1.5), "must be between 0 and 1 throughout"),
        (np.full((4, 2), np.nan), "must be between 0 and 1 throughout"),
    ],
)
def test_a_confidence_that_does_not_fit_is_refused(confidence, must) -> None:
    rows = np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    with pytest.raises(ValueError, match=f"confidence {must}"):
        TraceAcceptance(rows, np.array([4]), confidence=confidence)


def test_sampled_traces_with_depths_come_back_from_both_containers(tmp_path) -> None:
    rows = np.random.default_rng(2).random((5, 3)) * np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0]])
    sure = np.random.default_rng(3).random((5, 3)).astype(np.float32).astype(float)
    law = TraceAcceptance(rows, np.array([3, 2]), proposed=np.array([3, 0, 1, 2, 9]), confidence=sure)
    content = TraceFile(law, {"target": "t"})
    for name in ("t.npz", "t.parquet"):
        write_trace_file(tmp_path / name, content)
        first = (tmp_path / name).read_bytes()
        write_trace_file(tmp_path / name, content)
        assert (tmp_path / name).read_bytes() == first
        back = read_trace_file(tmp_path / name)
        assert np.array_equal(back.trace.acceptance, rows)
        assert np.array_equal(back.trace.confidence, sure)
        assert back.trace.proposed.tolist() == [3, 0, 1, 2, 9]
        assert back.provenance == {"target": "t"}


def test_one_prompt_says_nothing_of_others() -> None:
    summary = summarise(trace_of(IndependentAcceptance(0.7), 1, 60))
    assert all(at.low is None and at.high is None for at in summary.lengths)
    assert "(one prompt says nothing of others)" in trace_sentence(summary)
    assert all("None" not in cell for _, _, rows in trace_tables(summary) for row in rows for cell in row)


def test_the_confidence_of_what_never_happened_is_left_open() -> None:
    trace = trace_of(IndependentAcceptance(1.0), 2, 10)
    confidence = summarise(replace(trace, confidence=np.full(20, 0.5))).confidence
    assert confidence is not None
    assert (confidence.where_accepted, confidence.where_rejected) == (0.5, None)
