"""How far predictions are from published runs: errors of R by group, signs, intervals; and what moved between two versions.

What is compared is R as a benchmark shows it, prefill included: τ / speedup. An error is ln(predicted / measured).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator.prediction import Prediction, predict_document
from simulator.questions.engine_fit import UNFITTED, EngineFit, Fit
from simulator.questions.interval_fit import Residual, first_residuals, fitted_doubts, residuals
from simulator.questions.published_cases import PublishedCase, by, published_cases
from simulator.spec import Problem, SpecError, why_unreadable

# Around a measured 1 no sign is asked for.
DEAD_BAND = (0.95, 1.05)
CONSTANT_SPEEDUP = 1.4


@dataclass(frozen=True)
class Scored:
    """One published run beside what was predicted for it."""

    case: PublishedCase
    prediction: Prediction

    @property
    def error(self) -> float:
        """ln(predicted R / measured R); infinite where nothing was predicted."""
        return log_ratio(self.case.measured_speedup, self.prediction.speedup)

    @property
    def inside(self) -> bool:
        """Whether the 80 % interval holds what was measured."""
        low, high = self.prediction.speedup_low, self.prediction.speedup_high
        return low is not None and high is not None and low <= self.case.measured_speedup <= high

    @property
    def sign_right(self) -> bool | None:
        """None inside the dead band."""
        measured, predicted = self.case.measured_speedup, self.prediction.speedup
        if DEAD_BAND[0] <= measured <= DEAD_BAND[1]:
            return None
        return predicted is not None and (predicted > 1) == (measured > 1)


@dataclass(frozen=True)
class Score:
    """A group of runs. median, p90: of |error|; bias: mean error; width: median ln(high / low); signs None where none counts."""

    cases: int
    median: float
    p90: float
    bias: float
    inside: float
    width: float
    wins: float | None
    losses: float | None


def log_ratio(measured: float, predicted: float | None) -> float:
    """ln(measured / predicted) of speedups, which is that of predicted over measured R."""
    return math.log(measured / predicted) if predicted else math.inf


def score(scored: Sequence[Scored]) -> Score:
    """The errors of some runs together."""
    errors = np.array([each.error for each in scored])
    widths = [
        math.log(high / low)
        for low, high in ((each.prediction.speedup_low, each.prediction.speedup_high) for each in scored)
        if low and high
    ]
    wins = [each.sign_right for each in scored if each.sign_right is not None and each.case.measured_speedup > 1]
    losses = [each.sign_right for each in scored if each.sign_right is not None and each.case.measured_speedup < 1]
    return Score(
        len(scored),
        float(np.median(abs(errors))),
        float(np.quantile(abs(errors), 0.9)),
        float(errors.mean()),
        float(np.mean([each.inside for each in scored])),
        float(np.median(widths)) if widths else math.inf,
        float(np.mean(wins)) if wins else None,
        float(np.mean(losses)) if losses else None,
    )


def inside_by_family(scored: Sequence[Scored]) -> float:
    """Share of runs inside their 80 % intervals where every family counts once, however many runs it has."""
    families = by([each.case for each in scored], lambda case: case.family)
    return float(np.mean([np.mean([scored[place].inside for place in places]) for places in families.values()]))


def as_shipped() -> list[Scored]:
    """Every published run with the shipped constants, which were fitted on most of them."""
    return [Scored(case, predict_document(case.point, case.document)) for case in published_cases()]


def left_out(progress: Callable[[str, int, int], None] = lambda *_: None) -> list[Scored]:
    """Every published run with constants fitted without its family, and with intervals as wide as runs of other families need
    that were left out too. Families on which nothing is fitted keep the shipped constants.

    progress: is told (family, done, families).
    """
    fit = EngineFit(published_cases())
    full, fits = fits_left_out(fit, progress)
    return scored_without(fit, fits, [*residuals(fit, fits, full), *first_residuals()])


def scored_without(fit: EngineFit, fits: Mapping[str, Fit], errors: Sequence[Residual]) -> list[Scored]:
    """Every case with the constants and the doubts that were fitted without its family."""
    found: dict[str, Scored] = {}
    for family, places in by(fit.cases, lambda case: case.family).items():
        doubts = fitted_doubts(errors, family)
        for place, prediction in zip(places, fit.predictions(fits[family], places, doubts), strict=True):
            found[fit.cases[place].point.id] = Scored(fit.cases[place], prediction)
    return [found[case.point.id] for case in fit.cases]


def fits_left_out(fit: EngineFit, progress: Callable[[str, int, int], None] = lambda *_: None) -> tuple[Fit, dict[str, Fit]]:
    """The fit on all families, and by family that without it, which is the fit on all where none of its runs is fitted on."""
    full, families = fit.fit(), by(fit.cases, lambda case: case.family)
    found = {name: full for name in families if name in UNFITTED}
    fitted = [name for name in families if name not in UNFITTED]
    for done, family in enumerate(fitted):
        progress(family, done, len(fitted))
        found[family] = fit.fit(without=family)
    return full, found


# ------------------------------------------------------------------------------------------------------------------ diff


@dataclass(frozen=True)
class Moved:
    """A run whose predicted R is not what an older version predicted; errors are ln(predicted R / measured R)."""

    scored: Scored
    old_error: float

    @property
    def better(self) -> bool:
        return abs(self.scored.error) < abs(self.old_error)


def moved(scored: Sequence[Scored], old: Mapping[str, float], at_least: float = 0.01) -> list[Moved]:
    """Runs whose R moved by `at_least` (of its logarithm) against older predicted speedups by id; the largest move first."""
    found = [
        Moved(each, log_ratio(each.case.measured_speedup, old[each.case.point.id]))
        for each in scored
        if each.case.point.id in old
    ]
    found = [each for each in found if abs(each.scored.error - each.old_error) >= at_least]
    return sorted(found, key=lambda each: -abs(each.scored.error - each.old_error))


def read_speedups(path: Path) -> dict[str, float]:
    """Speedups by id from a table that `predict --table` or `validate` wrote. Raises `SpecError` where it is none."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return {row["id"]: float(row["speedup"]) for row in csv.DictReader(file) if row.get("speedup")}
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, ValueError) as error:
        raise SpecError(
            [Problem(str(path), "", f"must be a table of predictions with id and speedup: {why_unreadable(error)}")]
        ) from None
