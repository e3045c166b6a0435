"""How sure R is: the doubt of every coefficient, propagated to first order, and narrowed by a measured plain step.

ln R ≈ ln R₀ + Σ Jᵢ zᵢ with zᵢ ~ N(0, 1), one for each coefficient or doubted datasheet peak, plus a floor for what the model
leaves out. The zᵢ are independent, but for constants that one fit gave: runs tell their sums better than each of them, and the
fit's correlations keep that. A measured plain step updates the zᵢ (linear Gaussian conditioning), so that it moves R only
through the physical constants that it speaks about.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from simulator.architecture import RECURRENT
from simulator.cost.attention import attention_kernels
from simulator.cost.deployment import Deployment
from simulator.cost.doubts import ROUND_NOISE_STD, Doubts, shipped_doubts
from simulator.cost.drafting import overhead_name
from simulator.cost.pricer import StepPricer
from simulator.cost.remote_draft import RemoteDraft
from simulator.cost.spread import RoundDoubt, Spread
from simulator.cost.unmeasured import unmeasured
from simulator.hardware import BY_TYPE, Hardware, Quantity, quantities_of
from simulator.serving_engine import ServingEngine
from simulator.speculation import MODELLESS_METHODS

# Absolute step times of one shape differ by 4-6 % between software stacks on one device.
STEP_NOISE_STD = 0.05
_FRACTIONS_MAX = 1.0
_ROW_LAWS = "small_rows"
# Constants of GEMMs, by the type that they compute in.
_BY_TYPE = (*BY_TYPE, "gemm_row_factors")
# What the cost reads from the profile itself: datasheet values, without doubt unless their sources disagree.
_PEAKS = ("memory_bandwidth_bytes_per_s", "peak_flops_per_s", "link_bandwidth_bytes_per_s")


@dataclass(frozen=True)
class UncertainPricer:
    """The pricer of a deployment and, for each doubtful coefficient, the pricer with it raised by one standard deviation."""

    deployment: Deployment
    full_acceptance_rate: float = 0.5
    doubts: Doubts = field(default_factory=shipped_doubts)
    base: StepPricer = field(init=False)
    shifted: tuple[tuple[str, StepPricer], ...] = field(init=False)
    correlation: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", self.deployment.pricer(self.full_acceptance_rate))
        object.__setattr__(self, "shifted", tuple(self._shifted()))
        object.__setattr__(self, "correlation", _correlation(self.deployment, [name for name, _ in self.shifted]))

    def with_full_acceptance_rate(self, rate: float) -> UncertainPricer:
        """The same at another share of rounds that are accepted in full: what is known of matrices holds for both."""
        if rate == self.full_acceptance_rate:
            return self
        changed = copy.copy(self)
        shifted = tuple((name, pricer.with_full_acceptance_rate(rate)) for name, pricer in self.shifted)
        for name, value in (
            ("full_acceptance_rate", rate),
            ("base", self.base.with_full_acceptance_rate(rate)),
            ("shifted", shifted),
        ):
            object.__setattr__(changed, name, value)
        return changed

    def _shifted(self) -> Iterator[tuple[str, StepPricer]]:
        for name, shifted in _shifts(self.deployment):
            if shifted.engine is not self.deployment.engine and not name.startswith(_ROW_LAWS):
                yield name, self.base.with_engine(shifted.engine)
            else:
                yield name, shifted.pricer(self.full_acceptance_rate)

    def sensitivities(
        self, gamma: int, batch: int, context: float, proposal_rate: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """d ln R and d ln(plain step) per standard deviation of each coefficient."""
        base = self.base.round(gamma, batch, context, proposal_rate)
        rows = [pricer.round(gamma, batch, context, proposal_rate) for _, pricer in self.shifted]
        ratio = np.array([math.log(row.r / base.r) for row in rows])
        plain = np.array([math.log(row.plain_step_s / base.plain_step_s) for row in rows])
        return ratio, plain

    def plain_step_std(self, gamma: int, batch: int, context: float) -> float:
        """One standard deviation of ln of a plain step: the doubts of all coefficients, and what stacks differ by.

        How much of the former shows in R, most of which it leaves alone, says nothing of absolute times.
        """
        _, plain = self.sensitivities(gamma, batch, context, 1.0)
        return math.hypot(math.sqrt(self._covariance(plain, plain)) / self.doubts.coefficient_share, STEP_NOISE_STD)

    def coefficient_std(self, gamma: int, batch: int, context: float) -> float:
        """One standard deviation of ln R from the doubts of all coefficients, before the share of it that shows."""
        ratio, _ = self.sensitivities(gamma, batch, context, 1.0)
        return math.sqrt(self._covariance(ratio, ratio)) / self.doubts.coefficient_share

    def spread(self, gamma: int, batch: int, context: float, proposal_rate: float = 1.0) -> Spread:
        """All doubt of ln R."""
        return self.doubt(gamma, batch, context, proposal_rate).spread

    def doubt(
        self, gamma: int, batch: int, context: float, proposal_rate: float = 1.0, *, assumed_std: float = 0.0
    ) -> RoundDoubt:
        """Of coefficients, of repetition, of what was assumed besides, and of what was never measured."""
        ratio, _ = self.sensitivities(gamma, batch, context, proposal_rate)
        coefficients = math.hypot(math.sqrt(self._covariance(ratio, ratio)), assumed_std)
        return self._round_doubt(coefficients, self.base.round(gamma, batch, context, proposal_rate).r)

    def _round_doubt(self, coefficients: float, r: float) -> RoundDoubt:
        known = Spread.even(math.hypot(coefficients, ROUND_NOISE_STD))
        return RoundDoubt(r, known, unmeasured(self.deployment).spread(self.doubts, r))

    def given_plain_step(
        self,
        measured_s: float,
        gamma: int,
        batch: int,
        context: float,
        proposal_rate: float = 1.0,
        *,
        assumed_std: float = 0.0,
    ) -> RoundDoubt:
        """R and the doubt of its logarithm that remains, once a plain step of `measured_s` was seen."""
        ratio, plain = self.sensitivities(gamma, batch, context, proposal_rate)
        base = self.base.round(gamma, batch, context, proposal_rate)
        surprise = math.log(measured_s / base.plain_step_s)
        shared = self._covariance(ratio, plain)
        gain = shared / (self._covariance(plain, plain) + STEP_NOISE_STD**2)
        left = self._covariance(ratio, ratio) - gain * shared
        # Linear in the surprise: a step measured far from the model must not make a round cheaper than the step it contains.
        r = max(base.r * math.exp(gain * surprise), min(base.r, 1.0))
        return self._round_doubt(math.hypot(math.sqrt(max(left, 0.0)), assumed_std), r)

    def _covariance(self, first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
        """Of two quantities, by their sensitivities, as far as it shows; a variance is none below 0."""
        found = float(first @ self.correlation @ second) * self.doubts.coefficient_share**2
        return max(found, 0.0) if first is second else found


def _correlation(deployment: Deployment, names: Sequence[str]) -> NDArray[np.float64]:
    """Between the doubts of these quantities: those of one fit as the engine's profile states, others independent.

    A coefficient that the device's own profile states is not of that fit.
    """
    engine, own = deployment.engine, deployment.hardware.profile.coefficients
    found = np.eye(len(names))
    place = {name: index for index, name in enumerate(names) if name not in own}
    for first, others in engine.correlations.items():
        for second, value in others.items():
            if first in place and second in place:
                found[place[first], place[second]] = found[place[second], place[first]] = value
    return found


def links(deployment: Deployment) -> dict[str, Quantity]:
    """What the links to other nodes, and of expert dispatch, are taken to be, where this deployment has them."""
    beyond, names = deployment.parallelism, []
    if beyond.nodes > 1:
        names += ["inter_node_bandwidth_bytes_per_s", "inter_node_latency_s"]
    if beyond.expert_parallel and beyond.data_parallel_size > 1:
        names.append("all_to_all_latency_s")
    return {name: deployment.hardware.link(name) for name in names}


def quantities(deployment: Deployment) -> dict[str, Quantity]:
    """Every coefficient that an `UncertainPricer` may shift, by name; all-reduce tables are left out."""
    hardware = deployment.hardware
    found = [
        *quantities_of(hardware.profile, _PEAKS),
        *links(deployment).items(),
        *quantities_of(hardware.coefficients),
        *quantities_of(deployment.engine),
    ]
    remote = deployment.remote_draft
    if remote is not None and remote.hardware.profile_id != hardware.profile_id:
        theirs = remote.hardware.coefficients
        found += [(f"draft_device.{name}", quantity) for name, quantity in quantities_of(theirs)]
    return dict(found)


def _shifts(deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    """The deployment with one coefficient raised by one standard deviation, for each that has a doubt."""
    hardware, engine = deployment.hardware, deployment.engine
    for name, quantity in (*quantities_of(hardware.profile, _PEAKS), *links(deployment).items()):
        if quantity.doubt > 0:
            yield name, _on(deployment, _with_peak(hardware, name, _raised(name, quantity)))
    matters = _relevant(deployment)
    for name, quantity in quantities_of(hardware.coefficients):
        if quantity.doubt > 0 and quantity.value > 0 and matters(name):
            yield name, _on(deployment, with_coefficient(hardware, name, _raised(name, quantity)))
    for dtype, factors in hardware.profile.gemm_row_factors.items():
        if not matters(f"gemm_row_factors.{dtype}"):
            continue
        raised = factors.raised_above_one_row(math.exp(factors.doubt))
        tables = {**hardware.profile.gemm_row_factors, dtype: raised}
        changed = replace(hardware, profile=hardware.profile.model_copy(update={"gemm_row_factors": tables}))
        yield f"gemm_row_factors.{dtype}", _on(deployment, changed)
    beyond = deployment.parallelism
    sizes = (deployment.tensor_parallel_size, deployment.draft_tensor_parallel_size, beyond.data_parallel_size)
    if max(*sizes, beyond.pipeline_parallel_size) > 1 and hardware.profile.all_reduce:
        yield "all_reduce", replace(deployment, hardware=_with_slower_all_reduce(hardware))
    remote = deployment.remote_draft
    if remote is not None and remote.hardware.profile_id != hardware.profile_id:
        yield from _remote_shifts(deployment, remote)
    for name, quantity in quantities_of(engine):
        if quantity.doubt > 0 and quantity.value > 0 and matters(name):
            yield name, replace(deployment, engine=with_constant(engine, name, _raised(name, quantity)))
    for name, changed_engine in _row_law_shifts(deployment):
        yield name, replace(deployment, engine=changed_engine)


def _row_law_shifts(deployment: Deployment) -> Iterator[tuple[str, ServingEngine]]:
    """The engine with one number of a small-row law raised, for each law that a model's weights run under."""
    engine, formats = deployment.engine, deployment.target.stored_formats(deployment.weights)
    beside = deployment.drafter_beside
    if beside is not None:
        formats |= beside.stored_formats(deployment.drafter_weights)
    in_use = [engine.row_law(weights, deployment.hardware) for weights in sorted(formats)]
    for place, law in enumerate(engine.small_rows):
        if not any(law is used for used in in_use):
            continue
        for name, quantity in quantities_of(law):
            if quantity.doubt > 0 and quantity.value > 0:
                changed = law.model_copy(update={name: _raised(name, quantity)})
                laws = (*engine.small_rows[:place], changed, *engine.small_rows[place + 1 :])
                yield f"{_ROW_LAWS}.{place}.{name}", engine.model_copy(update={"small_rows": laws})


