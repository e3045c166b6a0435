"""How wide an interval must be: the doubts of `cost.doubts`, fitted on published runs that no other constant has seen.

Runs are left out in three ways: with their family, from the constants alone; and with their engine, or with their kernels, from
the model (`parts_left_out`). Beside them stand runs never seen, with the errors of what was first predicted for them
(`first_predictions`). What is predicted of each is an 80 % interval of ln(speedup), judged by its interval score (Gneiting and
Raftery 2007): its width, and for each miss how far times the inverse of how often one may miss on that side. The score is
smallest where the ends are quantiles. It asks for no Gaussian, and errors of new implementations are none. Runs of one family
share their errors: n of them count as n / (1 + (n - 1)·ρ), with ρ the part of an error's variance that a family shares. As there
are few families, misses are held to 0.1 - 0.9/n on each side for n families, so that the next family's are a tenth.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.cost.doubts import ROUND_NOISE_STD, Doubts
from simulator.cost.spread import Z80, RoundDoubt, Spread, added_stds
from simulator.cost.uncertainty import UncertainPricer
from simulator.cost.unmeasured import Unmeasured, unmeasured
from simulator.prediction import Question, accepted, benchmark_speedup, resolve
from simulator.prediction.speedup import speedup_interval
from simulator.questions.engine_fit import CONSTANTS, FAMILY_STD, RUN_STD, EngineFit, Fit
from simulator.questions.first_predictions import first_predictions
from simulator.questions.parts_left_out import parts_left_out

SHARED = FAMILY_STD**2 / (FAMILY_STD**2 + RUN_STD**2)
# How runs are left out of the constants alone.
FAMILY = "family"
# Row laws were set on the very runs of these, so that their errors say nothing of doubt while the laws stand.
HAND_SET = ("D5", "D7", "C13")
_SHARES = np.arange(0.30, 1.51, 0.05)
_ENGINES = np.arange(0.0, 1.5, 0.04)
_PARTS = np.arange(0.0, 1.01, 0.04)
_SETUPS = np.arange(0.0, 0.31, 0.02)
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
    """The doubts of the best mean score on all runs, or on those of other families or sets than one: as if a family had been left
    out of the constants of the other families' runs as well, to first order.

    How much of the doubts of coefficients shows is told by runs of which nothing but the constants was left out.
    """
    kept = [each for each in residuals if each.held_out != without]
    own, every = (_Sample.of(chosen, without) for chosen in ([each for each in kept if each.left_out == FAMILY], kept))
    share = min(map(float, _SHARES), key=lambda share: own.with_share(share)[0])
    return every.with_share(share)[1]


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
    """Residuals as arrays. parts: how many parts each run has of a measured engine that were never measured; engine: whether it
    has an unmeasured engine; setup: whether its setup is new."""

    weight: NDArray[np.float64]
    error: NDArray[np.float64]
    coefficients: NDArray[np.float64]
    rest: NDArray[np.float64]
    prompts: NDArray[np.float64]
    r: NDArray[np.float64]
    parts: NDArray[np.float64]
    engine: NDArray[np.bool_]
    setup: NDArray[np.bool_]
    misses: float

    @classmethod
    def of(cls, chosen: Sequence[Residual], without: str | None) -> _Sample:
        counts = Counter((each.left_out, each.family) for each in chosen)
        families = len({each.family for each in chosen})
        weight = np.array([1 / (1 + (counts[each.left_out, each.family] - 1) * SHARED) for each in chosen])
        error, coefficients = np.array([_less(each, without) for each in chosen]).T
        rest, prompts, r = np.array([(each.rest, each.prompts, each.r) for each in chosen]).T
        parts = np.array([each.new.new for each in chosen], dtype=np.float64)
        engine, setup = (np.array([getattr(each.new, name) for each in chosen]) for name in ("engine", "setup"))
        misses = max(_MISSES - (1 - _MISSES) / families, _MISSES / 2)
        return cls(weight, error, coefficients, rest, prompts, r, parts, engine, setup, misses)

    def with_share(self, share: float) -> tuple[float, Doubts]:
        """(mean score, the doubts that reach it) with so much of the doubts of coefficients."""
        engines = [self._score(self.engine, share, float(std), 0.0) for std in _ENGINES] if self.engine.any() else [0.0]
        engine, others = int(np.argmin(engines)), ~self.engine
        scores = [[self._score(others, share, float(part), float(setup)) for setup in _SETUPS] for part in _PARTS]
        part, setup = divmod(int(np.argmin(scores)), len(_SETUPS))
        doubts = Doubts(
            coefficient_share=round(share, 3),
            engine_std=round(float(_ENGINES[engine]), 3),
            part_std=round(float(_PARTS[part]), 3),
            setup_std=round(float(_SETUPS[setup]), 3),
        )
        return engines[engine] + scores[part][setup], doubts

    def _score(self, chosen: NDArray[np.bool_], share: float, added_std: float, setup_std: float) -> float:
        """Of some runs: the widths of their intervals, and by how much what was measured misses them, weighted."""
        known = (share * self.coefficients[chosen]) ** 2 + self.rest[chosen] ** 2 + (self.setup[chosen] * setup_std) ** 2
        new = np.where(self.engine[chosen], 1.0, np.sqrt(self.parts[chosen]))
        below, above = added_stds(added_std * new, self.r[chosen])
        up = np.minimum(Z80 * np.sqrt(known + below**2), np.log(np.maximum(self.r[chosen], 1.0)))
        prompts, error, weight = self.prompts[chosen], self.error[chosen], self.weight[chosen]
        down = np.hypot(Z80 * np.sqrt(known + above**2), np.minimum(prompts, 0.0))
        up = np.hypot(up, np.maximum(prompts, 0.0))
        missed = np.maximum(-error - down, 0) + np.maximum(error - up, 0)
        return float(weight @ (down + up + missed / self.misses))


def _less(residual: Residual, family: str | None) -> tuple[float, float]:
    """(error, standard deviation from coefficients) of a run without one more family in its fit."""
    less = None if residual.fit is None else residual.fit.without.get(family or "")
    if residual.fit is None or less is None:
        return residual.error, residual.coefficients
    more = float(residual.slopes @ (less.covariance - residual.fit.covariance) @ residual.slopes)
    error = residual.error + float(residual.slopes @ less.move)
    return error, math.sqrt(max(residual.coefficients**2 + more, 0.0))
