"""Fits law(parameters, inputs) to measurements: bounded robust least squares, and whether to believe the result.

Generic: it knows no law, no device and no torch. A law takes parameters by name and a sequence of inputs, and returns one
prediction for each. Residuals are ln(predicted / measured) unless asked otherwise, since times spread over decades and err in
proportion. What the data cannot tell is refused (`UnidentifiableError`) rather than answered by a bound or a start value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

T = TypeVar("T")
Law = Callable[[Mapping[str, float], Sequence[T]], Sequence[float]]
Vector = NDArray[np.float64]

# Two columns of the Jacobian this close to dependent are one column, up to rounding of its central differences.
_SAME_DIRECTION = 1e-7
_STEP = 1e-5
# Of fits that only tell how well a law does on what is left out; good enough for one-sided differences too.
ROUGH = 1e-7
_Z80, _Z95 = 1.2816, 1.9600
# A standard deviation from the median absolute deviation of normal residuals; residuals beyond 1.5 of them count less.
_MAD_TO_STD, _ROBUST_FROM = 1.4826, 1.5


class FitError(ValueError):
    """These measurements do not determine the law; the text says why and what would."""


class UnidentifiableError(FitError):
    """The data leave `parameters` open: alone, or against one another."""

    def __init__(self, parameters: Sequence[str], message: str):
        self.parameters = tuple(parameters)
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number to be found between `low` and `high`, from `start`."""

    name: str
    start: float
    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True, slots=True)
class Observation(Generic[T]):
    """One measured value. Those of one `group` (a matrix shape, a model) err together: they stay in one fold, and count as one
    in the covariance where there are enough groups."""

    inputs: T
    measured: float
    group: str = ""


@dataclass(frozen=True)
class Fit:
    """Values with covariance. at_bound: parameters that ended on a bound, whose interval is one-sided. residual_std: of
    ln(predicted / measured), or absolute; `sum_of_squares` likewise."""

    names: tuple[str, ...]
    vector: Vector
    covariance: Vector
    at_bound: tuple[str, ...]
    residual_std: float
    sum_of_squares: float
    observations: int

    @property
    def values(self) -> dict[str, float]:
        return dict(zip(self.names, map(float, self.vector), strict=True))

    def std(self, name: str) -> float:
        """One standard deviation of a parameter."""
        index = self.names.index(name)
        return math.sqrt(max(float(self.covariance[index, index]), 0.0))

    def interval(self, name: str, level: float = 0.95) -> tuple[float, float]:
        """Symmetric normal interval at level 0.80 or 0.95."""
        value, width = self.values[name], {0.80: _Z80, 0.95: _Z95}[level] * self.std(name)
        return value - width, value + width


@dataclass(frozen=True, slots=True)
class Errors:
    """|predicted / measured - 1| over `count` observations. worst_at: index of the worst; bias: median with its sign."""

    count: int
    median: float
    mean: float
    p90: float
    worst: float
    worst_at: int
    bias: float


def errors(predicted: Sequence[float], measured: Sequence[float]) -> Errors:
    """Relative errors of predictions. Raises ValueError for none.

    >>> errors([1.1, 2.0, 2.7], [1.0, 2.0, 3.0]).worst_at
    0
    """
    if not len(measured):
        raise ValueError("no observation to compare with")
    signed = np.asarray(predicted, float) / np.asarray(measured, float) - 1.0
    size = np.abs(signed)
    # The first of equals, whatever the rounding.
    worst = int(np.argmax(np.round(size, 12)))
    median, p90 = (float(np.quantile(size, q)) for q in (0.5, 0.9))
    return Errors(len(size), median, float(size.mean()), p90, float(size[worst]), worst, float(np.median(signed)))


def fit(
    law: Law[T],
    parameters: Sequence[Parameter],
    observations: Sequence[Observation[T]],
    *,
    relative: bool = True,
    robust: bool = True,
    tolerance: float = 1e-10,
) -> Fit:
    """Least squares within bounds; with `robust`, residuals beyond 1.5 standard deviations count by their size, not its square.

    Raises `UnidentifiableError` where the data leave a parameter open, `FitError` where there are too few or the law breaks down.
    """
    names = tuple(parameter.name for parameter in parameters)
    if len(observations) < len(parameters) + 1:
        raise FitError(f"{len(observations)} measurements cannot determine {len(parameters)} coefficients ({', '.join(names)})")
    scale = np.array([_size(parameter) for parameter in parameters])
    low, high = (np.array([getattr(parameter, end) for parameter in parameters]) / scale for end in ("low", "high"))
    start = np.clip(np.array([parameter.start for parameter in parameters]) / scale, low, high)
    inputs = [observation.inputs for observation in observations]
    measured = np.array([observation.measured for observation in observations])

    def residuals(scaled: Vector) -> Vector:
        predicted = np.asarray(law(dict(zip(names, map(float, scaled * scale), strict=True)), inputs), float)
        return np.log(predicted / measured) if relative else predicted - measured

    found = _solve(residuals, start, low, high, tolerance, None)
    spread = _MAD_TO_STD * float(np.median(np.abs(residuals(found))))
    # A fit through almost every point leaves no scale to judge outliers by.
    far = _ROBUST_FROM * spread if robust and spread > 1e-9 else math.inf
    if far < math.inf:
        found = _solve(residuals, found, low, high, tolerance, far)
    left = residuals(found)
    jacobian = _jacobian(residuals, found, low, high)
    _check_rank(names, jacobian, len(observations))
    covariance = _covariance(jacobian, left, far, [observation.group for observation in observations])
    _check_spread(parameters, np.sqrt(np.maximum(np.diag(covariance), 0.0)) * scale)
    span = np.where(np.isfinite(high - low), high - low, math.inf)
    edge = np.minimum(found - low, high - found) < 1e-6 * np.where(np.isfinite(span), span, 1.0)
    squares = float(left @ left)
    nearer = np.where(found - low < high - found, low, high)
    return Fit(
        names,
        np.where(edge, nearer, found) * scale,
        covariance * np.outer(scale, scale),
        tuple(name for name, on in zip(names, edge, strict=True) if on),
        math.sqrt(squares / (len(left) - len(names))),
        squares,
        len(observations),
    )