def _relevant(deployment: Deployment) -> Callable[[str], bool]:
    """Whether a constant can move R at all: those of experts, states, trees, searches, kernels and types not run cannot."""
    models = [model for model in (deployment.target, deployment.drafter) if model is not None]
    groups = [group for model in models for group in model.layer_groups(1)]
    kernels = attention_kernels(deployment.engine, deployment.hardware)
    open_layers = deployment.engine.unoverlapped_layers
    open_target = any(group.attention in open_layers for group in deployment.target.layer_groups(1))
    runs = {
        "expert": any(group.experts is not None for group in groups),
        "grouped": any(group.experts is not None and group.experts.grouped for group in groups),
        "state": any(group.attention in RECURRENT for group in groups),
        "tree": deployment.tree is not None,
        "ngram": deployment.method in MODELLESS_METHODS,
        "walk": kernels.unsplit or kernels.regime == "serial_walk",
        "broadcast": deployment.tensor_parallel_size * deployment.parallelism.pipeline_parallel_size > 1,
        "unoverlapped": deployment.method in deployment.engine.unoverlapped_methods or open_target,
        "reserved": False,
        "prompt": False,
    }
    types = deployment.target.stored_formats(deployment.weights)
    if deployment.drafter is not None:
        types |= deployment.drafter.stored_formats(deployment.drafter_weights)
    # Attention, LM heads and routers compute in the wide type whatever the weights are.
    computed = {deployment.hardware.wide_dtype, *map(deployment.hardware.compute_dtype, types), *(types & {"fp32"})}
    chosen = {
        "draft_step_overhead_s": overhead_name(deployment.engine, deployment.method),
        "layer_overhead_s": deployment.hardware.profile.vendor,
        "expert_layer_overhead_s": deployment.hardware.profile.vendor if deployment.target.is_moe else None,
    }

    def relevant(name: str) -> bool:
        outer, _, inner = name.partition(".")
        if outer in _BY_TYPE:
            return inner in computed
        return inner == chosen[outer] if outer in chosen else runs.get(name.split("_")[0], True)

    return relevant


