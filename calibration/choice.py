"""Chooses between laws by their error on groups of measurements left out of the fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from calibration.fit import ROUGH, Fit, FitError, Law, Observation, Parameter, fit

T = TypeVar("T")


@dataclass(frozen=True)
class Candidate(Generic[T]):
    """A law that might hold, with its parameters."""

    name: str
    law: Law[T]
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Choice(Generic[T]):
    """The law taken, fitted to everything given. tried: each candidate's error on groups left out, or why it was refused."""

    candidate: Candidate[T]
    fit: Fit
    tried: tuple[tuple[str, float | str], ...]

    def predict(self, inputs: Sequence[T]) -> Sequence[float]:
        return self.candidate.law(self.fit.values, inputs)


def choose(
    candidates: Sequence[Candidate[T]], observations: Sequence[Observation[T]], folds: int = 4, margin: float = 0.05
) -> Choice[T]:
    """The candidate with the smallest mean |ln(predicted / measured)| on groups it was not fitted to.

    Candidates come from simple to rich: a richer one is taken only where it errs less by `margin` of the error. Folds are dealt
    from the sorted group names, so that the same data give the same choice. Raises `FitError` where none can be fitted.
    """
    tried: list[tuple[str, float | str]] = []
    best: tuple[float, Candidate[T]] | None = None
    for candidate in candidates:
        try:
            whole = fit(candidate.law, candidate.parameters, observations, tolerance=ROUGH)
            error = _left_out_error(candidate, observations, folds, whole)
        except FitError as refusal:
            tried.append((candidate.name, str(refusal)))
            continue
        tried.append((candidate.name, error))
        if best is None or error < best[0] * (1 - margin):
            best = (error, candidate)
    if best is None:
        raise FitError("; ".join(f"{name}: {why}" for name, why in tried))
    return Choice(best[1], fit(best[1].law, best[1].parameters, observations), tuple(tried))


def _near(value: float, start: float) -> float:
    """`value` as a start, whose size also scales the steps; `start` where the value is next to nothing."""
    return value if abs(value) > 1e-3 * abs(start) else start


def _left_out_error(candidate: Candidate[T], observations: Sequence[Observation[T]], folds: int, whole: Fit) -> float:
    names = sorted({observation.group for observation in observations})
    fold = {name: index % folds for index, name in enumerate(names)}
    # From the fit to everything, whose minimum is near: a start far off is walked once, not once a fold.
    near = [
        Parameter(each.name, _near(whole.values[each.name], each.start), each.low, each.high) for each in candidate.parameters
    ]
    sizes = []
    for index in range(min(folds, len(names))):
        train = [each for each in observations if fold[each.group] != index]
        test = [each for each in observations if fold[each.group] == index]
        if len(names) == 1:
            train = test
        found = fit(candidate.law, near, train, tolerance=ROUGH)
        predicted = np.asarray(candidate.law(found.values, [each.inputs for each in test]), float)
        sizes += np.abs(np.log(predicted / np.array([each.measured for each in test]))).tolist()
    return float(np.mean(sizes))
