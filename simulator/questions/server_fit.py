"""fit-engine: the constants of an engine from runs measured on one server, without and with speculation.

Every run is predicted by a simulation of its own traffic; `engine_posterior` says which constants the runs can tell, and their
values. Each run is also predicted with constants fitted on the others alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.cost.uncertainty import STEP_NOISE_STD, with_constant
from simulator.hardware import Quantity
from simulator.interchange.observed import ObservedRun
from simulator.questions.engine_posterior import INSEPARABLE, EnginePosterior, Fate
from simulator.questions.measured_point import MeasuredPoint, measured_point
from simulator.questions.server_check import of_another_server
from simulator.scenario import Scenario
from simulator.serving_engine import ServingEngine
from simulator.spec import Problem, SpecError

_PER_ROUND = ("round_overhead_s", "draft_step_overhead_s", *INSEPARABLE)


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
    scenario.require_one_server("fit-engine")
    fit = EnginePosterior(scenario, _points(runs, scenario))
    everyone = range(len(fit.points))
    log_values, stds, fates = fit.solve(everyone)
    if "fitted" not in fates.values():
        raise SpecError([Problem("FILES", "", _nothing(fit))])
    constants = tuple(_constant(fit, name, fate, log_values[name], stds.get(name, 0.0)) for name, fate in fates.items())
    points = tuple(_left_out(fit, index, log_values) for index in everyone)
    engine = scenario.deployment.engine
    for constant in constants:
        if constant.fate == "fitted":
            engine = with_constant(engine, constant.name, constant.quantity)
    engine = engine.model_copy(update={"correlations": _correlations(engine, fit.correlation(everyone, log_values, fates))})
    notes = [*_notes(points, constants), *(note for run in runs for note in of_another_server(run, scenario))]
    return EngineOfServer(scenario.file.engine, scenario, engine, constants, points, tuple(notes))


def _constant(fit: EnginePosterior, name: str, fate: Fate, log_value: float, std: float) -> FittedConstant:
    base = fit.base[name]
    fitted = Quantity(value=math.exp(log_value), source="fitted", relative_std=min(std, 1.0))
    return FittedConstant(name, base, fitted if fate == "fitted" else base, fate)


def _left_out(fit: EnginePosterior, index: int, log_values: dict[str, float]) -> FittedPoint:
    """One run, predicted by the base engine, by the fitted one, and by one fitted on all other runs."""
    without, _, _ = fit.solve([other for other in range(len(fit.points)) if other != index])
    base, fitted, others = (fit.engine(values) for values in (fit.prior, log_values, without))
    point = fit.points[index]
    return FittedPoint(point, *(point.anchored(engine).time_per_token_s for engine in (base, fitted, others)))


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


def _nothing(fit: EnginePosterior) -> str:
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
