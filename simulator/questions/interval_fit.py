"""How wide an interval must be: the doubts of `cost.doubts`, fitted on published runs that no other constant has seen.

Runs are left out in three ways: with their family, from the constants alone; and with their engine, or with their kernels, from
the model (`parts_left_out`). What is predicted of each is an 80 % interval of ln(speedup), judged by its interval score (Gneiting
and Raftery 2007): its width, and for each miss how far times the inverse of how often one may miss on that side. The score is
smallest where the ends are quantiles, each side for itself. It asks for no Gaussian, and errors of new implementations are none:
most are dearer than predicted. Runs of one family share their errors: n of them count as n / (1 + (n - 1)·ρ), with ρ the part of
an error's variance that a family shares. As there are few families, misses are held to 0.1 - 0.9/n on each side for n families,
so that the next family's are a tenth.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.cost.doubts import ROUND_NOISE_STD, Doubts
from simulator.cost.spread import Z80
from simulator.cost.uncertainty import UncertainPricer
from simulator.cost.unmeasured import Unmeasured, unmeasured
from simulator.prediction import Question, benchmark_speedup
from simulator.prediction.speedup import speedup_interval
from simulator.questions.engine_fit import FAMILY_STD, RUN_STD, EngineFit, Fit
from simulator.questions.parts_left_out import parts_left_out

SHARED = FAMILY_STD**2 / (FAMILY_STD**2 + RUN_STD**2)
# Row laws were set on the very runs of these, so that their errors say nothing of doubt while the laws stand.
HAND_SET = ("D5", "D7", "C13")
_SHARES = np.arange(0.30, 1.51, 0.05)
_ADDED = np.arange(0.0, 1.5, 0.005)
_MISSES = 0.1


@dataclass(frozen=True)
class Residual:
    """The error of one run and what its interval is made of, as standard deviations of ln(speedup). left_out: a family, an engine
    or kernels. coefficients: from the doubts of coefficients. through: d ln(speedup) / d ln R, for what was never measured. rest:
    of repetition, and of lengths, shapes and parallelism that nobody stated. slopes: d error / d ln(constant). fit: of the
    constants."""

    left_out: str
    family: str
    error: float
    coefficients: float
    through: float
    new: Unmeasured
    rest: float
    slopes: NDArray[np.float64]
    fit: Fit


def residuals(fit: EngineFit, fits: Mapping[str, Fit], full: Fit) -> list[Residual]:
    """Of every case left out in three ways. fits: constants by the family that they were fitted without."""
    with_family = [
        _residual("family", fit, fits[case.family], index, fit.question(fits[case.family], index))
        for index, case in enumerate(fit.cases)
        if case.family not in HAND_SET
    ]
    return with_family + [_residual(each.part, fit, each.fit, each.index, each.question) for each in parts_left_out(fit, full)]


def _residual(left_out: str, fit: EngineFit, own: Fit, index: int, question: Question) -> Residual:
    tau, full = fit.accepted[index]
    assert tau is not None
    pricer = UncertainPricer(question.deployment, full)
    cost = pricer.base.round(question.gamma, question.batch, question.context)
    speedup = benchmark_speedup(question, pricer.base, tau, cost.r, cost.plain_step_s)
    through, lengths = _through(question, pricer, tau)
    return Residual(
        left_out,
        fit.cases[index].family,
        float(fit.measured_log[index]) - math.log(speedup),
        through * pricer.coefficient_std(question.gamma, question.batch, question.context),
        through,
        unmeasured(question.deployment),
        math.hypot(through * ROUND_NOISE_STD, through * question.extra_std, lengths),
        fit.slopes(own.log_values, [index])[0] if left_out == "family" else np.zeros_like(own.log_values),
        own,
    )


def _through(question: Question, pricer: UncertainPricer, tau: float, step: float = 0.1) -> tuple[float, float]:
    """(d ln(speedup) / d ln R, less than one where prompts take their share; what lengths leave open), from intervals."""
    cost = pricer.base.round(question.gamma, question.batch, question.context)

    def half_width(std: float) -> float:
        ends = cost.r, cost.r * math.exp(std), cost.r * math.exp(-std)
        _, low, high = speedup_interval(question, pricer.base, tau, ends, cost.plain_step_s)
        return math.log(high / low) / 2

    lengths = half_width(0.0)
    return math.sqrt(half_width(step) ** 2 - lengths**2) / step, lengths / Z80


def fitted_doubts(residuals: Sequence[Residual], without: str | None = None) -> Doubts:
    """The doubts of the best mean score on all runs, or on those of other families than one: as if it had been left out of the
    constants of the other families' runs as well, to first order."""
    sample = _Sample.of([each for each in residuals if each.family != without], without)
    _, best = min((sample.with_share(float(share)) for share in _SHARES), key=lambda found: found[0])
    return best


