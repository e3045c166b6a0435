"""How wide an interval must be: the doubts of `cost.doubts`, fitted on published runs that no other constant has seen.

Three kinds of runs tell three things. Runs whose family is left out of the fit of constants tell how much of the coefficients'
doubts shows; the terms stay, as they were chosen with these runs in sight, which no refit undoes. What new parts of an
implementation add is told by runs left out of the model with their engine or their kernels (`parts_left_out`), and by runs never
seen, with the errors of what was first predicted for them (`first_predictions`).

What is predicted of each is an 80 % interval of ln(speedup), judged by its interval score (Gneiting and Raftery 2007): its width,
and for each miss how far times the inverse of how often one may miss on that side. Its mean is smallest where the ends are
quantiles, whatever the distribution of errors; those of new implementations are far from Gaussian. With few families many doubts
score about alike, and which is best turns on single runs. So doubts are averaged over what the runs leave open: each counts as
its mean score to the power of minus the number of runs, which is its posterior under asymmetric Laplace errors of an unknown
scale (Yu and Moyeed 2001). A mean of squares is taken, as variances add up. Runs of one family share their errors: n of them
count as n / (1 + (n - 1)·ρ), with ρ the part of an error's variance that a family shares.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.doubts import ROUND_NOISE_STD, RUN_STD, Doubts
from simulator.cost.spread import Z80, RoundDoubt, Spread, added_stds
from simulator.cost.uncertainty import UncertainPricer
from simulator.cost.unmeasured import Unmeasured, unmeasured
from simulator.prediction import Question, accepted, benchmark_speedup, resolve
from simulator.prediction.speedup import speedup_interval
from simulator.questions.engine_fit import CONSTANTS, FAMILY_STD, EngineFit, Fit
from simulator.questions.first_predictions import first_predictions
from simulator.questions.parts_left_out import parts_left_out

SHARED = FAMILY_STD**2 / (FAMILY_STD**2 + RUN_STD**2)
# How runs are left out of the constants alone.
FAMILY = "family"
# Before any error was seen doubts of coefficients mean what they say: of ln(coefficient_share), about 0.
_SHARE_PRIOR_STD = 0.5
# Row laws were set on the very runs of these, so that their errors say nothing of doubt while the laws stand.
HAND_SET = ("D5", "D7", "C13")
_SHARES = np.geomspace(0.25, 2.0, 28)
_ENGINES = np.arange(0.0, 1.9, 0.05)
_PARTS = np.arange(0.0, 1.21, 0.04)
_SETUPS = np.arange(0.0, 0.41, 0.02)
_MISSES = 0.1
# Of ln R, by which is told how much of it shows in ln(speedup).
_STEP = 0.05


@dataclass(frozen=True)
class Residual:
    """The error of one run and what its interval is made of, as standard deviations of ln(speedup). left_out: a family, an
    engine, kernels, or a set of runs never seen. coefficients: from the doubts of coefficients. r: predicted, on which depends
    what was never measured. rest: of repetition, and of lengths, shapes and parallelism that nobody stated; prompts: what the
    share of prompts that is left out would make of ln(speedup). slopes: d error / d ln(constant). fit: of the constants; None of
    runs never seen."""

    left_out: str
    family: str
    error: float
    coefficients: float
    r: float
    new: Unmeasured
    rest: float
    prompts: float
    slopes: NDArray[np.float64]
    fit: Fit | None

    @property
    def held_out(self) -> str:
        """What doubts that judge it must not have seen."""
        return self.family if self.fit is not None else self.left_out

    def ends(self, doubts: Doubts) -> tuple[float, float]:
        """(down, up) from the predicted ln(speedup) to the ends of its 80 % interval."""
        known = math.hypot(doubts.coefficient_share * self.coefficients, self.rest)
        spread = self.new.spread(doubts, self.r).widened(known).not_below(1 / max(self.r, 1.0))
        return math.hypot(Z80 * spread.up, min(self.prompts, 0.0)), math.hypot(Z80 * spread.down, max(self.prompts, 0.0))


def residuals(fit: EngineFit, fits: Mapping[str, Fit], full: Fit) -> list[Residual]:
    """Of every case left out in three ways. fits: constants by the family that they were fitted without."""
    with_family = [
        _of_case(FAMILY, fit, fits[case.family], index, fit.question(fits[case.family], index))
        for index, case in enumerate(fit.cases)
        if case.family not in HAND_SET
    ]
    return with_family + [_of_case(each.part, fit, each.fit, each.index, each.question) for each in parts_left_out(fit, full)]


def first_residuals() -> list[Residual]:
    """Of runs never seen: the errors of what was first predicted, within intervals of today's coefficients."""
    found = []
    for each in first_predictions():
        question = resolve(each.case.point, each.case.document)
        tau, full = accepted(question, each.case.document)[:2]
        assert tau is not None
        error = math.log(each.case.measured_speedup / each.speedup)
        family = f"{each.case.family}, set {each.set_number}"
        found.append(_residual(f"set {each.set_number}", family, error, question, tau, full))
    return found


