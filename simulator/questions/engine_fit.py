"""Refit of the constants that no datasheet and no kernel table states, on published speculation runs.

A constant belongs to engines (host time per round, per draft pass) or to kinds of layers on every device (experts, recurrent
states). Each has a prior: what was believed before any run was seen, as a median and a standard deviation of its logarithm. The
fit is the maximum of the posterior under Gaussian errors of ln R, which runs of one family share in part, with a robust loss; its
covariance is that of the linearised problem. Leaving a family out takes its runs from the data and nothing else: the terms stay,
and with them what is said to have been measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from simulator import resources
from simulator.architecture import RECURRENT
from simulator.cost.deployment import Deployment
from simulator.cost.doubts import RUN_STD, Doubts
from simulator.cost.uncertainty import with_coefficient, with_constant
from simulator.cost.unmeasured import measured_in
from simulator.hardware import Hardware, Quantity
from simulator.prediction import OperatingPoint, Prediction, Question, accepted, answer, benchmark_speedup, resolve
from simulator.questions.published_cases import PublishedCase
from simulator.questions.whitening import whitened
from simulator.serving_engine import Measured, ServingEngine

# Whole families differ by about as much again as runs of one configuration (`RUN_STD`).
FAMILY_STD = 0.04
_STEP = 0.02
# Residuals beyond so many standard deviations count less than their square.
ROBUST = 2.0


@dataclass(frozen=True)
class Constant:
    """A fitted quantity: `name` as in the profiles, for these `engines`, or for every device where there are none."""

    name: str
    engines: tuple[str, ...]
    prior: float
    prior_log_std: float

    @property
    def id(self) -> str:
        return ":".join([*self.engines[:1], self.name])


# Row laws of MLX and llama.cpp were set by hand on D5 and C13; on the other four nothing was set, which keeps the fit honest.
BY_HAND = ("D5", "C13")
UNTOUCHED = ("D9", "C61", "C65", "C68")
UNFITTED = (*BY_HAND, *UNTOUCHED)
SERVED = ("sglang", "sglang_2025", "vllm", "vllm_2025", "trtllm", "generic")
EAGER_PROMPTS = ("sglang", "sglang_2025", "trtllm", "generic")
CONSTANTS = (
    Constant("expert_bandwidth_fraction", (), 0.9, 0.05),
    Constant("expert_overhead_s", (), 15e-6, 0.4),
    Constant("expert_row_correlation", (), 0.7, 0.25),
    Constant("expert_popularity_shape", (), 1.0, 0.7),
    Constant("state_row_s", (), 2e-6, 0.6),
    Constant("state_rollback_s", ("sglang", "sglang_2025"), 50e-6, 1.0),
    Constant("state_rollback_s", ("vllm", "vllm_2025"), 20e-6, 1.0),
    Constant("unoverlapped_s.recurrent", ("sglang",), 0.5e-3, 0.8),
    Constant("prompt_overhead_s", SERVED, 30e-3, 0.7),
    Constant("launch_per_layer_s", EAGER_PROMPTS, 0.36e-3, 0.4),
    Constant("round_overhead_s", ("sglang",), 0.4e-3, 0.7),
    Constant("round_overhead_s", ("vllm",), 0.3e-3, 0.7),
    Constant("round_overhead_s", ("vllm_2025",), 0.6e-3, 0.7),
    Constant("round_overhead_s", ("sglang_2025",), 1.5e-3, 0.7),
    Constant("round_overhead_s", ("hf_eager",), 1.0e-3, 0.7),
    Constant("round_overhead_s", ("llamacpp",), 0.5e-3, 0.7),
    Constant("draft_step_overhead_s.default", ("sglang", "sglang_2025"), 0.12e-3, 0.5),
    Constant("draft_step_overhead_s.default", ("vllm",), 0.12e-3, 0.5),
    Constant("draft_step_overhead_s.eagle", ("vllm_2025",), 0.2e-3, 0.7),
    Constant("draft_step_overhead_s.eagle3", ("vllm_2025",), 0.3e-3, 0.7),
    Constant("feature_overhead_s", ("vllm_2025",), 0.2e-3, 0.8),
    Constant("draft_step_overhead_s.default", ("hf_eager",), 0.6e-3, 0.5),
    Constant("draft_step_overhead_s.eagle", ("hf_eager",), 1.0e-3, 0.5),
    Constant("tree_round_overhead_s", SERVED, 0.3e-3, 0.7),
    Constant("tree_draft_step_overhead_s", SERVED, 0.1e-3, 0.7),
    Constant("tree_round_overhead_s", ("hf_eager",), 5e-3, 0.6),
)


@dataclass(frozen=True)
class LessOne:
    """What a fit would be without the runs of one more family, to first order: how its logarithms move, and their covariance."""

    move: NDArray[np.float64]
    covariance: NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """Fitted values: logarithms and their covariance, in the order of `CONSTANTS`; by engine, what the runs had that they rest
    on; by family, what one more family would change."""

    log_values: NDArray[np.float64]
    covariance: NDArray[np.float64]
    measured: Mapping[str, Measured]
    without: Mapping[str, LessOne] = field(default_factory=dict)

    def correlations(self, engine_id: str, at_least: float = 0.05) -> dict[str, dict[str, float]]:
        """Between the constants that concern an engine, those of layer kinds among them; weaker ones are left out."""
        stds = np.sqrt(np.diag(self.covariance))
        concerned = [index for index, c in enumerate(CONSTANTS) if not c.engines or engine_id in c.engines]
        found: dict[str, dict[str, float]] = {}
        for place, i in enumerate(concerned):
            for j in concerned[:place]:
                value = float(self.covariance[i, j] / (stds[i] * stds[j]))
                if abs(value) >= at_least:
                    found.setdefault(CONSTANTS[i].name, {})[CONSTANTS[j].name] = round(value, 2)
        return found

    def quantities(self) -> dict[str, Quantity]:
        """By id of the constant."""
        stds = np.sqrt(np.diag(self.covariance))
        return {
            constant.id: Quantity(value=math.exp(value), source="fitted", relative_std=min(float(std), 1.0))
            for constant, value, std in zip(CONSTANTS, self.log_values, stds, strict=True)
        }


@dataclass
class EngineFit:
    """The published cases that can be priced, with every name resolved once."""

    cases: Sequence[PublishedCase]
    questions: list[Question] = field(init=False)

    def __post_init__(self) -> None:
        self.questions = [resolve(case.point, case.document) for case in self.cases]
        self.families = np.array([case.family for case in self.cases])
        self.measured_log = np.array([math.log(case.measured_speedup) for case in self.cases])
        targets = [question.deployment.target for question in self.questions]
        self.has_kind = [
            {
                "expert": any(group.experts is not None for group in groups),
                "state": any(group.attention in RECURRENT for group in groups),
            }
            for groups in (target.layer_groups(1) for target in targets)
        ]
        self.engines = [_engine_id(case.point) for case in self.cases]
        self.prior = np.array([math.log(constant.prior) for constant in CONSTANTS])
        self.prior_std = np.array([constant.prior_log_std for constant in CONSTANTS])
        self.accepted = [accepted(q, c.document)[:2] for q, c in zip(self.questions, self.cases, strict=True)]

    def concerned(self, constant: Constant, chosen: Sequence[int]) -> list[int]:
        """Positions in `chosen` of the cases whose prediction may depend on a constant."""
        if constant.engines:
            return [place for place, index in enumerate(chosen) if self.engines[index] in constant.engines]
        return [place for place, index in enumerate(chosen) if self.has_kind[index][constant.name.split("_")[0]]]

    def errors(self, log_values: NDArray[np.float64], chosen: Sequence[int]) -> NDArray[np.float64]:
        """ln(predicted R / measured R) of the chosen cases."""
        changed = self._changed(
            {c.id: Quantity(value=math.exp(value), source="fitted") for c, value in zip(CONSTANTS, log_values, strict=True)}
        )
        found = []
        for index in chosen:
            question, (tau, full) = changed(index), self.accepted[index]
            assert tau is not None
            pricer = question.deployment.pricer(full)
            cost = pricer.round(question.gamma, question.batch, question.context)
            speedup = benchmark_speedup(question, pricer, tau, cost.r, cost.plain_step_s)
            found.append(self.measured_log[index] - math.log(speedup))
        return np.array(found)

    def slopes(self, log_values: NDArray[np.float64], chosen: Sequence[int]) -> NDArray[np.float64]:
        """d error / d ln(constant), chosen cases × constants, by differences over the cases that a constant concerns."""
        found = np.zeros((len(chosen), len(CONSTANTS)))
        base = self.errors(log_values, chosen)
        for column, constant in enumerate(CONSTANTS):
            places = self.concerned(constant, chosen)
            if places:
                shifted = log_values.copy()
                shifted[column] += _STEP
                moved = self.errors(shifted, [chosen[place] for place in places])
                found[places, column] = (moved - base[places]) / _STEP
        return found

    def fit(self, without: str | None = None) -> Fit:
        """The posterior maximum on all families, or on all but one. It starts at the priors, so that nothing of the family left
        out can be carried over."""
        chosen = [index for index, family in enumerate(self.families) if family not in (without, *UNFITTED)]
        families = self.families[chosen]
        seen: Collection[str] = sorted(set(families))
        groups = [np.flatnonzero(families == name) for name in seen]

        def residuals(log_values: NDArray[np.float64]) -> NDArray[np.float64]:
            errors = by_family(self.errors(log_values, chosen), groups)
            return np.concatenate([errors, (log_values - self.prior) / self.prior_std])

        def jacobian(log_values: NDArray[np.float64]) -> NDArray[np.float64]:
            slopes = self.slopes(log_values, chosen)
            white = [by_family(column, groups) for column in slopes.T]
            return np.concatenate([np.array(white).T, np.diag(1 / self.prior_std)])

        from scipy.optimize import least_squares  # slow to load

        found = least_squares(residuals, self.prior, jac=jacobian, loss="soft_l1", f_scale=ROBUST, xtol=1e-4, ftol=1e-6)
        slopes, pulls = np.asarray(found.jac), _pulls(np.asarray(found.fun))
        curvature = slopes.T @ slopes
        back = self.prior - found.x
        less = {name: _less(curvature, slopes[group], pulls[group], back) for name, group in zip(seen, groups, strict=True)}
        return Fit(np.asarray(found.x), np.linalg.inv(curvature), self.measured(), less)

    def of_family(self, family: str | None) -> list[int]:
        return [index for index, each in enumerate(self.families) if each == family]

    def measured(self, without: Collection[int] = ()) -> dict[str, Measured]:
        """By engine, what the runs had that its constants and row laws rest on, less some of them."""
        own = {engine for constant in CONSTANTS for engine in constant.engines}
        chosen: dict[str, list[Deployment]] = {}
        for index in {*range(len(self.cases))} - {*without}:
            family = self.families[index]
            if family not in UNTOUCHED and (self.engines[index] in own or family in BY_HAND):
                chosen.setdefault(self.engines[index], []).append(self.questions[index].deployment)
        return {engine: measured_in(deployments) for engine, deployments in chosen.items()}

    def predictions(self, fit: Fit, chosen: Sequence[int], doubts: Doubts | None = None) -> list[Prediction]:
        """What `predict` answers with the fitted constants and their doubts."""
        changed = self._changed(fit.quantities(), fit)
        return [answer(changed(index), self.cases[index].point, self.cases[index].document, doubts) for index in chosen]

    def question(self, fit: Fit, index: int) -> Question:
        """The question of a case under the fitted constants and their doubts."""
        return self._changed(fit.quantities(), fit)(index)

    def _changed(self, quantities: Mapping[str, Quantity], fit: Fit | None = None) -> Callable[[int], Question]:
        """The question of a case under other constants, and what else a fit says of them; devices and engines are changed once
        each."""
        known: dict[tuple[str, str], tuple[Hardware, ServingEngine]] = {}

        def changed(index: int) -> Question:
            question, engine_id = self.questions[index], self.engines[index]
            deployment = question.deployment
            key = (deployment.hardware.profile_id, deployment.engine.name)
            if key not in known:
                hardware, engine = with_constants(deployment.hardware, deployment.engine, engine_id, quantities)
                if fit is not None:
                    told = {"measured": fit.measured.get(engine_id, Measured()), "correlations": fit.correlations(engine_id)}
                    engine = engine.model_copy(update=told)
                known[key] = hardware, engine
            hardware, engine = known[key]
            return replace(question, deployment=replace(deployment, hardware=hardware, engine=engine))

        return changed


def with_constants(
    hardware: Hardware, engine: ServingEngine, engine_id: str, quantities: Mapping[str, Quantity]
) -> tuple[Hardware, ServingEngine]:
    """The device and the engine with the constants that concern them set, by id of the constant."""
    for constant in CONSTANTS:
        quantity = quantities[constant.id]
        if not constant.engines:
            hardware = with_coefficient(hardware, constant.name, quantity)
        elif engine_id in constant.engines:
            engine = with_constant(engine, constant.name, quantity)
    return hardware, engine


def _engine_id(point: OperatingPoint) -> str:
    path = resources.file_of("engine", point.engine)
    return path.stem if path else ""


def by_family(errors: NDArray[np.float64], groups: Sequence[NDArray[np.intp]]) -> NDArray[np.float64]:
    """Errors as independent unit ones, where each is a run's own (RUN_STD) plus one that its family shares (FAMILY_STD)."""
    white = np.empty_like(errors)
    for group in groups:
        white[group] = whitened(errors[group], RUN_STD, FAMILY_STD)
    return white


def _pulls(residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Residuals as scipy weighs them under the robust loss: times its weighted slopes they are the gradient."""
    squares = (residuals / ROBUST) ** 2
    first, second = (1 + squares) ** -0.5, -0.5 * (1 + squares) ** -1.5 / ROBUST**2
    pulls: NDArray[np.float64] = residuals * first / np.sqrt(np.maximum(first + 2 * second * residuals**2, np.finfo(float).eps))
    return pulls


def _less(
    curvature: NDArray[np.float64], slopes: NDArray[np.float64], pulls: NDArray[np.float64], back: NDArray[np.float64]
) -> LessOne:
    """One Newton step from the maximum once these rows are gone, no further than `back` to the priors."""
    covariance = np.asarray(np.linalg.inv(curvature - slopes.T @ slopes), dtype=np.float64)
    move = covariance @ (slopes.T @ pulls)
    return LessOne(np.clip(move, np.minimum(back, 0.0), np.maximum(back, 0.0)), covariance)
