"""Published runs predicted as if a part of their implementation had never been measured, an engine or the kernels that ran.

Leaving a family out takes its runs from the fit of constants, but not from the heads of those who chose the terms: what an engine
pays at all, and by which law a kernel pays for rows. So more is left out here. Of an engine, everything: the profile of an engine
that is not known takes its place. Of kernels (one weight format on one architecture), the engine's row laws of that format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.prediction import Question
from simulator.questions.engine_fit import CONSTANTS, ROBUST, UNFITTED, EngineFit, Fit, by_family, with_constants
from simulator.serving_engine import Measured, ServingEngine, find_engine

UNKNOWN_ENGINE = "generic"
_ROUNDS = 20


@dataclass(frozen=True)
class PartLeftOut:
    """A run, the constants fitted without all runs that share the part, and the question as it stands without it."""

    part: str
    index: int
    fit: Fit
    question: Question


class FitsWithout:
    """Fits without some of the runs, linear in the constants about the fit on all."""

    def __init__(self, fit: EngineFit, full: Fit):
        self.fit, self.full = fit, full
        self.chosen = np.array([index for index, family in enumerate(fit.families) if family not in UNFITTED])
        self.slopes = fit.slopes(full.log_values, self.chosen.tolist())
        self.errors = fit.errors(full.log_values, self.chosen.tolist())

    def without(self, places: Collection[int]) -> Fit:
        """The posterior maximum under the same robust loss, by reweighted least squares."""
        kept = np.flatnonzero(~np.isin(self.chosen, list(places)))
        families = self.fit.families[self.chosen[kept]]
        groups = [np.flatnonzero(families == name) for name in sorted(set(families))]
        slopes = np.array([by_family(column, groups) for column in self.slopes[kept].T], dtype=np.float64).T
        errors = by_family(self.errors[kept], groups)
        rows: NDArray[np.float64] = np.concatenate([slopes, np.diag(1 / self.fit.prior_std)])
        start: NDArray[np.float64] = np.concatenate([errors, (self.full.log_values - self.fit.prior) / self.fit.prior_std])
        move: NDArray[np.float64] = np.zeros(len(CONSTANTS))
        for _ in range(_ROUNDS):
            weight = np.asarray((1 + ((start + rows @ move) / ROBUST) ** 2) ** -0.25, dtype=np.float64)
            move = _solved(rows * weight[:, None], start * weight)
        weighed = rows * weight[:, None]
        covariance = np.asarray(np.linalg.inv(weighed.T @ weighed), dtype=np.float64)
        return Fit(self.full.log_values + move, covariance, self.fit.measured(places))


def _solved(rows: NDArray[np.float64], start: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.lstsq(rows, -start, rcond=None)[0], dtype=np.float64)


def parts_left_out(fit: EngineFit, full: Fit) -> Iterator[PartLeftOut]:
    """Every published run once without its engine and once without its kernels. full: fitted on all runs."""
    fits = FitsWithout(fit, full)
    yield from _leaving_out("engine", fits, lambda index: fit.engines[index], _without_engine)
    yield from _leaving_out("kernels", fits, lambda index: _kernels(fit, index), _without_row_laws)


def _leaving_out(
    part: str, fits: FitsWithout, key: Callable[[int], str], without: Callable[[Question, Fit], Question]
) -> Iterator[PartLeftOut]:
    fit = fits.fit
    groups: dict[str, list[int]] = {}
    for index in range(len(fit.cases)):
        groups.setdefault(key(index), []).append(index)
    for places in groups.values():
        less = fits.without(places)
        for index in places:
            yield PartLeftOut(part, index, less, without(fit.question(less, index), less))


def _kernels(fit: EngineFit, index: int) -> str:
    deployment = fit.questions[index].deployment
    return f"{fit.engines[index]} {deployment.hardware.profile.architecture} {deployment.weights}"


def _without_engine(question: Question, fit: Fit) -> Question:
    unknown, hardware = find_engine(UNKNOWN_ENGINE), question.deployment.hardware
    _, engine = with_constants(hardware, unknown, UNKNOWN_ENGINE, fit.quantities())
    return _under(question, engine.model_copy(update={"measured": Measured(), "correlations": fit.correlations(UNKNOWN_ENGINE)}))


def _without_row_laws(question: Question, fit: Fit) -> Question:  # noqa: ARG001  the constants are in the question
    engine, weights = question.deployment.engine, question.deployment.weights
    laws = tuple(law for law in engine.small_rows if weights not in law.formats)
    return _under(question, engine.model_copy(update={"small_rows": laws}))


def _under(question: Question, engine: ServingEngine) -> Question:
    return replace(question, deployment=replace(question.deployment, engine=engine))