def _of_case(left_out: str, fit: EngineFit, own: Fit, index: int, question: Question) -> Residual:
    tau, full = fit.accepted[index]
    assert tau is not None
    pricer = question.deployment.pricer(full)
    cost = pricer.round(question.gamma, question.batch, question.context)
    speedup = benchmark_speedup(question, pricer, tau, cost.r, cost.plain_step_s)
    error = float(fit.measured_log[index]) - math.log(speedup)
    found = _residual(left_out, fit.cases[index].family, error, question, tau, full)
    slopes = fit.slopes(own.log_values, [index])[0] if left_out == FAMILY else found.slopes
    return replace(found, slopes=slopes, fit=own)


def _residual(left_out: str, family: str, error: float, question: Question, tau: float, full: float) -> Residual:
    """The doubt of a question's answer in parts, from `predict`'s own intervals."""
    pricer = UncertainPricer(question.deployment, full)
    cost = pricer.base.round(question.gamma, question.batch, question.context)

    def ends(std: float) -> tuple[float, float]:
        doubt = RoundDoubt(cost.r, Spread.even(std), Spread.even(0.0))
        middle, low, high = speedup_interval(question, pricer.base, tau, doubt, cost.plain_step_s)
        return math.log(middle / low), math.log(high / middle)

    (down, up), (dearer, _) = ends(0.0), ends(_STEP)
    lengths, prompts = min(down, up), max(down, up)
    through = math.sqrt(dearer**2 - down**2) / (Z80 * _STEP)
    beside = math.sqrt(prompts**2 - lengths**2)
    return Residual(
        left_out,
        family,
        error,
        through * pricer.coefficient_std(question.gamma, question.batch, question.context),
        cost.r,
        unmeasured(question.deployment),
        math.hypot(through * ROUND_NOISE_STD, through * question.extra_std, lengths / Z80),
        beside if up > down else -beside,
        np.zeros(len(CONSTANTS)),
        None,
    )


def fitted_doubts(residuals: Sequence[Residual], without: str | None = None) -> Doubts:
    """The mean of the doubts that all runs leave open, or those of other families or sets than one: as if a family had been left
    out of the constants of the other families' runs as well, to first order.

    How much of the doubts of coefficients shows is told by runs of which nothing but the constants was left out.
    """
    kept = [each for each in residuals if each.held_out != without]
    known = _Sample.of([each for each in kept if each.left_out == FAMILY and not each.new.parts], without)
    share = _mean(_SHARES, known.count, [known.score(float(share)) for share in _SHARES], np.log(_SHARES) / _SHARE_PRIOR_STD)
    new = _Sample.of([each for each in kept if each.new.engine], without)
    engine = _mean(_ENGINES, new.count, [new.score(share, float(std)) for std in _ENGINES])
    parts = _Sample.of([each for each in kept if not each.new.engine], without)
    scores = np.array([[parts.score(share, float(part), float(setup)) for setup in _SETUPS] for part in _PARTS])
    grid = np.meshgrid(_PARTS, _SETUPS, indexing="ij")
    part, setup = (_mean(values, parts.count, scores) for values in grid)
    return Doubts(coefficient_share=share, engine_std=engine, part_std=part, setup_std=setup)


def _mean(
    values: NDArray[np.float64], count: float, scores: Sequence[float] | NDArray[np.float64], from_prior: Any = 0.0
) -> float:
    """Of doubts on a grid, the square root of their mean square under the posterior. count: of independent runs that the scores
    are of; from_prior: standard deviations from what was believed before."""
    log_density = -count * np.log(np.maximum(scores, np.finfo(float).tiny)) - np.asarray(from_prior) ** 2 / 2
    density = np.exp(log_density - log_density.max())
    return round(math.sqrt(float((density * values**2).sum() / density.sum())), 3)