def _size(parameter: Parameter) -> float:
    """A typical magnitude, so that a microsecond and a fraction take steps alike."""
    return abs(parameter.start) or next((abs(end) for end in (parameter.high, parameter.low) if end and math.isfinite(end)), 1.0)


def _solve(
    residuals: Callable[[Vector], Vector], start: Vector, low: Vector, high: Vector, tolerance: float, far: float | None
) -> Vector:
    differences: Literal["2-point", "3-point"] = "2-point" if tolerance >= ROUGH else "3-point"
    loss: Literal["linear", "soft_l1"] = "linear" if far is None else "soft_l1"
    try:
        result = least_squares(
            residuals, start, jac=differences, bounds=(low, high), x_scale="jac", loss=loss, f_scale=far or 1.0,
            ftol=tolerance, xtol=tolerance, gtol=tolerance, max_nfev=1000,
        )  # fmt: skip
    except ValueError as error:
        raise FitError(f"the law has no finite value at its start: {error}") from None
    if result.status == 0:
        raise FitError("no minimum found in 1000 steps")
    return np.asarray(result.x, float)


def _jacobian(residuals: Callable[[Vector], Vector], at: Vector, low: Vector, high: Vector) -> Vector:
    """Central differences, one-sided at a bound."""
    columns = []
    for index, value in enumerate(at):
        step = _STEP * max(abs(value), 0.1)
        up, down = at.copy(), at.copy()
        up[index], down[index] = min(value + step, high[index]), max(value - step, low[index])
        columns.append((residuals(up) - residuals(down)) / (up[index] - down[index]))
    return np.column_stack(columns)


def _check_rank(names: Sequence[str], jacobian: Vector, count: int) -> None:
    """Raises where a parameter moves no prediction, or several move them alike."""
    norms = np.linalg.norm(jacobian, axis=0)
    silent = [name for name, norm in zip(names, norms, strict=True) if norm <= 1e-12 * max(float(norms.max()), 1e-300)]
    if silent:
        raise UnidentifiableError(
            silent, f"none of the {count} measurements depends on {' or '.join(silent)}: measure where it matters"
        )
    _, sizes, directions = np.linalg.svd(jacobian / norms, full_matrices=False)
    if sizes[-1] < _SAME_DIRECTION * sizes[0]:
        shares = np.abs(directions[-1])
        mixed = [name for name, share in zip(names, shares, strict=True) if share > 0.1 * shares.max()]
        raise UnidentifiableError(
            mixed, f"{' and '.join(mixed)} cannot be told apart by these {count} measurements: vary what tells them apart"
        )


def _check_spread(parameters: Sequence[Parameter], std: Vector) -> None:
    """Raises where the data narrow a parameter no further than its bounds did."""
    wide = [
        parameter.name
        for parameter, spread in zip(parameters, std, strict=True)
        if math.isfinite(parameter.high - parameter.low) and spread > (parameter.high - parameter.low) / 2
    ]
    if wide:
        raise UnidentifiableError(
            wide, f"{' and '.join(wide)} stays anywhere within its bounds: more or quieter measurements are needed"
        )


def _covariance(jacobian: Vector, left: Vector, far: float, groups: Sequence[str]) -> Vector:
    """Of an M-estimator with soft_l1 loss (Huber 1981, ch. 7); least squares where `far` is infinite. Sandwiched over groups
    (Liang and Zeger 1986) where there are more than twice as many as parameters."""
    count, parameters = jacobian.shape
    bent = 1.0 + (left / far) ** 2
    pull, slope = left / np.sqrt(bent), float(np.mean(bent**-1.5))
    inverse = np.linalg.inv(jacobian.T @ jacobian)
    names = sorted(set(groups))
    if len(names) <= 2 * parameters:
        return np.asarray(inverse * float(pull @ pull) / (count - parameters) / slope**2)
    labels = np.array([names.index(group) for group in groups])
    scores = np.array([jacobian[labels == index].T @ pull[labels == index] for index in range(len(names))])
    correction = len(names) / (len(names) - 1) * (count - 1) / (count - parameters)
    return np.asarray(inverse @ (scores.T @ scores) @ inverse * correction / slope**2)
