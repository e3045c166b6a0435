"""Quantiles of the Beta distribution. The library that has them takes longer to load than many a simulation takes."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Where the pieces of a tail end, in units of its decay: no more than e^-40 of it is left behind the last.
_TAIL_ENDS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 40.0)
# Of each panel and piece.
_POINTS = 12
# Newton's steps double the digits: after one this small, relative to a logit, all are right.
_LAST_STEP = 1e-8
_MOST_STEPS = 60
# The logarithm of a density from which no step comes back: of a skewed distribution the first may go too far.
_LOWEST = -500.0


def beta_quantiles(a: float, b: float, probabilities: Floats, near: Floats | None = None) -> Floats:
    """The x below which each probability of Beta(a, b) lies. a, b > 0; probabilities (n,), strictly between 0 and 1.

    near: those of a distribution much like it, where they are known, from which half the steps lead here.

    The density of the logit t of x, e^(a log x + b log(1-x)) up to a factor, is smooth and log-concave: its mass is summed over
    panels between the quantiles and two tails. Newton's method on the logarithm of the mass below a quantile (left of the mode)
    or above it (right of the mode), which is concave, then comes closer from one side.

    >>> beta_quantiles(1.0, 1.0, np.array([0.25, 0.5])).round(12).tolist()  # the uniform distribution
    [0.25, 0.5]
    """
    density = _LogitDensity(a, b)
    low, high = density.beside_mode(-1), density.beside_mode(1)
    knots = np.array([low, density.mode, high])
    left = probabilities < density.shares(knots)[0][1]
    toward = np.where(left, 1.0, -1.0)
    logits = np.where(left, low, high) if near is None or near.min() <= 0 or near.max() >= 1 else np.log(near / (1 - near))
    wanted = np.log(np.where(left, probabilities, 1 - probabilities))
    for _ in range(_MOST_STEPS):
        every = np.concatenate((logits, knots))
        order = every.argsort(kind="stable")
        place = order.argsort(kind="stable")[: len(logits)]
        below, above, total = density.shares(every[order])
        share = np.where(left, below[place], above[place])
        step = toward * (wanted - np.log(share)) * share * total / np.exp(density.log(logits))
        while (lost := density.log(logits + step) < _LOWEST).any():
            step[lost] /= 2
        logits = logits + step
        if (abs(step) <= _LAST_STEP * np.maximum(abs(logits), 1.0)).all():
            break
    return np.exp(-np.logaddexp(0, -logits))


class _LogitDensity:
    """The density of log(x / (1 - x)) for x of Beta(a, b), up to a factor: 1 at its mode."""

    def __init__(self, a: float, b: float):
        self.a, self.b, self.mode = a, b, math.log(a / b)
        self._highest = 0.0
        self._highest = float(self.log(np.array(self.mode)))

    def log(self, logits: Floats) -> Floats:
        away = abs(logits)
        falls = self.b * np.maximum(logits, 0) + self.a * np.maximum(-logits, 0)
        found: Floats = -(self.a + self.b) * np.log1p(np.exp(-away)) - falls - self._highest
        return found

    def beside_mode(self, side: int) -> float:
        """A logit left (-1) or right (1) of the mode at which the density has begun to fall, by a factor e at most."""
        away = math.sqrt(1 / self.a + 1 / self.b)  # one standard deviation of the Gaussian with the mode's curvature
        while self.log(np.array(self.mode + side * away)) < -1:
            away /= 2
        return self.mode + side * away

    def shares(self, logits: Floats) -> tuple[Floats, Floats, float]:
        """(share of the mass below each, share above each, all of it) of rising logits that begin and end beside the mode."""
        low_decay, high_decay = self._slope(float(logits[0])), -self._slope(float(logits[-1]))
        (panels, panel_weights), (tail, tail_weights) = _panels(logits), _tail()
        points = np.concatenate((logits[0] - tail / low_decay, panels.ravel(), logits[-1] + tail / high_decay))
        low, middle, high = np.split(np.exp(self.log(points)), [len(tail), len(tail) + panels.size])
        parts = np.concatenate((
            [low @ tail_weights / low_decay], (middle.reshape(panels.shape) * panel_weights).sum(axis=1),
            [high @ tail_weights / high_decay],
        ))  # fmt: skip
        total = float(parts.sum())
        return parts.cumsum()[:-1] / total, parts[::-1].cumsum()[-2::-1] / total, total

    def _slope(self, logit: float) -> float:
        """Of the logarithm of the density."""
        return self.a - (self.a + self.b) * float(np.exp(-np.logaddexp(0, -logit)))


def _panels(ends: Floats) -> tuple[Floats, Floats]:
    """Points and weights of an integral over each panel between neighbouring ends, (panels, points)."""
    points, weights = _gauss_legendre()
    halves = np.diff(ends)[:, None] / 2
    return ends[:-1, None] + halves + halves * points, halves * weights


@cache
def _tail() -> tuple[Floats, Floats]:
    """Points and weights of an integral over a tail, in units of its decay."""
    points, weights = _panels(np.array(_TAIL_ENDS))
    return points.ravel(), weights.ravel()


@cache
def _gauss_legendre() -> tuple[Floats, Floats]:
    """Points and weights on -1..1."""
    return np.polynomial.legendre.leggauss(_POINTS)