@dataclass(frozen=True)
class Covered:
    """Of runs left out in one way. inside: share within their 80 % intervals; by_family: where every family counts once; width:
    median ln(high / low)."""

    runs: int
    inside: float
    by_family: float
    width: float


def covered(residuals: Sequence[Residual]) -> dict[str, Covered]:
    """By what was left out, with doubts fitted without the family of each run, or without its set."""
    doubts = {held_out: fitted_doubts(residuals, held_out) for held_out in {each.held_out for each in residuals}}
    found: dict[str, list[tuple[str, bool, float]]] = {}
    for each in residuals:
        down, up = each.ends(doubts[each.held_out])
        found.setdefault(each.left_out, []).append((each.family, -down <= each.error <= up, down + up))
    return {left_out: _covered(runs) for left_out, runs in found.items()}


def _covered(runs: Sequence[tuple[str, bool, float]]) -> Covered:
    families: dict[str, list[bool]] = {}
    for family, inside, _ in runs:
        families.setdefault(family, []).append(inside)
    return Covered(
        len(runs),
        float(np.mean([inside for _, inside, _ in runs])),
        float(np.mean([np.mean(each) for each in families.values()])),
        float(np.median([width for *_, width in runs])),
    )


@dataclass(frozen=True)
class _Sample:
    """Residuals as arrays. count: as how many independent runs they count; parts: how many parts each run has of a measured
    engine that were never measured; engine: whether it has an unmeasured engine; setup: whether its setup is new."""

    count: float
    weight: NDArray[np.float64]
    error: NDArray[np.float64]
    coefficients: NDArray[np.float64]
    rest: NDArray[np.float64]
    prompts: NDArray[np.float64]
    r: NDArray[np.float64]
    parts: NDArray[np.float64]
    engine: NDArray[np.bool_]
    setup: NDArray[np.bool_]

    @classmethod
    def of(cls, chosen: Sequence[Residual], without: str | None) -> _Sample:
        counts = Counter((each.left_out, each.family) for each in chosen)
        weight = np.array([1 / (1 + (counts[each.left_out, each.family] - 1) * SHARED) for each in chosen])
        error, coefficients = np.array([_less(each, without) for each in chosen]).reshape(-1, 2).T
        rest, prompts, r = np.array([(each.rest, each.prompts, each.r) for each in chosen]).reshape(-1, 3).T
        parts = np.array([each.new.new for each in chosen], dtype=np.float64)
        engine, setup = (np.array([getattr(each.new, name) for each in chosen], dtype=bool) for name in ("engine", "setup"))
        return cls(float(weight.sum()), weight, error, coefficients, rest, prompts, r, parts, engine, setup)

    def score(self, share: float, added_std: float = 0.0, setup_std: float = 0.0) -> float:
        """The widths of the intervals, and by how much what was measured misses them, weighted."""
        known = (share * self.coefficients) ** 2 + self.rest**2 + (self.setup * setup_std) ** 2
        new = np.where(self.engine, 1.0, np.sqrt(self.parts))
        below, above = added_stds(added_std * new, self.r)
        up = np.minimum(Z80 * np.sqrt(known + below**2), np.log(np.maximum(self.r, 1.0)))
        down = np.hypot(Z80 * np.sqrt(known + above**2), np.minimum(self.prompts, 0.0))
        up = np.hypot(up, np.maximum(self.prompts, 0.0))
        missed = np.maximum(-self.error - down, 0) + np.maximum(self.error - up, 0)
        return float(self.weight @ (down + up + missed / _MISSES))


def _less(residual: Residual, family: str | None) -> tuple[float, float]:
    """(error, standard deviation from coefficients) of a run without one more family in its fit."""
    less = None if residual.fit is None else residual.fit.without.get(family or "")
    if residual.fit is None or less is None:
        return residual.error, residual.coefficients
    more = float(residual.slopes @ (less.covariance - residual.fit.covariance) @ residual.slopes)
    error = residual.error + float(residual.slopes @ less.move)
    return error, math.sqrt(max(residual.coefficients**2 + more, 0.0))
