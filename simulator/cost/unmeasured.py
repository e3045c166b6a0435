"""What a prediction rests on that no measured run had: parts of an implementation that nobody compared the model with.

A part is an engine, or of an engine that was measured: a method, the kernels of one weight format on one architecture, or a kind
of layer. Each adds a doubt of its own to ln R (`cost.doubts`), whatever the coefficients say: they are of terms that somebody
thought of.
"""

from __future__ import annotations

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
    """The parts that no measured run had. An engine without any is one part: of its others nothing more is known to be new."""

    engine: bool = False
    method: bool = False
    kernels: bool = False
    layers: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """Their names: `engine`, or some of `method`, `kernels` and `layers`."""
        found = {"engine": self.engine, "method": self.method, "kernels": self.kernels, "layers": bool(self.layers)}
        return tuple(name for name, new in found.items() if new)

    def spread(self, doubts: Doubts) -> Spread:
        """What they add to the doubt of ln R; independent of each other."""
        dearer = doubts.engine_dearer_std if self.engine else len(self.parts) ** 0.5 * doubts.part_dearer_std
        return Spread(len(self.parts) ** 0.5 * doubts.part_cheaper_std, dearer)


def method_key(deployment: Deployment) -> str:
    """How `Measured.methods` names it."""
    return f"{deployment.method} tree" if deployment.tree is not None else deployment.method


def layer_kinds(target: ModelArchitecture) -> frozenset[str]:
    """Of its layers: kinds of attention, and whether some route to experts."""
    groups = target.layer_groups(1)
    return frozenset({group.attention for group in groups if group.attention != "none"}) | (
        {"experts"} if any(group.experts is not None for group in groups) else set()
    )


def measured_in(deployments: Iterable[Deployment]) -> Measured:
    """What runs of these deployments had, for the profile of their engine."""
    kernels: dict[str, set[str]] = {}
    methods: set[str] = set()
    layers: set[str] = set()
    for each in deployments:
        kernels.setdefault(each.hardware.profile.architecture, set()).add(each.weights)
        methods.add(method_key(each))
        layers |= layer_kinds(each.target)
    found = {architecture: tuple(sorted(formats)) for architecture, formats in sorted(kernels.items())}
    return Measured(kernels=found, methods=tuple(sorted(methods)), layers=tuple(sorted(layers)))


def unmeasured(deployment: Deployment) -> Unmeasured:
    """By what the engine's profile says its measured runs had."""
    measured: Measured = deployment.engine.measured
    if not deployment.speculative:
        return Unmeasured()
    if not measured.methods:
        return Unmeasured(engine=True)
    return Unmeasured(
        method=method_key(deployment) not in measured.methods,
        kernels=deployment.weights not in measured.kernels.get(deployment.hardware.profile.architecture, ()),
        layers=tuple(sorted(layer_kinds(deployment.target) - {*measured.layers})),
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
    if found.kernels:
        yield f"{FORMATS[deployment.weights].name} weights on {deployment.hardware.name}"
    yield from (_LAYER_NAMES[kind] for kind in found.layers)
