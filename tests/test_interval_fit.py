"""Intervals are as wide as errors of runs need that no constant has seen, and nothing of a family reaches its own."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from simulator.cost.doubts import Doubts, shipped_doubts
from simulator.cost.uncertainty import UncertainPricer
from simulator.cost.unmeasured import Unmeasured
from simulator.questions.accuracy import Scored, inside_by_family, score
from simulator.questions.engine_fit import CONSTANTS, EngineFit, Fit
from simulator.questions.interval_fit import Residual, fitted_doubts, residuals
from simulator.questions.parts_left_out import FitsWithout, parts_left_out
from simulator.questions.published_cases import PublishedCase, published_cases

NOTHING = np.zeros(len(CONSTANTS))
UNKNOWN = Fit(NOTHING, np.eye(len(CONSTANTS)), {})
NEW = (
    Unmeasured(), Unmeasured(setup=True), Unmeasured(kernels=True, setup=True), Unmeasured(method=True, kernels=True, setup=True),
    Unmeasured(engine=True),
)  # fmt: skip


def drawn(doubts: Doubts, families: int = 200) -> list[Residual]:
    """Errors of one run a family, as large as these doubts say on either side."""
    random, found = np.random.default_rng(7), []
    for place in range(families):
        coefficients, r, rest, new = (
            float(random.uniform(0.02, 0.15)),
            float(random.uniform(1.6, 3.0)),
            0.04,
            NEW[place % len(NEW)],
        )
        spread = new.spread(doubts, r).widened(math.hypot(doubts.coefficient_share * coefficients, rest))
        normal = float(random.normal())
        error = normal * (spread.down if normal > 0 else spread.up)
        found.append(Residual("family", f"family {place}", error, coefficients, r, new, rest, 0.0, NOTHING, UNKNOWN))
    return found


def doubts_of(share: float, engine: float, part: float, setup: float) -> Doubts:
    return Doubts(coefficient_share=share, engine_std=engine, part_std=part, setup_std=setup)


@pytest.mark.parametrize("truth", [doubts_of(0.6, 0.8, 0.4, 0.1), doubts_of(1.1, 0.4, 0.2, 0.16)])
def test_doubts_that_made_the_errors_are_found_again(truth: Doubts) -> None:
    found = fitted_doubts(drawn(truth, 4000))
    assert found.coefficient_share == pytest.approx(truth.coefficient_share, abs=0.15)
    assert found.engine_std == pytest.approx(truth.engine_std, rel=0.2)
    assert found.part_std == pytest.approx(truth.part_std, abs=0.08)
    assert found.setup_std == pytest.approx(truth.setup_std, abs=0.04)


def test_runs_never_seen_size_the_doubt_of_new_parts_and_not_that_of_coefficients() -> None:
    """A set is judged by doubts that have not seen it; errors of a set do not widen what was measured."""
    truth = doubts_of(0.6, 0.8, 0.2, 0.06)
    runs = drawn(truth, 600)
    unseen = [
        replace(each, left_out="set 1", family=f"{each.family}, set 1", error=3 * each.error, fit=None)
        for each in drawn(truth, 400)
    ]
    alone, both = fitted_doubts(runs), fitted_doubts([*runs, *unseen])
    assert both.coefficient_share == alone.coefficient_share
    assert both.part_std > 1.3 * alone.part_std
    assert fitted_doubts([*runs, *unseen], "set 1") == alone


def test_of_few_families_intervals_are_wider_than_their_own_errors_need() -> None:
    """So that the next family's lie inside as often as said: 80 % on average over many draws of twenty families."""
    truth, inside = doubts_of(0.6, 0.8, 0.4, 0.1), []
    runs = drawn(truth, 1200)
    for start in range(0, 1000, 25):
        found, others = fitted_doubts(runs[start : start + 20]), runs[1000:]
        for each in others:
            down, up = each.ends(found)
            inside.append(-down <= each.error <= up)
    assert 0.76 < np.mean(inside) < 0.90


def inside(each: Residual, doubts: Doubts) -> bool:
    down, up = each.ends(doubts)
    return -down <= each.error <= up


def test_four_fifths_of_families_lie_inside_where_runs_of_one_share_their_error() -> None:
    """However many runs each has: a hundred of one family say little more of the next than one."""
    truth = doubts_of(0.8, 0.8, 0.4, 0.1)
    random, runs = np.random.default_rng(3), []
    for each in drawn(truth, 300):
        runs += [replace(each, error=each.error + float(random.normal(0, 0.005))) for _ in range(random.choice((1, 1, 5, 40)))]
    found = fitted_doubts(runs)
    families: dict[str, list[bool]] = {}
    for each in runs:
        families.setdefault(each.family, []).append(inside(each, found))
    assert np.mean([np.mean(of_family) for of_family in families.values()]) == pytest.approx(0.8, abs=0.04)


def test_no_doubt_turns_on_where_one_large_family_lies() -> None:
    """Seventy runs that share one error are one family: as it grows, the doubts follow little by little."""
    others = drawn(doubts_of(0.7, 0.8, 0.4, 0.1), 60)
    first = next(each for each in others if not each.new.parts)
    shares, engines = [], []
    for shared in np.arange(0.0, 0.161, 0.01):
        large = [
            replace(first, family="large", error=float(shared) + 0.015 * math.sin(place), coefficients=0.05)
            for place in range(70)
        ]
        found = fitted_doubts([*others, *large])
        shares.append(found.coefficient_share)
        engines.append(found.engine_std)
    assert max(abs(np.diff(np.log(shares)))) < 0.1
    assert max(abs(np.diff(engines))) < 0.02
    assert shares[-1] > shares[0]


