"""fit-engine: the constants of an engine from runs measured on one server, without and with speculation.

ln(time per token) of every run is compared with a simulation of its own traffic. Errors are Gaussian: one that all runs share
(the device and its kernels, whose coefficients are not fitted here) and one of each run's own. A constant's prior is the base
engine's value, as wide as engines differ among themselves. A constant that the runs leave as unsure as it was stays where it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.cost.uncertainty import ROUND_NOISE_STD, STEP_NOISE_STD, quantities, with_constant
from simulator.hardware import Quantity
from simulator.interchange.observed import ObservedRun
from simulator.questions.measured_point import Anchor, MeasuredPoint, measured_point
from simulator.questions.server_check import of_another_server
from simulator.scenario import Scenario
from simulator.serving_engine import ServingEngine
from simulator.spec import Problem, SpecError

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
_PER_ROUND = (
    "round_overhead_s",
    "feature_overhead_s",
    "draft_step_overhead_s",
    "tree_round_overhead_s",
    "tree_draft_step_overhead_s",
)
# What one method on one engine always pays together with another constant: runs of one server cannot part them.
_INSEPARABLE = ("feature_overhead_s", "tree_round_overhead_s", "tree_draft_step_overhead_s")
_PER_ROUND = ("round_overhead_s", "draft_step_overhead_s", *_INSEPARABLE)
Fate = Literal["fitted", "moves too little", "not told apart"]


@dataclass(frozen=True)
class FittedConstant:
    """What became of one constant: `fitted`, or kept at the base engine's because it moves these runs too little, or because
    others of them say the same."""

    name: str
    base: Quantity
    quantity: Quantity
    fate: Fate


@dataclass(frozen=True)
class FittedPoint:
    """A run, seconds per token: measured; predicted by the base engine, by the fitted one, and by one fitted without this run."""

    point: MeasuredPoint
    base_s: float
    fitted_s: float
    left_out_s: float

    def error(self, predicted_s: float) -> float:
        """predicted / measured - 1."""
        return predicted_s / self.point.time_per_token_s - 1


@dataclass(frozen=True)
class EngineOfServer:
    """The answer. engine: the base engine with the fitted constants."""

    base_name: str
    scenario: Scenario
    engine: ServingEngine
    constants: tuple[FittedConstant, ...]
    points: tuple[FittedPoint, ...]
    notes: tuple[str, ...]

    @property
    def fitted(self) -> tuple[FittedConstant, ...]:
        return tuple(constant for constant in self.constants if constant.fate == "fitted")


def fit_engine(runs: Sequence[ObservedRun], scenario: Scenario) -> EngineOfServer:
    """The constants that the runs can identify, on top of the scenario's devices and engine. Raises `SpecError` where they are
    too few, of one kind only, or identify nothing."""
    points = _points(runs, scenario)
    others_servers = [note for run in runs for note in of_another_server(run, scenario)]
    fit = _Fit(scenario, points)
    everyone = range(len(points))
    log_values, stds, fates = fit.solve(everyone)
    if "fitted" not in fates.values():
        raise SpecError([Problem("FILES", "", _nothing(fit))])
    engine = fit.engine(log_values)
    found = []
    for index, point in enumerate(points):
        others = [other for other in everyone if other != index]
        without, _, _ = fit.solve(others)
        found.append(
            FittedPoint(
                point,
                point.anchored(scenario.deployment.engine).time_per_token_s,
                point.anchored(engine).time_per_token_s,
                point.anchored(fit.engine(without)).time_per_token_s,
            )
        )
    constants = tuple(
        FittedConstant(
            name,
            fit.base[name],
            Quantity(value=math.exp(log_values[name]), source="fitted", relative_std=min(stds[name], 1.0))
            if fate == "fitted"
            else fit.base[name],
            fate,
        )
        for name, fate in fates.items()
    )
    for constant in constants:
        if constant.fate == "fitted":
            engine = with_constant(engine, constant.name, constant.quantity)
    engine = engine.model_copy(update={"correlations": _correlations(engine, fit.correlation(everyone, log_values, fates))})
    notes = (*_notes(found, constants), *others_servers)
    return EngineOfServer(scenario.file.engine, scenario, engine, constants, tuple(found), notes)


def _correlations(engine: ServingEngine, own: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The engine's, without those of constants that were fitted anew, which have `own` ones."""
    fitted = own.keys()
    kept = {
        name: {other: value for other, value in others.items() if other not in fitted}
        for name, others in engine.correlations.items()
        if name not in fitted
    }
    return {name: others for name, others in (*kept.items(), *own.items()) if others}


