"""How wide an interval must be: the doubts of `cost.doubts`, fitted on published runs whose family no other constant has seen.

What is predicted of a run is a Gaussian of ln(speedup). It is judged by its continuous ranked probability score (Gneiting and
Raftery 2007), which is smallest on average where errors are as large as said: neither misses nor needless width pay. Runs of one
family share their errors: n of them count as n / (1 + (n - 1)·ρ), with ρ the part of an error's variance that a family shares.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.cost.doubts import ROUND_NOISE_STD, Doubts
from simulator.cost.uncertainty import Z80, UncertainPricer
from simulator.prediction import Question
from simulator.prediction.speedup import speedup_interval
from simulator.questions.engine_fit import FAMILY_STD, RUN_STD, EngineFit, Fit

SHARED = FAMILY_STD**2 / (FAMILY_STD**2 + RUN_STD**2)
# Row laws were set on the very runs of these, so that their errors say nothing of doubt.
HAND_SET = ("D5", "D7", "C13")
_SHARES = np.arange(0.30, 1.51, 0.02)
_TRANSFERS = np.arange(0.0, 0.251, 0.004)


@dataclass(frozen=True)
class Residual:
    """The error of one run and what its interval is made of, as standard deviations of ln(speedup). coefficients: from the doubts
    of coefficients. elsewhere: for each unit of `Doubts.transfer_std`. rest: of repetition, and of lengths, shapes and
    parallelism that nobody stated. slopes: d error / d ln(constant). fit: of the constants."""

    family: str
    error: float
    coefficients: float
    elsewhere: float
    rest: float
    slopes: NDArray[np.float64]
    fit: Fit


def residuals(fit: EngineFit, fits: Mapping[str, Fit]) -> list[Residual]:
    """Of every case, with the constants of its family's own entry in `fits`."""
    return [_residual(fit, fits[case.family], index) for index, case in enumerate(fit.cases)]


def _residual(fit: EngineFit, own: Fit, index: int) -> Residual:
    question, (tau, full) = fit.question(own, index), fit.accepted[index]
    assert tau is not None
    pricer = UncertainPricer(question.deployment, full)
    through, lengths = _through(question, pricer, tau)
    doubt = pricer.coefficient_std(question.gamma, question.batch, question.context)
    return Residual(
        fit.cases[index].family,
        float(fit.errors(own.log_values, [index])[0]),
        through * doubt,
        through * pricer.transferred,
        math.hypot(through * ROUND_NOISE_STD, through * question.extra_std, lengths),
        fit.slopes(own.log_values, [index])[0],
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
    """The doubts of the best mean score on all runs, or on those of other families than one, as if it had been left out of their
    fits as well."""
    chosen = [each for each in residuals if each.family not in (without, *HAND_SET)]
    counts = Counter(each.family for each in chosen)
    weight = np.array([1 / (1 + (counts[each.family] - 1) * SHARED) for each in chosen])
    less = [_less(each, without) for each in chosen]
    error, coefficients = np.array(less).T
    elsewhere, rest = np.array([(each.elsewhere, each.rest) for each in chosen]).T
    variance = (_SHARES[:, None, None] * coefficients) ** 2 + (_TRANSFERS[None, :, None] * elsewhere) ** 2 + rest**2
    scores = (weight * gaussian_score(error, np.sqrt(variance))).sum(axis=-1)
    share, transfer = np.unravel_index(int(np.argmin(scores)), scores.shape)
    return Doubts(coefficient_share=round(float(_SHARES[share]), 3), transfer_std=round(float(_TRANSFERS[transfer]), 3))


def _less(residual: Residual, family: str | None) -> tuple[float, float]:
    """(error, standard deviation from coefficients) of a run without one more family in its fit."""
    less = residual.fit.without.get(family or "")
    if less is None:
        return residual.error, residual.coefficients
    more = float(residual.slopes @ (less.covariance - residual.fit.covariance) @ residual.slopes)
    error = residual.error + float(residual.slopes @ less.move)
    return error, math.sqrt(max(residual.coefficients**2 + more, 0.0))


def gaussian_score(error: NDArray[np.float64], std: NDArray[np.float64]) -> NDArray[np.float64]:
    """Continuous ranked probability score of a Gaussian around 0 at `error`.

    >>> one = np.array([1.0])
    >>> float(gaussian_score(one, one)) < min(float(gaussian_score(one, 0.3 * one)), float(gaussian_score(one, 3 * one)))
    True
    """
    from scipy.special import ndtr  # slow to load

    z = error / std
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    score: NDArray[np.float64] = std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))
    return score
