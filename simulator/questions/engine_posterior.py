"""The constants of an engine given measured points: the maximum of their posterior, and which of them the points can tell.

Errors of ln(time per token) are Gaussian: one that all points share (the device and its kernels, whose coefficients are not
fitted here) and one of each point's own. A constant's prior is the base engine's value, as wide as engines differ among
themselves. A constant that the points leave as unsure as it was stays where it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.cost.doubts import ROUND_NOISE_STD
from simulator.cost.uncertainty import STEP_NOISE_STD, quantities, with_constant
from simulator.questions.measured_point import Anchor, MeasuredPoint
from simulator.questions.whitening import whitened
from simulator.scenario import Scenario
from simulator.serving_engine import ServingEngine

# Host times of the shipped engines span a factor of 18 (0.16 to 2.9 ms a round): one standard deviation of their logarithm.
BETWEEN_ENGINES_STD = 1.0
# A constant is known from the runs where they halve its variance, and none is tried that at two standard deviations moves no run
# by as much as one run's noise.
KNOWN = 0.5**0.5
_REACH = 2.0
_STEP = 0.02
_MOST_SIMULATIONS = 3
_SETTLED = 0.02
# Not of a step: memory, and what a request waits outside of passes, which only its first token shows.
_OTHERS = ("reserved_bytes", "prompt_overhead_s")
# What one method on one engine always pays together with another constant: runs of one server cannot part them.
INSEPARABLE = ("feature_overhead_s", "tree_round_overhead_s", "tree_draft_step_overhead_s")
Fate = Literal["fitted", "moves too little", "not told apart"]


class EnginePosterior:
    """The runs, the constants that may matter to them, and their priors."""

    def __init__(self, scenario: Scenario, points: Sequence[MeasuredPoint]):
        self.scenario, self.points = scenario, points
        fields = ServingEngine.model_fields
        self.base = {
            name: quantity
            for name, quantity in quantities(scenario.deployment).items()
            if name.partition(".")[0] in fields and name not in _OTHERS and quantity.value > 0 and quantity.doubt > 0
        }
        self.prior = {name: math.log(quantity.value) for name, quantity in self.base.items()}
        self.prior_std = {
            name: max(quantity.doubt, BETWEEN_ENGINES_STD) if name.partition(".")[0].endswith("_s") else quantity.doubt
            for name, quantity in self.base.items()
        }
        self._anchors: dict[tuple[int, tuple[float, ...]], Anchor] = {}

    def engine(self, log_values: dict[str, float]) -> ServingEngine:
        """The base engine with these constants; doubts are left as they were."""
        engine = self.scenario.deployment.engine
        for name, value in log_values.items():
            if value != self.prior[name]:
                engine = with_constant(engine, name, self.base[name].model_copy(update={"value": math.exp(value)}))
        return engine

    def solve(self, chosen: Sequence[int]) -> tuple[dict[str, float], dict[str, float], dict[str, Fate]]:
        """(values, standard deviations, fates) on some of the points: constants out of reach are kept at once, then the least
        known one after the other, each time with a new fit, until the points halve the variance of all that are left. Constants
        that play no part have no fate."""
        fates: dict[str, Fate] = dict.fromkeys(self.base, "fitted")
        anchors = self._anchored(chosen, self.prior)
        for name in self.base:
            moved = dict(self.prior, **{name: self.prior[name] + _REACH * self.prior_std[name]})
            effect = self._log_s(chosen, anchors, moved) - self._log_s(chosen, anchors, self.prior)
            if not effect.any():
                del fates[name]  # of other methods and other kinds of layers
            elif np.linalg.norm(_of_points(effect)) < 1:
                fates[name] = "moves too little"
            elif name in INSEPARABLE:
                fates[name] = "not told apart"
        while True:
            free = [name for name, fate in fates.items() if fate == "fitted"]
            log_values, stds = self._maximum(chosen, free, anchors, self.prior)
            worst = max(free, key=lambda name: stds[name] / self.prior_std[name], default=None)
            if worst is None or stds[worst] < KNOWN * self.prior_std[worst]:
                break
            fates[worst] = "not told apart"
        for _ in range(_MOST_SIMULATIONS if free else 0):
            before = log_values
            log_values, stds = self._maximum(chosen, free, self._anchored(chosen, before), before)
            if max(abs(log_values[name] - before[name]) for name in free) < _SETTLED:
                break
        return log_values, stds, fates

    def correlation(
        self, chosen: Sequence[int], log_values: dict[str, float], fates: dict[str, Fate]
    ) -> dict[str, dict[str, float]]:
        """Of the logarithms of the fitted constants, each with those before it, at the maximum."""
        free = [name for name, fate in fates.items() if fate == "fitted"]
        slopes = self._slopes(chosen, free, self._anchored(chosen, log_values), log_values)
        covariance = np.linalg.inv(slopes.T @ slopes)
        std = np.sqrt(np.diag(covariance))
        matrix = covariance / np.outer(std, std)
        return {
            name: {free[before]: round(float(matrix[place, before]), 2) for before in range(place)}
            for place, name in enumerate(free)
        }

    def _slopes(
        self, chosen: Sequence[int], free: Sequence[str], anchors: Sequence[Anchor], at: dict[str, float]
    ) -> NDArray[np.float64]:
        """d(whitened errors, then priors) / d ln(constant)."""
        base = self._log_s(chosen, anchors, at)
        columns = [
            _of_points((self._log_s(chosen, anchors, dict(at, **{name: at[name] + _STEP})) - base) / _STEP) for name in free
        ]
        widths = np.array([self.prior_std[name] for name in free])
        return np.concatenate([np.array(columns).T, np.diag(1 / widths)])

    def _maximum(
        self, chosen: Sequence[int], free: Sequence[str], anchors: Sequence[Anchor], start: dict[str, float]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """The posterior maximum over the `free` constants, and its standard deviations."""
        if not free:
            return dict(self.prior), {}
        measured = np.log(np.array([self.points[index].time_per_token_s for index in chosen]))
        middle = np.array([self.prior[name] for name in free])
        width = np.array([self.prior_std[name] for name in free])

        def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
            asked = dict(self.prior, **dict(zip(free, values, strict=True)))
            return np.concatenate([_of_points(self._log_s(chosen, anchors, asked) - measured), (values - middle) / width])

        from scipy.optimize import least_squares  # slow to load

        found = least_squares(residuals, np.array([start[name] for name in free]), xtol=1e-5)
        slopes = np.asarray(found.jac)
        stds = np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes)))
        values = dict(zip(free, found.x.tolist(), strict=True))
        return dict(self.prior, **values), dict(zip(free, stds.tolist(), strict=True))

    def _anchored(self, chosen: Sequence[int], log_values: dict[str, float]) -> list[Anchor]:
        key = tuple(log_values.values())
        for index in chosen:
            if (index, key) not in self._anchors:
                self._anchors[index, key] = self.points[index].anchored(self.engine(log_values))
        return [self._anchors[index, key] for index in chosen]

    def _log_s(self, chosen: Sequence[int], anchors: Sequence[Anchor], log_values: dict[str, float]) -> NDArray[np.float64]:
        engine = self.engine(log_values)
        pairs = zip(chosen, anchors, strict=True)
        return np.array([math.log(self.points[index].predicted_s(engine, anchor)) for index, anchor in pairs])


def _of_points(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of runs on one device, whose kernels they share."""
    return whitened(errors, ROUND_NOISE_STD, STEP_NOISE_STD)