def _points(runs: Sequence[ObservedRun], scenario: Scenario) -> list[MeasuredPoint]:
    points = [measured_point(run, scenario) for run in runs]
    for kind, there in (("with", True), ("without", False)):
        if not any(point.speculative is there for point in points):
            must = f"must hold a run {kind} speculation too: one kind alone cannot tell a slow step from a slow round"
            raise SpecError([Problem("FILES", "", must, f"{len(points)} of the other kind")])
    return points


class _Fit:
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
            name: max(quantity.doubt, BETWEEN_ENGINES_STD) if "_s" in name.replace("_spec", "") else quantity.doubt
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
            elif np.linalg.norm(_whitened(effect)) < 1:
                fates[name] = "moves too little"
            elif name in _INSEPARABLE:
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
            _whitened((self._log_s(chosen, anchors, dict(at, **{name: at[name] + _STEP})) - base) / _STEP) for name in free
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
            return np.concatenate([_whitened(self._log_s(chosen, anchors, asked) - measured), (values - middle) / width])

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


def _whitened(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Errors as independent unit ones, where each is a run's own (ROUND_NOISE_STD) plus one that all share (STEP_NOISE_STD)."""
    shrink = ROUND_NOISE_STD / math.hypot(ROUND_NOISE_STD, math.sqrt(len(errors)) * STEP_NOISE_STD)
    white: NDArray[np.float64] = (errors - errors.mean() * (1 - shrink)) / ROUND_NOISE_STD
    return white


def _nothing(fit: _Fit) -> str:
    """Why no constant was identified."""
    batches = sorted({fit.points[index].anchored(fit.scenario.deployment.engine).batch for index in range(len(fit.points))})
    return (
        f"must be runs that tell an engine's constants: at batch {', '.join(map(str, batches))} none of them, moved as far as "
        "engines differ, changes the time per token by more than runs differ by chance; keep the base engine, or measure at a "
        "smaller batch or a smaller model"
    )


def _notes(points: Sequence[FittedPoint], constants: Sequence[FittedConstant]) -> list[str]:
    """What the fit cannot mend, what it cannot tell apart, and what its leave-one-out error cannot say."""
    notes = []
    gammas = {point.point.gamma for point in points if point.point.speculative}
    by_round = [constant for constant in constants if constant.name.partition(".")[0] in _PER_ROUND]
    unclear = [constant.name for constant in by_round if constant.fate == "not told apart"]
    told = [constant.name for constant in by_round if constant.fate == "fitted"]
    if len(gammas) == 1 and unclear and told:
        notes.append(
            f"all speculative runs have γ = {gammas.pop()}: what a round adds and what each draft pass adds cannot be told "
            f"apart, and {' and '.join(told)} stands for {', '.join(unclear)} too; a run at another γ would tell"
        )
    plain = [point.error(point.fitted_s) for point in points if not point.point.speculative]
    left = sum(plain) / len(plain)
    if abs(left) > 2 * STEP_NOISE_STD:
        notes.append(
            f"plain steps are still predicted {100 * left:+.0f} %: no constant of the engine mends that; the coefficients of the "
            "device are off (calibrate measures them), or the scenario is of another server"
        )
    for kind, there in (("with", True), ("without", False)):
        if sum(point.point.speculative is there for point in points) == 1:
            notes.append(
                f"only one run {kind} speculation: with it left out nothing of that kind was seen, so its left-out error says "
                "little; a second one at another batch would"
            )
    return notes
