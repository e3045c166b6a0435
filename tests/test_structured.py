"""Positions that a grammar forces: what they do to acceptance, by the law and by its paths."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.acceptance import IndependentAcceptance, MarkovAcceptance, MixtureAcceptance, PerPositionAcceptance
from simulator.acceptance.laws import AcceptanceLaw
from simulator.acceptance.structured import StructuredAcceptance, StructuredOutputSpec, structured
from simulator.spec import SpecError
from tests.test_acceptance import check_ratio, replay
from tests.test_scenario import message, scenario


def output(share: float = 0.4, run: float | None = None, aware: bool = True) -> StructuredOutputSpec:
    return StructuredOutputSpec(forced_share=share, forced_run_tokens=run, grammar_aware_drafter=aware)


BASES: dict[str, AcceptanceLaw] = {
    "independent": IndependentAcceptance(0.6),
    "proposals": IndependentAcceptance(0.6, proposal_rate=0.4),
    "per position": PerPositionAcceptance((0.8, 0.6, 0.5)),
    "mixture": MixtureAcceptance((0.3, 0.7), (IndependentAcceptance(0.9), PerPositionAcceptance((0.6, 0.5)))),
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize("run", [None, 6.0])
def test_paths_emit_the_tokens_per_round_that_the_law_states(base: str, aware: bool, run: float | None) -> None:
    law = structured(BASES[base], output(run=run, aware=aware))
    paths = [law.path(request, 400, seed=3) for request in range(150)]
    for gamma in (1, 3, 7):
        runs = np.array([replay(path, gamma, 400) for path in paths], dtype=float)
        check_ratio(runs[:, 0], runs[:, 1], law.mean_acceptance_length(gamma))


def test_positions_forced_each_for_itself_mix_the_rate_with_one_or_zero() -> None:
    for aware, expected in ((True, 0.4 + 0.6 * 0.7), (False, 0.6 * 0.7)):
        law = structured(IndependentAcceptance(0.7), output(0.4, None, aware))
        assert law.conditional_rates(5) == pytest.approx([expected] * 5)


def test_runs_of_forced_positions_are_stretches_of_text() -> None:
    """One α outside, all or nothing inside: the law of easy and hard stretches with the same transitions."""
    leave, enter = 1 / 8, 0.25 / 0.75 / 8
    for aware in (True, False):
        law = structured(IndependentAcceptance(0.7), output(0.25, 8.0, aware))
        stretches = MarkovAcceptance(float(aware), 0.7, leave, enter)
        assert law.conditional_rates(6) == pytest.approx(stretches.conditional_rates(6))


def test_a_drafter_that_keeps_to_the_grammar_gains_what_another_loses() -> None:
    """Runs of them help neither: drafts doomed together take a round for each token, and no round gets past γ + 1."""
    free = IndependentAcceptance(0.7).mean_acceptance_length(4)
    lengths = {
        (aware, run): structured(IndependentAcceptance(0.7), output(0.4, run, aware)).mean_acceptance_length(4)
        for aware in (True, False) for run in (None, 10.0)
    }  # fmt: skip
    assert lengths[False, 10.0] < lengths[False, None] < free < lengths[True, 10.0] < lengths[True, None]
    shares = [structured(IndependentAcceptance(0.7), output(share)).mean_acceptance_length(4) for share in (0.1, 0.5, 0.9)]
    assert shares == sorted(shares)


def test_forced_positions_are_those_of_the_text_whatever_is_drafted() -> None:
    aware, unaware = (structured(IndependentAcceptance(1e-9), output(0.3, 4.0, knows)) for knows in (True, False))
    forced = np.array([aware.path(3, 5000, 1).accepted(position, 1) for position in range(5000)])
    assert forced.mean() == pytest.approx(0.3, abs=0.04)
    assert forced.sum() / np.count_nonzero(np.diff(forced) == 1) == pytest.approx(4.0, rel=0.15)
    surely = structured(IndependentAcceptance(1.0), output(0.3, 4.0, False)).path(3, 5000, 1)
    assert [surely.accepted(position, 1) for position in range(5000)] == (1 - forced).tolist()
    assert isinstance(unaware, StructuredAcceptance)


def test_a_scenario_states_them_and_each_key_moves_the_acceptance() -> None:
    def tau(keys: str) -> float:
        resolved = scenario(acceptance=f"{{acceptance_rate: 0.7{keys}}}").acceptance(3)
        assert resolved is not None
        return resolved.law.mean_acceptance_length(3)

    stated = ", structured_output: {forced_share: 0.4, forced_run_tokens: 5, grammar_aware_drafter: true}"
    lengths = [
        tau(""), tau(stated), tau(stated.replace("0.4", "0.5")), tau(stated.replace("5,", "9,")), tau(stated.replace("true", "false"))
    ]  # fmt: skip
    assert len(set(lengths)) == len(lengths)
    resolved = scenario(acceptance=f"{{acceptance_rate: 0.7{stated}}}").acceptance(3)
    assert resolved is not None
    assert "40 % of the positions forced by a grammar that the drafter keeps to" in resolved.source


def test_what_cannot_be_is_refused() -> None:
    assert "forced_run_tokens must be at least 2, the mean run" in message(
        acceptance="{acceptance_rate: 0.7, structured_output: {forced_share: 0.5, forced_run_tokens: 1.5, grammar_aware_drafter: true}}"
    )
    assert "grammar_aware_drafter: must be given" in message(
        acceptance="{acceptance_rate: 0.7, structured_output: {forced_share: 0.5}}"
    )
    with pytest.raises(SpecError, match="forced_share: must be below 1"):
        scenario(acceptance="{acceptance_rate: 0.7, structured_output: {forced_share: 1, grammar_aware_drafter: true}}")
