"""What a prediction rests on that no measured run had: parts of an implementation that nobody compared the model with.

A part is an engine, or of an engine that was measured: a method, the kernels of one weight format on one architecture, or a kind
of layer. Each adds a doubt of its own to what a round costs beside a plain step (`cost.doubts`), whatever the coefficients say:
they are of terms that somebody thought of. A setup is a method and kernels: where its parts were measured, but never together, a
smaller doubt is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from simulator.architecture import ModelArchitecture
from simulator.cost.deployment import Deployment
from simulator.cost.doubts import Doubts
from simulator.cost.never_fitted import POINTED_OUT, first_error
from simulator.cost.spread import Spread
from simulator.number_format import FORMATS
from simulator.serving_engine import Measured
from simulator.speculation import METHOD_NAMES

_LAYER_NAMES = {
    "full": "full attention", "sliding": "sliding-window attention", "chunked": "chunked attention", "mla": "latent attention",
    "linear": "linear attention", "mamba": "Mamba layers", "compressed": "compressed attention", "experts": "routed experts",
}  # fmt: skip


@dataclass(frozen=True)
class Unmeasured:
    """The parts that no measured run had. An engine without any is one part: of its others nothing more is known to be new.
    setup: no run had the method and the kernels at once."""

    engine: bool = False
    method: bool = False
    kernels: bool = False
    layers: tuple[str, ...] = ()
    setup: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """Their names: `engine`, or some of `method`, `kernels`, `setup` (of known ones) and `layers`."""
        alone = self.setup and not (self.method or self.kernels)
        found = {"engine": self.engine, "method": self.method, "kernels": self.kernels, "setup": alone, "layers": self.layers}
        return tuple(name for name, new in found.items() if new)

    @property
    def new(self) -> int:
        """How many parts of a measured engine are new."""
        return self.method + self.kernels + bool(self.layers)

    def spread(self, doubts: Doubts, r: float) -> Spread:
        """What they add to the doubt of ln R; independent of each other."""
        added_std = doubts.engine_std if self.engine else math.sqrt(self.new) * doubts.part_std
        return Spread.of_added(added_std, r).widened(doubts.setup_std if self.setup else 0.0)


def method_key(deployment: Deployment) -> str:
    """How `Measured.setups` names it."""
    return f"{deployment.method} tree" if deployment.tree is not None else deployment.method


def layer_kinds(target: ModelArchitecture) -> frozenset[str]:
    """Of its layers: kinds of attention, and whether some route to experts."""
    groups = target.layer_groups(1)
    return frozenset({group.attention for group in groups if group.attention != "none"}) | (
        {"experts"} if any(group.experts is not None for group in groups) else set()
    )


def measured_in(deployments: Iterable[Deployment]) -> Measured:
    """What runs of these deployments had, for the profile of their engine."""
    setups: dict[str, dict[str, set[str]]] = {}
    layers: set[str] = set()
    for each in deployments:
        kernels = setups.setdefault(method_key(each), {})
        kernels.setdefault(each.hardware.profile.architecture, set()).add(each.weights)
        layers |= layer_kinds(each.target)
    found = {
        method: {architecture: tuple(sorted(formats)) for architecture, formats in sorted(kernels.items())}
        for method, kernels in sorted(setups.items())
    }
    return Measured(setups=found, layers=tuple(sorted(layers)))


def unmeasured(deployment: Deployment) -> Unmeasured:
    """By what the engine's profile says its measured runs had."""
    measured: Measured = deployment.engine.measured
    if not deployment.speculative:
        return Unmeasured()
    if not measured.methods:
        return Unmeasured(engine=True)
    method, architecture, weights = method_key(deployment), deployment.hardware.profile.architecture, deployment.weights
    return Unmeasured(
        method=method not in measured.methods,
        kernels=weights not in measured.kernels(architecture),
        layers=tuple(sorted(layer_kinds(deployment.target) - {*measured.layers})),
        setup=not measured.together(method, architecture, weights),
    )


def unmeasured_note(deployment: Deployment) -> tuple[str, ...]:
    """Lines that say so to a reader: what is new, and how far off the method was on this engine where it was first looked at."""
    found, engine = unmeasured(deployment), deployment.engine.name
    said = []
    if found.engine:
        said.append(f"never measured against: {engine}; interval widened")
    elif found.parts:
        said.append(f"never measured against in {engine}: {', '.join(_words(found, deployment))}; interval widened")
    error = first_error(engine, method_key(deployment)) if deployment.speculative else None
    if error is not None and error.median > POINTED_OUT:
        said.append(f"{_drafting(deployment)} in {engine}: {error.sentence}")
    return tuple(said)


def _drafting(deployment: Deployment) -> str:
    name = METHOD_NAMES.get(deployment.method, deployment.method.replace("_", " "))
    return f"drafting {'trees ' if deployment.tree is not None else ''}by {name}"


def _words(found: Unmeasured, deployment: Deployment) -> Iterator[str]:
    if found.method:
        yield _drafting(deployment)
    kernels = f"{FORMATS[deployment.weights].name} weights on {deployment.hardware.name}"
    if found.kernels:
        yield kernels
    if "setup" in found.parts:
        yield f"{_drafting(deployment)} with {kernels}"
    yield from (_LAYER_NAMES[kind] for kind in found.layers)