@dataclass(frozen=True)
class Covered:
    """Of runs left out in one way. inside: share within their 80 % intervals; by_family: where every family counts once; width:
    median ln(high / low)."""

    runs: int
    inside: float
    by_family: float
    width: float


def covered(residuals: Sequence[Residual]) -> dict[str, Covered]:
    """By what was left out, with doubts fitted without the family of each run."""
    doubts = {family: fitted_doubts(residuals, family) for family in {each.family for each in residuals}}
    found: dict[str, list[tuple[str, bool, float]]] = {}
    for each in residuals:
        own = doubts[each.family]
        known = math.hypot(own.coefficient_share * each.coefficients, each.rest)
        spread = each.new.spread(own).scaled(each.through).widened(known)
        inside = -Z80 * spread.up <= each.error <= Z80 * spread.down
        found.setdefault(each.left_out, []).append((each.family, inside, Z80 * (spread.up + spread.down)))
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
    """Residuals as arrays. parts: how many each run has that were never measured; engine: whether one of them is an engine."""

    weight: NDArray[np.float64]
    error: NDArray[np.float64]
    coefficients: NDArray[np.float64]
    rest: NDArray[np.float64]
    through: NDArray[np.float64]
    parts: NDArray[np.float64]
    engine: NDArray[np.bool_]
    misses: float

    @classmethod
    def of(cls, chosen: Sequence[Residual], without: str | None) -> _Sample:
        counts = Counter((each.left_out, each.family) for each in chosen)
        families = len({each.family for each in chosen})
        weight = np.array([1 / (1 + (counts[each.left_out, each.family] - 1) * SHARED) for each in chosen])
        error, coefficients = np.array([_less(each, without) for each in chosen]).T
        rest, through = np.array([(each.rest, each.through) for each in chosen]).T
        parts = np.array([len(each.new.parts) for each in chosen], dtype=np.float64)
        engine = np.array([each.new.engine for each in chosen])
        misses = max(_MISSES - (1 - _MISSES) / families, _MISSES / 2)
        return cls(weight, error, coefficients, rest, through, parts, engine, misses)

    def with_share(self, share: float) -> tuple[float, Doubts]:
        """(mean score, the doubts that reach it) with so much of the doubts of coefficients."""
        known = (share * self.coefficients) ** 2 + self.rest**2
        new = self.parts > 0
        dearer, cheaper = -self.error, self.error
        engine_score, engine = self._added(dearer, known, self.engine)
        part_score, part = self._added(dearer, known, new & ~self.engine)
        cheaper_score, less = self._added(cheaper, known, new)
        rest = self._scores(dearer, np.sqrt(known), ~new).sum() + self._scores(cheaper, np.sqrt(known), ~new).sum()
        doubts = Doubts(coefficient_share=round(share, 3), engine_dearer_std=engine, part_dearer_std=part, part_cheaper_std=less)
        return engine_score + part_score + cheaper_score + float(rest), doubts

    def _added(self, beyond: NDArray[np.float64], known: NDArray[np.float64], chosen: NDArray[np.bool_]) -> tuple[float, float]:
        """(score on one side of the chosen runs, what each part adds there that was never measured)."""
        std = np.sqrt(known + _ADDED[:, None] ** 2 * self.through**2 * self.parts)
        scores = self._scores(beyond, std, chosen).sum(axis=-1)
        best = int(np.argmin(scores))
        return float(scores[best]), round(float(_ADDED[best]), 3)

    def _scores(self, beyond: NDArray[np.float64], std: NDArray[np.float64], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Weighted: the width of one side of an interval, and what misses it by how much."""
        width = Z80 * std[..., chosen]
        score: NDArray[np.float64] = self.weight[chosen] * (width + np.maximum(beyond[chosen] - width, 0) / self.misses)
        return score


def _less(residual: Residual, family: str | None) -> tuple[float, float]:
    """(error, standard deviation from coefficients) of a run without one more family in its fit."""
    less = residual.fit.without.get(family or "")
    if less is None:
        return residual.error, residual.coefficients
    more = float(residual.slopes @ (less.covariance - residual.fit.covariance) @ residual.slopes)
    error = residual.error + float(residual.slopes @ less.move)
    return error, math.sqrt(max(residual.coefficients**2 + more, 0.0))
