"""Intervals are as wide as errors of runs need that no constant has seen, and nothing of a family reaches its own."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from simulator.cost.doubts import Doubts, shipped_doubts
from simulator.cost.uncertainty import UncertainPricer
from simulator.questions.accuracy import Scored, inside_by_family, score
from simulator.questions.engine_fit import CONSTANTS, EngineFit, Fit
from simulator.questions.interval_fit import Residual, fitted_doubts, gaussian_score, residuals
from simulator.questions.published_cases import PublishedCase, published_cases

NOTHING = np.zeros(len(CONSTANTS))
UNKNOWN = Fit(NOTHING, np.eye(len(CONSTANTS)), {})


def drawn(share: float, transfer: float, families: int = 150) -> list[Residual]:
    """Errors of one run a family, as large as these doubts say."""
    random = np.random.default_rng(7)
    found = []
    for place in range(families):
        coefficients, elsewhere, rest = float(random.uniform(0.02, 0.15)), float(place % 2), 0.04
        std = math.sqrt((share * coefficients) ** 2 + (transfer * elsewhere) ** 2 + rest**2)
        found.append(Residual(f"family {place}", std * float(random.normal()), coefficients, elsewhere, rest, NOTHING, UNKNOWN))
    return found


@pytest.mark.parametrize(("share", "transfer"), [(0.6, 0.1), (1.1, 0.04)])
def test_doubts_that_made_the_errors_are_found_again(share: float, transfer: float) -> None:
    found = fitted_doubts(drawn(share, transfer, 2000))
    assert found.coefficient_share == pytest.approx(share, abs=0.12)
    assert found.transfer_std == pytest.approx(transfer, abs=0.02)


def test_errors_of_a_family_do_not_reach_the_doubts_of_its_own_intervals() -> None:
    runs = drawn(0.6, 0.1)
    wrong = [replace(each, error=3.0) if each.family == "family 3" else each for each in runs]
    assert fitted_doubts(runs, "family 3") == fitted_doubts(wrong, "family 3")
    assert fitted_doubts(runs) != fitted_doubts(wrong)


def test_many_runs_of_one_family_hardly_outweigh_others() -> None:
    """A hundred repetitions of one bold error are one family's error."""
    runs = drawn(0.6, 0.1)
    repeated = [*runs, *([replace(runs[0], error=0.25, elsewhere=0.0)] * 100)]
    found = fitted_doubts(repeated)
    assert found.coefficient_share < 1.0


def test_the_score_is_best_where_errors_are_as_large_as_said() -> None:
    errors = np.random.default_rng(3).normal(size=20_000) * 0.1
    means = [float(gaussian_score(errors, np.full_like(errors, std)).mean()) for std in (0.05, 0.08, 0.1, 0.12, 0.2)]
    assert min(means) == means[2]


def few() -> list[PublishedCase]:
    families = ("VK", "ANG", "MOE", "SGE")
    return [case for family in families for case in [c for c in published_cases() if c.family == family][:4]]


def test_a_fit_knows_what_one_family_less_would_make_of_it() -> None:
    """To first order: beside a fit without both."""
    cases = few()
    told = EngineFit(cases).fit(without="ANG")
    without = EngineFit([case for case in cases if case.family != "VK"]).fit(without="ANG")
    places = [index for index, constant in enumerate(CONSTANTS) if "vllm_2025" in constant.engines]
    truth, move = without.log_values - told.log_values, told.without["VK"].move
    largest = max(places, key=lambda place: abs(truth[place]))
    assert move[largest] == pytest.approx(truth[largest], rel=0.35)
    wider = np.sqrt(np.diag(told.without["VK"].covariance))[places]
    assert (wider >= np.sqrt(np.diag(told.covariance))[places] - 1e-9).all()
    assert wider == pytest.approx([CONSTANTS[place].prior_log_std for place in places], rel=0.4)


def test_what_an_interval_is_made_of_is_what_predict_shows() -> None:
    fit = EngineFit(few())
    own = fit.fit()
    (first, *_), index = residuals(fit, dict.fromkeys({case.family for case in fit.cases}, own)), 0
    doubts = Doubts(coefficient_share=0.5, transfer_std=0.2)
    (shown,) = fit.predictions(own, [index], doubts)
    parts = math.sqrt((0.5 * first.coefficients) ** 2 + (0.2 * first.elsewhere) ** 2 + first.rest**2)
    assert shown.speedup_high is not None
    assert shown.speedup_low is not None
    assert math.log(shown.speedup_high / shown.speedup_low) / 2 == pytest.approx(1.2816 * parts, rel=0.03)
    assert Scored(fit.cases[index], shown).error == pytest.approx(first.error, abs=1e-9)


def test_shipped_doubts_narrow_what_coefficients_say_and_a_family_counts_once() -> None:
    doubts = shipped_doubts()
    assert 0.4 < doubts.coefficient_share < 1.0
    assert 0.05 < doubts.transfer_std < 0.2
    question = EngineFit(few()).questions[0]
    narrow, wide = (
        UncertainPricer(question.deployment, 0.5, Doubts(coefficient_share=share, transfer_std=0.0)).log_std(3, 1, 500)
        for share in (0.5, 1.0)
    )
    assert narrow < wide
    from simulator.questions.accuracy import as_shipped

    shipped = as_shipped()
    assert inside_by_family(shipped) != score(shipped).inside
    assert 0.6 < inside_by_family(shipped) < 0.95