def _on(deployment: Deployment, hardware: Hardware) -> Deployment:
    """The deployment on changed devices: a draft's own too where they are of the same kind, and so wrong in the same way."""
    remote = deployment.remote_draft
    if remote is not None and remote.hardware.profile_id == hardware.profile_id:
        remote = replace(remote, hardware=hardware)
    return replace(deployment, hardware=hardware, remote_draft=remote)


def _remote_shifts(deployment: Deployment, remote: RemoteDraft) -> Iterator[tuple[str, Deployment]]:
    """The same for the bandwidth and the fixed times of a draft's own device."""
    coefficients = remote.hardware.coefficients
    for name in ("memory_bandwidth_fraction", "gemm_overhead_s", "attention_overhead_s", "elementwise_overhead_s"):
        quantity: Quantity = getattr(coefficients, name)
        slower = with_coefficient(remote.hardware, name, _raised(name, quantity))
        yield f"draft_device.{name}", replace(deployment, remote_draft=replace(remote, hardware=slower))


def _raised(name: str, quantity: Quantity) -> Quantity:
    """One standard deviation up; a fraction near its ceiling goes down instead."""
    value = quantity.value * math.exp(quantity.doubt)
    if "fraction" in name and value > _FRACTIONS_MAX:
        value = quantity.value * math.exp(-quantity.doubt)
    return quantity.model_copy(update={"value": value})


def with_coefficient(hardware: Hardware, name: str, quantity: Quantity) -> Hardware:
    return replace(hardware, coefficients=hardware.coefficients.model_copy(update=_update(hardware.coefficients, name, quantity)))


def _with_peak(hardware: Hardware, name: str, quantity: Quantity) -> Hardware:
    return replace(hardware, profile=hardware.profile.model_copy(update=_update(hardware.profile, name, quantity)))


def _with_slower_all_reduce(hardware: Hardware) -> Hardware:
    """Every all-reduce longer by one standard deviation of its table."""
    tables = {
        kind: table.model_copy(
            update={"by_devices": {size: cost.slower(math.exp(table.doubt)) for size, cost in table.by_devices.items()}}
        )
        for kind, table in hardware.profile.all_reduce.items()
    }
    return replace(hardware, profile=hardware.profile.model_copy(update={"all_reduce": tables}))


def with_constant(engine: ServingEngine, name: str, quantity: Quantity) -> ServingEngine:
    return engine.model_copy(update=_update(engine, name, quantity))


def _update(holder: object, name: str, quantity: Quantity) -> dict[str, object]:
    outer, _, inner = name.partition(".")
    return {outer: {**getattr(holder, outer), inner: quantity}} if inner else {outer: quantity}