def test_no_family_decides_how_wide_the_others_are() -> None:
    """Leaving any one out of twenty moves the share of coefficients' doubts by less than a quarter; and errors that say
    nothing of it leave it where it was believed to be."""
    runs = drawn(doubts_of(0.7, 0.8, 0.4, 0.1), 100)
    every = fitted_doubts(runs).coefficient_share
    known = [each for each in runs if not each.new.parts]
    for left_out in known:
        assert fitted_doubts(runs, left_out.family).coefficient_share == pytest.approx(every, rel=0.25)
    silent = [replace(each, coefficients=1e-6) for each in runs]
    assert 0.9 < fitted_doubts(silent).coefficient_share < 1.3


@pytest.mark.parametrize("name", Doubts.model_fields)
def test_a_doubt_more_narrows_no_interval(name: str) -> None:
    doubts = shipped_doubts()
    wider = doubts.model_copy(update={name: 1.2 * getattr(doubts, name)})
    grew = 0
    for each in drawn(doubts, 50):
        before, after = each.ends(doubts), each.ends(wider)
        assert after[0] >= before[0]
        assert after[1] >= before[1]
        grew += after > before
    assert grew >= 10


def test_errors_of_a_family_do_not_reach_the_doubts_of_its_own_intervals() -> None:
    runs = drawn(shipped_doubts(), 60)
    large = [replace(each, family="family 3") if place % 5 == 3 else each for place, each in enumerate(runs)]
    wrong = [replace(each, error=-3.0) if each.family == "family 3" else each for each in large]
    assert fitted_doubts(large, "family 3") == fitted_doubts(wrong, "family 3")
    assert fitted_doubts(large) != fitted_doubts(wrong)


def few() -> list[PublishedCase]:
    families = ("VK", "ANG", "MOE", "SGE")
    return [case for family in families for case in [c for c in published_cases() if c.family == family][:4]]


@pytest.fixture(scope="module")
def fit_of_few() -> tuple[EngineFit, Fit]:
    fit = EngineFit(few())
    return fit, fit.fit()


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


def test_a_linear_fit_without_runs_is_near_the_fit_without_them(fit_of_few: tuple[EngineFit, Fit]) -> None:
    fit, full = fit_of_few
    places = fit.of_family("ANG")
    near, truth = FitsWithout(fit, full).without(places), fit.fit(without="ANG")
    stds = np.sqrt(np.diag(truth.covariance))
    assert (abs(near.log_values - truth.log_values) < 0.3 * stds).all()
    # Only what is left out of the model was never measured then.
    assert truth.measured == full.measured == fit.measured()
    assert near.measured == fit.measured(places) != full.measured


def test_a_run_without_its_engine_is_priced_by_the_unknown_one_and_without_its_kernels_by_no_row_law() -> None:
    fit = EngineFit([case for case in published_cases() if case.family in ("D7", "VK")])
    full = Fit(fit.prior, np.diag(fit.prior_std**2), fit.measured())
    found = {(each.part, fit.cases[each.index].family): each.question.deployment.engine for each in parts_left_out(fit, full)}
    assert {engine.name for (part, _), engine in found.items() if part == "engine"} == {"an engine that is not known"}
    kernels = found["kernels", "D7"]
    assert kernels.name == fit.questions[0].deployment.engine.name or "llama.cpp" in kernels.name
    assert not any("q8_0" in law.formats for law in kernels.small_rows)
    assert kernels.small_rows


def test_what_an_interval_is_made_of_is_what_predict_shows(fit_of_few: tuple[EngineFit, Fit]) -> None:
    fit, own = fit_of_few
    first = residuals(fit, dict.fromkeys({case.family for case in fit.cases}, own), own)[0]
    doubts = doubts_of(0.5, 0.8, 0.4, 0.1)
    (shown,) = fit.predictions(own, [0], doubts)
    down, up = first.ends(doubts)
    assert shown.speedup is not None
    assert shown.speedup_high is not None
    assert shown.speedup_low is not None
    assert math.log(shown.speedup / shown.speedup_low) == pytest.approx(down, rel=0.05)
    assert math.log(shown.speedup_high / shown.speedup) == pytest.approx(up, rel=0.05)
    assert Scored(fit.cases[0], shown).error == pytest.approx(first.error, abs=1e-9)


def test_shipped_doubts_narrow_what_coefficients_say_and_a_family_counts_once() -> None:
    doubts = shipped_doubts()
    assert 0.4 < doubts.coefficient_share < 1.0
    assert doubts.setup_std < doubts.part_std < doubts.engine_std
    question = EngineFit(few()).questions[0]
    narrow, wide = (
        UncertainPricer(question.deployment, 0.5, doubts.model_copy(update={"coefficient_share": share})).spread(3, 1, 500).up
        for share in (0.5, 1.0)
    )
    assert narrow < wide
    from simulator.questions.accuracy import as_shipped

    shipped = as_shipped()
    assert inside_by_family(shipped) != score(shipped).inside
    assert 0.6 < inside_by_family(shipped) < 0.95
